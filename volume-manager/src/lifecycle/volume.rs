//! One volume: what is on disk of it, and what is going on.

use std::collections::{BTreeMap, BTreeSet};

use crate::ConsumerId;
pub use crate::generated::volumes::Attach;

use super::call::{Call, Part};
use super::event::Waiter;
use super::outcome::Failure;
use super::snapshot::{Base, Half, Snapshot, Target, TargetState};
use super::state::{Rpc, VolumeState};

/// What a driver can do, as far as the lifecycle depends on it. What it cannot do is skipped on
/// the way up. On the way down what was made, or may have been, is taken down whether it still can or not.
#[allow(clippy::exhaustive_structs, reason = "the capabilities that the spec's lifecycle depends on")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME` of the controller service: there are NODE_READY and the two calls around it.
    pub publish_unpublish: bool,
    /// `STAGE_UNSTAGE_VOLUME` of the node service: there are VOL_READY and the two calls around it.
    pub stage_unstage: bool,
    /// `EXPAND_VOLUME` of the controller service, if that call is made from here.
    pub controller_expand: bool,
    /// `EXPAND_VOLUME` of the node service.
    pub node_expand: bool,
}

/// One volume with all its consumers. [`step`](Self::step) moves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume {
    pub(super) attach: Attach,
    pub(super) capabilities: DriverCapabilities,
    pub(super) policy: Policy,
    /// What is to be on disk.
    pub(super) record: Snapshot,
    /// How much of it is.
    pub(super) journal: Journal,
    /// The call that is under way; never more than one. Not on disk: a new process waits for nothing.
    pub(super) in_flight: Option<InFlight>,
    pub(super) troubles: BTreeMap<Part, Trouble>,
    /// The calls that may still be running in the driver: at most one besides `ControllerExpandVolume`. Nothing else is sent
    /// before its end is known; `ControllerExpandVolume` holds back the calls of the controller only: nothing on the
    /// node is about what it changes, and a controller that cannot be reached shall not keep volumes from their consumers.
    /// No state of its own, since the part that the call is about may have to go the other way meanwhile.
    pub(super) suspects: BTreeSet<Call>,
    /// What was intended and is not known to have been sent.
    pub(super) unsent: Option<Unsent>,
    /// What the driver may not be asked again. It is the driver's, whatever state the volume is in.
    pub(super) never: BTreeSet<Rpc>,
    /// Who is to be answered when the volume is published, or has its size.
    pub(super) waiting: BTreeSet<Waiter>,
    /// Consumers that are gone from the record, and are to be answered when that is on disk.
    pub(super) released: BTreeSet<ConsumerId>,
}

/// The bounds of a volume's machine.
#[allow(clippy::exhaustive_structs, reason = "plain settings with a default")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// How often in a row a call may end unknown before its opposite, or a call for another target, may be sent
    /// although the driver may still be working on it. `None`: never before its end is known, which can stall a volume
    /// for ever. The default is 8: with the default [`BackOff`](super::BackOff) and a deadline of 2 min, about 17 min.
    pub quiesce_attempts: Option<u8>,
    /// Failures in a row are counted up to here, from 1. The default, 32, is beyond where a back-off stops growing.
    pub counted_attempts: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Self { quiesce_attempts: Some(8), counted_attempts: 32 }
    }
}

/// How the record on disk compares with what it shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Journal {
    /// Equal.
    Clean,
    /// Behind, and about to be written.
    Behind,
    /// Being written; behind again if something changed meanwhile.
    Writing { behind: bool },
    /// Behind, and the store takes nothing.
    Failed,
}

/// A call that is under way.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct InFlight {
    pub(super) call: Call,
    /// The driver process that it was sent to is gone.
    pub(super) orphaned: bool,
    /// The size that an expansion was asked for; a larger one may have been asked for meanwhile.
    pub(super) required_bytes: u64,
}

/// A call whose intent changed where the volume or a target is, and how it was before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Unsent {
    pub(super) call: Call,
    pub(super) base: Base,
    pub(super) attached_here: bool,
    /// That of the call's consumer.
    pub(super) target: Option<TargetState>,
}

