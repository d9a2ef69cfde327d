//! Deliberately broken variants of the state machine. The model check must detect each of them.

use volume_manager::advanced::lifecycle::{Effect, Event, Outcome, Snapshot, Volume, WaitReason};
use volume_manager::node::{Failure, Rpc, VolumeState};

use crate::script::step;

/// A defect of the state machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Every call is sent twice.
    CallsTwice,
    /// After a restart, calls that may still be running count as ended.
    TrustsTheEndOfCalls,
    /// A failed stage counts as a success.
    StagesByError,
    /// An OK is not checked in the mount table.
    Believes,
    /// A failed unpublish counts as a success.
    UnpublishesByError,
    /// A released consumer is dropped immediately, together with its target.
    ForgetsReleasedConsumers,
    /// A restored record has no consumers.
    ForgetsConsumers,
    /// A failed unstage is followed by a stage.
    ReversesDownward,
    /// Records are reported as durable, but are not.
    RecordsNothing,
    /// Failed calls are not repeated.
    GivesUp,
    /// A reboot is not detected.
    SleepsThroughReboots,
    /// A consumer that is wanted again is ignored.
    IgnoresRepeatedWant,
    /// The volume is forgotten when the last consumer is released.
    ForgetsEarly,
}

impl Mutant {
    /// All mutants, each with the names of the invariants that it breaks.
    pub(crate) const ALL: [(Self, &'static [&'static str]); 13] = [
        (Self::CallsTwice, &["I1"]),
        (Self::TrustsTheEndOfCalls, &["I1"]),
        (Self::StagesByError, &["I2"]),
        (Self::Believes, &["I2", "I3", "I8"]),
        (Self::UnpublishesByError, &["I3", "I4", "I8"]),
        (Self::ForgetsReleasedConsumers, &["I3"]),
        (Self::ForgetsConsumers, &["I3", "I7", "I8"]),
        (Self::ReversesDownward, &["I4"]),
        (Self::RecordsNothing, &["I6"]),
        (Self::GivesUp, &["I7"]),
        (Self::SleepsThroughReboots, &["I2", "I7"]),
        (Self::IgnoresRepeatedWant, &["I7"]),
        (Self::ForgetsEarly, &["I8"]),
    ];

    /// Returns the snapshot that a restart reads.
    pub(crate) fn read(self, mut snapshot: Snapshot) -> Snapshot {
        match self {
            Self::ForgetsConsumers => snapshot.targets.clear(),
            Self::TrustsTheEndOfCalls => snapshot.calling = None,
            _ => {}
        }
        snapshot
    }

    /// Performs a step with the defect.
    pub(crate) fn step(self, volume: &Volume, event: Event) -> (Volume, Vec<Effect>) {
        let event = match (self, event) {
            (Self::StagesByError, Event::Finished { call, outcome: Outcome::Failed(Failure::Final) })
                if call.rpc == Rpc::NodeStageVolume =>
            {
                Event::Finished { call, outcome: Outcome::Ok }
            }
            (
                Self::UnpublishesByError,
                Event::Finished { call, outcome: Outcome::Failed(Failure::Final) },
            ) if call.rpc == Rpc::NodeUnpublishVolume => Event::Finished { call, outcome: Outcome::Ok },
            (Self::ReversesDownward, Event::Finished { call, outcome: Outcome::Failed(Failure::Final) })
                if call.rpc == Rpc::NodeUnstageVolume && volume.goal() == VolumeState::Published =>
            {
                Event::Finished { call, outcome: Outcome::Ok }
            }
            (
                Self::Believes,
                Event::Finished {
                    call,
                    outcome: Outcome::Failed(Failure::Contradicted(_) | Failure::Unchecked),
                },
            ) => Event::Finished { call, outcome: Outcome::Ok },
            (Self::ForgetsReleasedConsumers, Event::Release(consumer))
                if volume.wait_reason() == WaitReason::Nothing =>
            {
                let mut snapshot = volume.snapshot().clone();
                snapshot.targets.remove(&consumer);
                let (attach, capabilities) = (volume.attach(), volume.capabilities());
                let volume = Volume::restored(snapshot, attach, capabilities, volume.policy());
                return step(&volume, Event::Proceed);
            }
            (Self::SleepsThroughReboots, Event::Rebooted) => Event::Proceed,
            (Self::IgnoresRepeatedWant, Event::Want(consumer))
                if volume.snapshot().targets.contains_key(&consumer) =>
            {
                Event::Proceed
            }
            (_, event) => event,
        };
        let releases = matches!(event, Event::Release(_));
        let (then, mut effects) = step(volume, event);
        match self {
            Self::CallsTwice => {
                let again: Vec<_> =
                    effects.iter().filter(|effect| matches!(effect, Effect::Call(_))).cloned().collect();
                effects.extend(again);
            }
            Self::GivesUp => effects.retain(|effect| !matches!(effect, Effect::BackOff { .. })),
            Self::ForgetsEarly
                if releases && then.snapshot().targets.values().all(|target| !target.wanted) =>
            {
                effects.push(Effect::Forget);
            }
            _ => {}
        }
        (then, effects)
    }
}
