//! One volume: its durable record and its current activity.

use std::collections::{BTreeMap, BTreeSet};

use crate::ConsumerId;
pub use crate::generated::volumes::Attach;

use super::call::{Call, Part};
use super::event::Waiter;
use super::outcome::Failure;
use super::snapshot::{Base, ExpansionPhase, Snapshot, Target, TargetState};
use super::state::{Rpc, VolumeState};

/// The driver capabilities that the lifecycle depends on. Upward calls that the driver does not support are skipped.
/// Downward calls are made for everything that was set up, or may have been, even if the capability was removed.
#[allow(clippy::exhaustive_structs, reason = "the capabilities that the spec's lifecycle depends on")]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DriverCapabilities {
    /// `PUBLISH_UNPUBLISH_VOLUME` of the controller service: adds NODE_READY and the calls to and from it.
    pub publish_unpublish: bool,
    /// `STAGE_UNSTAGE_VOLUME` of the node service: adds VOL_READY and the calls to and from it.
    pub stage_unstage: bool,
    /// `EXPAND_VOLUME` of the controller service, if this node makes that call.
    pub controller_expand: bool,
    /// `EXPAND_VOLUME` of the node service.
    pub node_expand: bool,
}

/// The state machine of one volume with all its consumers, driven by [`step`](Self::step).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume {
    pub(super) attach: Attach,
    pub(super) capabilities: DriverCapabilities,
    pub(super) policy: Policy,
    /// The record that must be on disk.
    pub(super) record: Snapshot,
    /// The state of the record on disk.
    pub(super) record_state: RecordState,
    /// The call in flight; at most one.
    pub(super) in_flight: Option<InFlight>,
    pub(super) failed_calls: BTreeMap<Part, FailedCall>,
    /// The calls that may still be running in the driver: at most one besides `ControllerExpandVolume`. No other
    /// call is sent before its outcome is known. `ControllerExpandVolume` delays controller calls only: node calls
    /// do not depend on it, and an unreachable controller must not keep volumes from their consumers. The set is
    /// not part of the state, because a call may need to be undone while it is in the set.
    pub(super) uncertain_calls: BTreeSet<Call>,
    /// The intent of a call that may not have been sent.
    pub(super) unsent_intent: Option<UnsentIntent>,
    /// The RPCs that must not be sent to this driver again, in any state of the volume.
    pub(super) never_retry: BTreeSet<Rpc>,
    /// The waiters for a published target or an expansion.
    pub(super) waiters: BTreeSet<Waiter>,
    /// Consumers that were removed from the record. Their waiters are notified when the record is on disk.
    pub(super) released: BTreeSet<ConsumerId>,
}

/// Limits of the state machine.
#[allow(clippy::exhaustive_structs, reason = "plain settings with a default")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Policy {
    /// The number of consecutive attempts with an unknown outcome after which the opposite call, or a call for
    /// another target, may be sent although the driver may still be executing the call. `None` is no limit, which
    /// can block a volume forever. Default: 8, which takes about 17 min with the default
    /// [`BackOff`](super::BackOff) and a deadline of 2 min.
    pub quiesce_attempts: Option<u8>,
    /// The maximum value of the counter of consecutive failures, at least 1. Default: 32, above which the back-off
    /// does not grow.
    pub counted_attempts: u8,
}

impl Default for Policy {
    fn default() -> Self {
        Self { quiesce_attempts: Some(8), counted_attempts: 32 }
    }
}

/// The state of the record on disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum RecordState {
    /// The record on disk is current.
    Clean,
    /// The record must be written.
    Dirty,
    /// The record is being written; `dirty` if it changed meanwhile.
    Writing { dirty: bool },
    /// The record must be written, and the store is unavailable.
    Failed,
}

/// A call in flight.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct InFlight {
    pub(super) call: Call,
    /// True if the driver process that received the call was replaced.
    pub(super) driver_restarted: bool,
    /// The requested size of an expansion. A larger one may have been requested since.
    pub(super) required_bytes: u64,
}

/// A call whose intent changed the state, with the state before.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct UnsentIntent {
    pub(super) call: Call,
    pub(super) base: Base,
    pub(super) attached_here: bool,
    /// The state of the target of the call's consumer.
    pub(super) target: Option<TargetState>,
}

/// A failed call that is to be repeated.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct FailedCall {
    /// The call.
    pub call: Call,
    /// The last failure.
    pub failure: Failure,
    /// The number of consecutive failures, at most [`Policy::counted_attempts`].
    pub attempts: u8,
    /// The number of consecutive unknown outcomes, at most [`Policy::quiesce_attempts`].
    pub unknown: u8,
    /// True if the call is in back-off.
    pub backing_off: bool,
}