/// A call that failed, and is to be repeated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Trouble {
    /// The call.
    pub call: Call,
    /// How it failed last.
    pub failure: Failure,
    /// How often in a row, up to [`Policy::counted_attempts`].
    pub attempts: u8,
    /// How often in a row its end was not known, up to [`Policy::quiesce_attempts`].
    pub unknown: u8,
    /// Whether its back-off runs.
    pub waits: bool,
}

/// What a volume waits for.
#[allow(clippy::exhaustive_enums, reason = "each is a case that an explanation must handle")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Waits {
    /// Nothing: everything is as it is wanted.
    ForNothing,
    /// The record to be durable.
    ForRecord,
    /// The store, which failed to take the record.
    ForStore,
    /// The end of a call and of its verification.
    ForCall(Call),
    /// The time to repeat a call, the first of those that wait; [`Volume::troubles`] has all.
    ForBackOff(Call),
    /// The attach that is made elsewhere.
    ForAttach,
    /// Another driver: this one may not be asked again for what is wanted.
    ForDriver(Rpc),
    /// Somebody to ask for the size again: the driver may not be asked for it before.
    ForRequest(Rpc),
    /// Something that is yet to be started, by [`Event::Proceed`](super::Event::Proceed).
    ForStart,
}

impl Volume {
    /// A volume that nothing was done with yet and that nobody wants.
    #[must_use]
    pub fn new(attach: Attach, capabilities: DriverCapabilities, policy: Policy) -> Self {
        let mut volume = Self::at_rest(attach, capabilities, policy, Snapshot::default());
        volume.fit_base();
        volume
    }

    /// A volume as it was recorded, in a new process. The call that it says was sent last counts as one whose end is not
    /// known. [`Event::Proceed`](super::Event::Proceed) sets it going.
    ///
    /// What is staged or attached stays so in the record, even if the driver, or this attach, has no such thing any more: it is
    /// taken down before anything is built anew, but not under a consumer that has the volume.
    #[must_use]
    pub fn restored(
        snapshot: Snapshot,
        attach: Attach,
        capabilities: DriverCapabilities,
        policy: Policy,
    ) -> Self {
        let mut volume = Self::at_rest(attach, capabilities, policy, snapshot.clone());
        let attach = matches!(snapshot.base, Base::ControllerPublish | Base::ControllerUnpublish);
        volume.record.attached_here |= attach;
        volume.fit_base();
        if volume.record != snapshot {
            volume.journal = Journal::Behind;
        }
        if policy.quiesce_attempts != Some(0) {
            let calling = volume.record.calling.iter().filter(|call| !call.is_growth());
            volume.suspects = calling.filter(|call| volume.is_repeatable(call)).cloned().collect();
            // Other calls may have been sent after it, so it need not be the last one.
            if volume.record.expansion.is_some_and(|expansion| expansion.half == Half::Controller) {
                volume.suspects.insert(Call::of_volume(Rpc::ControllerExpandVolume));
            }
        }
        let targets = volume.record.targets.iter();
        let absent = targets.filter(|(_, target)| target.wanted && target.state != TargetState::Published);
        volume.waiting = absent.map(|(consumer, _)| Waiter::Consumer(consumer.clone())).collect();
        volume.waiting.extend(volume.record.expansion.map(|_| Waiter::Expansion));
        volume
    }

    fn at_rest(attach: Attach, capabilities: DriverCapabilities, policy: Policy, record: Snapshot) -> Self {
        Self {
            attach,
            capabilities,
            policy,
            record,
            journal: Journal::Clean,
            in_flight: None,
            troubles: BTreeMap::new(),
            suspects: BTreeSet::new(),
            unsent: None,
            never: BTreeSet::new(),
            waiting: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    /// Where the volume is. On the way if its base is or any target is, downward before upward; else PUBLISHED if any
    /// target is; else where its base rests.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        let any = |state| self.record.targets.values().any(|target| target.state == state);
        let base = self.record.base;
        if base.is_on_the_way() && !(self.is_going_down() && self.is_occupied()) {
            base.state()
        } else if any(TargetState::NodeUnpublish) {
            VolumeState::NodeUnpublish
        } else if any(TargetState::NodePublish) {
            VolumeState::NodePublish
        } else if self.is_occupied() {
            VolumeState::Published
        } else {
            base.state()
        }
    }

    /// Where the volume shall be: PUBLISHED while anybody wants it, else CREATED, or NODE_READY if no attach is made from
    /// here.
    #[must_use]
    pub fn goal(&self) -> VolumeState {
        match (self.is_wanted(), self.attach) {
            (true, _) => VolumeState::Published,
            (false, Attach::Here) => VolumeState::Created,
            (false, Attach::Awaited | Attach::NotRequired) => VolumeState::NodeReady,
        }
    }

    /// What has to be on disk, as it is now.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.record
    }

