//! One volume: what is on disk of it, and what is going on.

use std::collections::{BTreeMap, BTreeSet};

use crate::ConsumerId;

use super::call::{Call, Check, Part};
use super::ladder::{Attach, DriverCapabilities, Ladder};
use super::outcome::Failure;
use super::snapshot::{Base, Half, Snapshot, Target, TargetState};
use super::state::{Goal, Rpc, VolumeState};

/// One volume with all its consumers. [`step`](super::step) moves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume {
    pub(super) attach: Attach,
    pub(super) capabilities: DriverCapabilities,
    pub(super) policy: Policy,
    /// What is to be on disk.
    pub(super) record: Snapshot,
    /// How much of it is.
    pub(super) journal: Journal,
    pub(super) activity: Activity,
    pub(super) troubles: BTreeMap<Part, Trouble>,
    /// The call that may still be running in the driver. Nothing else is sent before its end is known.
    pub(super) suspect: Option<Call>,
    /// The same for `ControllerExpandVolume`, which holds back the calls of the controller only: nothing on the node is
    /// about what it changes, and a controller that cannot be reached shall not keep volumes from their consumers.
    pub(super) growing: bool,
    /// What was intended and is not known to have been sent.
    pub(super) unsent: Option<Unsent>,
    /// What the driver may not be asked again.
    pub(super) never: BTreeSet<Rpc>,
    /// Consumers that are to be told when they are published.
    pub(super) waiting: BTreeSet<ConsumerId>,
    /// Consumers that are to be told that they are released.
    pub(super) released: BTreeSet<ConsumerId>,
    /// Whether somebody is to be told that the volume has its size.
    pub(super) expanded: bool,
    /// Nobody else used what is staged when it was looked at, for the unstage that comes next.
    pub(super) unused: bool,
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
    /// The most consumers of one volume. The default is 256.
    pub max_consumers: u16,
}

impl Default for Policy {
    fn default() -> Self {
        Self { quiesce_attempts: Some(8), counted_attempts: 32, max_consumers: 256 }
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

/// What the volume waits for outside. Not on disk: a new process waits for nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Activity {
    Nothing,
    Call {
        call: Call,
        /// The driver process that it was sent to is gone.
        orphaned: bool,
        /// A larger size was asked for meanwhile.
        outgrown: bool,
    },
    Check(Check),
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
pub struct Trouble {
    pub(super) call: Call,
    pub(super) failure: Failure,
    pub(super) attempts: u8,
    /// How often in a row its end was not known, up to [`Policy::quiesce_attempts`].
    pub(super) unknown: u8,
    pub(super) waits: bool,
}

impl Trouble {
    /// The call.
    #[must_use]
    pub fn call(&self) -> &Call {
        &self.call
    }

    /// How it failed last.
    #[must_use]
    pub fn failure(&self) -> Failure {
        self.failure
    }

    /// How often in a row, up to [`Policy::counted_attempts`].
    #[must_use]
    pub fn attempts(&self) -> u8 {
        self.attempts
    }

    /// Whether its back-off runs.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.waits
    }
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
    /// The end of a call.
    ForCall(Call),
    /// The mount table.
    ForCheck(Check),
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
        let base = Ladder { attach, capabilities, attached: false, attached_here: false }.floor();
        let record = Snapshot {
            base,
            attached: false,
            attached_here: false,
            calling: None,
            targets: BTreeMap::new(),
            granted_bytes: 0,
            capacity_bytes: 0,
            expansion: None,
        };
        Self::at_rest(attach, capabilities, policy, record)
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
            let calling = volume.record.calling.clone();
            volume.suspect = calling.filter(|call| !is_growth(call) && volume.is_repeatable(call));
            // Other calls may have been sent after it, so it need not be the last one.
            volume.growing =
                volume.record.expansion.is_some_and(|expansion| expansion.half == Half::Controller);
        }
        volume.waiting = volume
            .record
            .targets
            .iter()
            .filter(|(_, target)| target.wanted && target.state != TargetState::Published)
            .map(|(consumer, _)| consumer.clone())
            .collect();
        volume.expanded = volume.record.expansion.is_some();
        volume
    }

    fn at_rest(attach: Attach, capabilities: DriverCapabilities, policy: Policy, record: Snapshot) -> Self {
        Self {
            attach,
            capabilities,
            policy,
            record,
            journal: Journal::Clean,
            activity: Activity::Nothing,
            troubles: BTreeMap::new(),
            suspect: None,
            growing: false,
            unsent: None,
            never: BTreeSet::new(),
            waiting: BTreeSet::new(),
            released: BTreeSet::new(),
            expanded: false,
            unused: false,
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

    /// Where the volume shall be: PUBLISHED while anybody wants it, else on its floor.
    #[must_use]
    pub fn goal(&self) -> Goal {
        match (self.is_wanted(), self.attach) {
            (true, _) => Goal::Published,
            (false, Attach::Here) => Goal::Created,
            (false, Attach::Awaited | Attach::NotRequired) => Goal::NodeReady,
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
        match &self.activity {
            Activity::Call { call, .. } => Some(call),
            Activity::Nothing | Activity::Check(_) => None,
        }
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
        self.suspect.as_ref()
    }

    /// Whether an earlier one of this call may still be running in the driver.
    #[must_use]
    pub fn may_be_running(&self, call: &Call) -> bool {
        self.suspect.as_ref() == Some(call) || (self.growing && is_growth(call))
    }

    /// What it waits for, the first of: the call or check under way, the store, a back-off, and so on.
    #[must_use]
    pub fn waits(&self) -> Waits {
        match (&self.activity, self.journal) {
            (Activity::Call { call, .. }, _) => return Waits::ForCall(call.clone()),
            (Activity::Check(check), _) => return Waits::ForCheck(check.clone()),
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
            let expands = matches!(call.rpc, Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume);
            if expands { Waits::ForRequest(call.rpc) } else { Waits::ForDriver(call.rpc) }
        } else if !wishes.is_empty() {
            Waits::ForStart
        } else if self.is_wanted() && self.ladder().top().is_none() {
            Waits::ForAttach
        } else {
            Waits::ForNothing
        }
    }

    pub(super) fn ladder(&self) -> Ladder {
        Ladder {
            attach: self.attach,
            capabilities: self.capabilities,
            attached: self.record.attached,
            attached_here: self.record.attached_here,
        }
    }

    pub(super) fn fit_base(&mut self) {
        self.record.base = self.ladder().fit(self.record.base);
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
        let lives = |state| {
            matches!(state, TargetState::NodePublish | TargetState::Published | TargetState::Republish)
        };
        self.record.targets.values().any(|target| lives(target.state))
    }

    /// Whether targets can be published as things are. What a driver can do may change under live consumers: who lives in a
    /// volume that is at rest is left alone, and may be joined there.
    pub(super) fn is_ready(&self) -> bool {
        let ladder = self.ladder();
        let top = ladder.top();
        let rests = top.is_some() && !self.record.base.is_on_the_way();
        (top == Some(self.record.base) && ladder.is_founded()) || (rests && self.is_lived_in())
    }

    pub(super) fn target(&mut self, call: &Call) -> Option<&mut Target> {
        self.record.targets.get_mut(call.consumer.as_ref()?)
    }

    pub(super) fn backs_off(&self, call: &Call) -> bool {
        self.troubles.get(&call.part()).is_some_and(|trouble| trouble.waits && trouble.call.rpc == call.rpc)
    }
}

/// Whether a call is the controller half of an expansion.
pub(super) fn is_growth(call: &Call) -> bool {
    call.rpc == Rpc::ControllerExpandVolume
}
