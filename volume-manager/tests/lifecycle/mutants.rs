//! The machine, broken on purpose. The model check has to catch each of these; else it checks nothing.

use volume_manager::lifecycle::{Effect, Event, Failure, Outcome, Rpc, Snapshot, Volume, VolumeState, Waits};

use crate::script::step;

/// How the machine is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mutant {
    /// Every call is sent twice.
    CallsTwice,
    /// After a restart, calls that may still run are taken as ended.
    TrustsTheEndOfCalls,
    /// A stage that failed counts as made.
    StagesByError,
    /// An OK is not checked in the mount table.
    Believes,
    /// An unpublish that failed counts as made.
    UnpublishesByError,
    /// A consumer that goes is dropped at once, and its target with it.
    DropsWhoGoes,
    /// A record that is read has no consumers.
    ForgetsConsumers,
    /// An unstage that failed is followed by a stage.
    ReversesDownward,
    /// Records are said to be durable, and are not.
    RecordsNothing,
    /// Failed calls are not repeated.
    GivesUp,
    /// A reboot is not noticed.
    SleepsThroughReboots,
    /// A consumer that comes back is not heard.
    HearsOnce,
    /// The volume is forgotten when the last consumer goes.
    ForgetsEarly,
}

impl Mutant {
    /// Every one, and the invariants that it breaks, as the model names them.
    pub(crate) const ALL: [(Self, &'static [&'static str]); 13] = [
        (Self::CallsTwice, &["I1"]),
        (Self::TrustsTheEndOfCalls, &["I1"]),
        (Self::StagesByError, &["I2"]),
        (Self::Believes, &["I2", "I3", "I8"]),
        (Self::UnpublishesByError, &["I3", "I4", "I8"]),
        (Self::DropsWhoGoes, &["I3"]),
        (Self::ForgetsConsumers, &["I3", "I7", "I8"]),
        (Self::ReversesDownward, &["I4"]),
        (Self::RecordsNothing, &["I6"]),
        (Self::GivesUp, &["I7"]),
        (Self::SleepsThroughReboots, &["I2", "I7"]),
        (Self::HearsOnce, &["I7"]),
        (Self::ForgetsEarly, &["I8"]),
    ];

    /// What is read of a record.
    pub(crate) fn read(self, mut snapshot: Snapshot) -> Snapshot {
        match self {
            Self::ForgetsConsumers => snapshot.targets.clear(),
            Self::TrustsTheEndOfCalls => snapshot.calling = None,
            _ => {}
        }
        snapshot
    }

    /// The broken transition.
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
            (Self::DropsWhoGoes, Event::Release(consumer)) if volume.waits() == Waits::ForNothing => {
                let mut snapshot = volume.snapshot().clone();
                snapshot.targets.remove(&consumer);
                let (attach, capabilities) = (volume.attach(), volume.capabilities());
                let volume = Volume::restored(snapshot, attach, capabilities, volume.policy());
                return step(&volume, Event::Proceed);
            }
            (Self::SleepsThroughReboots, Event::Rebooted) => Event::Proceed,
            (Self::HearsOnce, Event::Want(consumer)) if volume.snapshot().targets.contains_key(&consumer) => {
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