    /// Where the volume begins and ends.
    #[must_use]
    pub fn attach(&self) -> Attach {
        self.attach
    }

    /// What its driver can do.
    #[must_use]
    pub fn capabilities(&self) -> DriverCapabilities {
        self.capabilities
    }

    /// The bounds.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The call that is under way; never more than one.
    #[must_use]
    pub fn in_flight(&self) -> Option<&Call> {
        self.in_flight.as_ref().map(|running| &running.call)
    }

    /// The calls that failed last, one for each part of the volume that is in trouble.
    pub fn troubles(&self) -> impl Iterator<Item = &Trouble> {
        self.troubles.values()
    }

    /// The call that may still be running in the driver, so that nothing else is sent before its end is known.
    ///
    /// A `ControllerExpandVolume` that may still be running is none: see [`Self::may_be_running`].
    #[must_use]
    pub fn suspect(&self) -> Option<&Call> {
        self.suspects.iter().find(|call| !call.is_growth())
    }

    /// Whether an earlier one of this call may still be running in the driver.
    #[must_use]
    pub fn may_be_running(&self, call: &Call) -> bool {
        self.suspects.contains(call)
    }

    /// What it waits for, the first of: the call under way, the store, a back-off, and so on.
    #[must_use]
    pub fn waits(&self) -> Waits {
        match (self.in_flight(), self.journal) {
            (Some(call), _) => return Waits::ForCall(call.clone()),
            (_, Journal::Failed) => return Waits::ForStore,
            (_, Journal::Writing { .. }) => return Waits::ForRecord,
            (_, Journal::Behind) => return Waits::ForStart,
            (_, Journal::Clean) => {}
        }
        let mut wishes = self.wishes();
        wishes.extend(self.suspect().cloned());
        if let Some(call) = wishes.iter().find(|call| self.backs_off(call)) {
            Waits::ForBackOff(call.clone())
        } else if let Some(call) = wishes.iter().find(|call| self.never.contains(&call.rpc)) {
            if call.rpc.expands() { Waits::ForRequest(call.rpc) } else { Waits::ForDriver(call.rpc) }
        } else if !wishes.is_empty() {
            Waits::ForStart
        } else if self.is_wanted() && self.top().is_none() {
            Waits::ForAttach
        } else {
            Waits::ForNothing
        }
    }

    /// The base as this volume can have it: without what others do. What we did, or may have done, is never left out.
    pub(super) fn fit_base(&mut self) {
        if matches!(self.record.base, Base::Created | Base::NodeReady) {
            self.record.base = self.unstaged();
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.record.targets.values().any(|target| target.wanted)
    }

    /// Whether anything is, or may be, at any target.
    pub(super) fn is_occupied(&self) -> bool {
        self.record.targets.values().any(|target| target.state != TargetState::Absent)
    }

    /// Whether anybody lives at a target: published, or about to be, and not lost.
    pub(super) fn is_lived_in(&self) -> bool {
        let lives = |state: TargetState| state.is_published() || state == TargetState::NodePublish;
        self.record.targets.values().any(|target| lives(target.state))
    }

    /// Whether targets can be published as things are. What a driver can do may change under live consumers: who lives in a
    /// volume that is at rest is left alone, and may be joined there.
    pub(super) fn is_ready(&self) -> bool {
        let top = self.top();
        let founded = self.record.attached_here || !self.attaches();
        let rests = top.is_some() && !self.record.base.is_on_the_way();
        (top == Some(self.record.base) && founded) || (rests && self.is_lived_in())
    }

    pub(super) fn target(&mut self, call: &Call) -> Option<&mut Target> {
        self.record.targets.get_mut(call.consumer.as_ref()?)
    }

    pub(super) fn backs_off(&self, call: &Call) -> bool {
        self.troubles.get(&call.part()).is_some_and(|trouble| trouble.waits && trouble.call.rpc == call.rpc)
    }
}