/// The reason why a volume makes no call.
#[allow(clippy::exhaustive_enums, reason = "each is a case that an explanation must handle")]
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WaitReason {
    /// The volume is in the desired state.
    Nothing,
    /// The record is being written.
    Record,
    /// The store failed to accept the record.
    Store,
    /// A call or its verification is in progress.
    Call(Call),
    /// A call is in back-off, the first of [`Volume::failed_calls`].
    BackOff(Call),
    /// The external attach is pending.
    Attach,
    /// This RPC must not be sent to the driver again; another version of the driver is needed.
    OtherDriver(Rpc),
    /// This RPC must not be sent to the driver before a new expansion request.
    Request(Rpc),
    /// A call is due and starts with [`Event::Proceed`](super::Event::Proceed).
    Proceed,
}

impl Volume {
    /// Creates a volume without consumers for which no call was made.
    #[must_use]
    pub fn new(attach: Attach, capabilities: DriverCapabilities, policy: Policy) -> Self {
        let mut volume = Self::with_record(attach, capabilities, policy, Snapshot::default());
        volume.normalize_base();
        volume
    }

    /// Restores a recorded volume in a new process. The last call of the record counts as one with an unknown
    /// outcome. [`Event::Proceed`](super::Event::Proceed) starts the state machine.
    ///
    /// A staged or attached volume stays staged or attached in the record, even if the driver or the attach mode
    /// no longer has that state. Such a volume is torn down before it is set up again, but not below a consumer
    /// that uses it.
    #[must_use]
    pub fn restored(
        snapshot: Snapshot,
        attach: Attach,
        capabilities: DriverCapabilities,
        policy: Policy,
    ) -> Self {
        let mut volume = Self::with_record(attach, capabilities, policy, snapshot.clone());
        let attach = matches!(snapshot.base, Base::ControllerPublish | Base::ControllerUnpublish);
        volume.record.attached_here |= attach;
        volume.normalize_base();
        if volume.record != snapshot {
            volume.record_state = RecordState::Dirty;
        }
        if policy.quiesce_attempts != Some(0) {
            let calling = volume.record.calling.iter().filter(|call| !call.is_controller_expand());
            volume.uncertain_calls = calling.filter(|call| volume.is_repeatable(call)).cloned().collect();
            // Other calls may have been sent after `ControllerExpandVolume`, so it is not necessarily the last
            // call.
            if volume.record.expansion.is_some_and(|expansion| expansion.phase == ExpansionPhase::Controller)
            {
                volume.uncertain_calls.insert(Call::of_volume(Rpc::ControllerExpandVolume));
            }
        }
        let targets = volume.record.targets.iter();
        let absent = targets.filter(|(_, target)| target.wanted && target.state != TargetState::Published);
        volume.waiters = absent.map(|(consumer, _)| Waiter::Consumer(consumer.clone())).collect();
        volume.waiters.extend(volume.record.expansion.map(|_| Waiter::Expansion));
        volume
    }

    fn with_record(
        attach: Attach,
        capabilities: DriverCapabilities,
        policy: Policy,
        record: Snapshot,
    ) -> Self {
        Self {
            attach,
            capabilities,
            policy,
            record,
            record_state: RecordState::Clean,
            in_flight: None,
            failed_calls: BTreeMap::new(),
            uncertain_calls: BTreeSet::new(),
            unsent_intent: None,
            never_retry: BTreeSet::new(),
            waiters: BTreeSet::new(),
            released: BTreeSet::new(),
        }
    }

    /// Returns the state of the volume. The state is transitional if the base or any target is in transition, downward
    /// before upward. Otherwise the state is PUBLISHED if any target is published, else the state of the base.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        let any = |state| self.record.targets.values().any(|target| target.state == state);
        let base = self.record.base;
        if base.is_transitional() && !(self.is_tearing_down() && self.has_mounted_targets()) {
            base.state()
        } else if any(TargetState::NodeUnpublish) {
            VolumeState::NodeUnpublish
        } else if any(TargetState::NodePublish) {
            VolumeState::NodePublish
        } else if self.has_mounted_targets() {
            VolumeState::Published
        } else {
            base.state()
        }
    }

    /// Returns the desired state: PUBLISHED while a consumer wants the volume; else CREATED, or NODE_READY if this node
    /// does not attach it.
    #[must_use]
    pub fn goal(&self) -> VolumeState {
        match (self.is_wanted(), self.attach) {
            (true, _) => VolumeState::Published,
            (false, Attach::Here) => VolumeState::Created,
            (false, Attach::Awaited | Attach::NotRequired) => VolumeState::NodeReady,
        }
    }

    /// Returns the current state to be recorded.
    #[must_use]
    pub fn snapshot(&self) -> &Snapshot {
        &self.record
    }

    /// Returns the attach mode.
    #[must_use]
    pub fn attach(&self) -> Attach {
        self.attach
    }

    /// Returns the capabilities of the driver.
    #[must_use]
    pub fn capabilities(&self) -> DriverCapabilities {
        self.capabilities
    }

    /// Returns the limits of the state machine.
    #[must_use]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Returns the call in flight.
    #[must_use]
    pub fn in_flight(&self) -> Option<&Call> {
        self.in_flight.as_ref().map(|running| &running.call)
    }

    /// Returns the failed calls, one for each part of the volume.
    pub fn failed_calls(&self) -> impl Iterator<Item = &FailedCall> {
        self.failed_calls.values()
    }

    /// Returns the call that may still be running in the driver. No other call is sent before its outcome is known.
    ///
    /// `ControllerExpandVolume` is never returned; see [`Self::may_be_running`].
    #[must_use]
    pub fn uncertain_call(&self) -> Option<&Call> {
        self.uncertain_calls.iter().find(|call| !call.is_controller_expand())
    }

    /// Returns whether an earlier attempt of this call may still be running in the driver.
    #[must_use]
    pub fn may_be_running(&self, call: &Call) -> bool {
        self.uncertain_calls.contains(call)
    }

    /// Returns the reason why the volume makes no call. A call in flight takes precedence over the store, and the
    /// store over back-offs.
    #[must_use]
    pub fn wait_reason(&self) -> WaitReason {
        match (self.in_flight(), self.record_state) {
            (Some(call), _) => return WaitReason::Call(call.clone()),
            (_, RecordState::Failed) => return WaitReason::Store,
            (_, RecordState::Writing { .. }) => return WaitReason::Record,
            (_, RecordState::Dirty) => return WaitReason::Proceed,
            (_, RecordState::Clean) => {}
        }
        let mut candidate_calls = self.candidate_calls();
        candidate_calls.extend(self.uncertain_call().cloned());
        if let Some(call) = candidate_calls.iter().find(|call| self.is_backing_off(call)) {
            WaitReason::BackOff(call.clone())
        } else if let Some(call) = candidate_calls.iter().find(|call| self.never_retry.contains(&call.rpc)) {
            if call.rpc.expands() { WaitReason::Request(call.rpc) } else { WaitReason::OtherDriver(call.rpc) }
        } else if !candidate_calls.is_empty() {
            WaitReason::Proceed
        } else if self.is_wanted() && self.publish_base().is_none() {
            WaitReason::Attach
        } else {
            WaitReason::Nothing
        }
    }

    /// Skips base states that this volume does not have. An attach that this node made, or may have made, is kept.
    pub(super) fn normalize_base(&mut self) {
        if matches!(self.record.base, Base::Created | Base::NodeReady) {
            self.record.base = self.base_after_unstage();
        }
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.record.targets.values().any(|target| target.wanted)
    }

    /// Returns whether any target is mounted, or may be mounted.
    pub(super) fn has_mounted_targets(&self) -> bool {
        self.record.targets.values().any(|target| target.state != TargetState::Absent)
    }

    /// Returns whether any target is in use: published or about to be, and not lost.
    pub(super) fn has_active_targets(&self) -> bool {
        let is_active = |state: TargetState| state.is_published() || state == TargetState::NodePublish;
        self.record.targets.values().any(|target| is_active(target.state))
    }

    /// Returns whether targets can be published in the current state. Capabilities may change while targets are active:
    /// a stable volume with active targets is not changed, and may get further targets.
    pub(super) fn is_ready(&self) -> bool {
        let publish_base = self.publish_base();
        let is_attached = self.record.attached_here || !self.attaches_here();
        let is_stable = publish_base.is_some() && !self.record.base.is_transitional();
        (publish_base == Some(self.record.base) && is_attached) || (is_stable && self.has_active_targets())
    }

    pub(super) fn target(&mut self, call: &Call) -> Option<&mut Target> {
        self.record.targets.get_mut(call.consumer.as_ref()?)
    }

    pub(super) fn is_backing_off(&self, call: &Call) -> bool {
        self.failed_calls
            .get(&call.part())
            .is_some_and(|failed| failed.backing_off && failed.call.rpc == call.rpc)
    }
}
