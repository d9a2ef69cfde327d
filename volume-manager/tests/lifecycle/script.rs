//! Helpers to drive a state machine.

use volume_manager::ConsumerId;
use volume_manager::advanced::lifecycle::{
    Call, Completed, DriverCapabilities, Effect, Event, Outcome, Policy, Snapshot, Volume,
};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Mismatch, Rpc};

pub(crate) const STAGES: DriverCapabilities = DriverCapabilities {
    publish_unpublish: false,
    stage_unstage: true,
    controller_expand: false,
    node_expand: false,
};

pub(crate) const STAGE: Rpc = Rpc::NodeStageVolume;
pub(crate) const UNSTAGE: Rpc = Rpc::NodeUnstageVolume;
pub(crate) const PUBLISH: Rpc = Rpc::NodePublishVolume;
pub(crate) const UNPUBLISH: Rpc = Rpc::NodeUnpublishVolume;

pub(crate) fn consumer(name: &str) -> ConsumerId {
    ConsumerId::new(name).unwrap()
}

/// The content of the mount table after a call returned OK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Finding {
    Agrees,
    Differs(Mismatch),
    Unknown,
}

impl Finding {
    pub(crate) const MISSING: Self = Self::Differs(Mismatch::Missing);
    pub(crate) const WRONG: Self = Self::Differs(Mismatch::Wrong);
    pub(crate) const STILL_THERE: Self = Self::Differs(Mismatch::StillThere);

    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Self::Agrees => Outcome::Ok,
            Self::Differs(mismatch) => Outcome::Failed(Failure::Contradicted(mismatch)),
            Self::Unknown => Outcome::Failed(Failure::Unchecked),
        }
    }
}

/// Performs a step on a copy.
pub(crate) fn step(volume: &Volume, event: Event) -> (Volume, Vec<Effect>) {
    let (mut then, mut effects) = (volume.clone(), Vec::new());
    then.step(event, &mut effects);
    (then, effects)
}

/// Performs a step and those that follow when every record is committed immediately. Returns the remaining effects.
pub(crate) fn record(volume: &Volume, event: Event) -> (Volume, Vec<Effect>) {
    let (mut volume, mut effects) = step(volume, event);
    while let Some(at) = effects.iter().position(|effect| *effect == Effect::Record) {
        assert_eq!(at, effects.len() - 1, "something follows a record: {effects:?}");
        effects.pop();
        let (then, more) = step(&volume, Event::Recorded(true));
        volume = then;
        effects.extend(more);
    }
    (volume, effects)
}

/// A volume and its pending effects.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    pub(crate) volume: Volume,
    /// The sent calls, in order.
    pub(crate) calls: Vec<Call>,
    pub(crate) open: Vec<Effect>,
    /// The running call returned OK, and the mount table is being checked.
    pub(crate) answered: Option<Call>,
}

impl Script {
    pub(crate) fn new(attach: Attach, capabilities: DriverCapabilities) -> Self {
        let volume = Volume::new(attach, capabilities, Policy::default());
        Self { volume, calls: Vec::new(), open: Vec::new(), answered: None }
    }

    pub(crate) fn staging() -> Self {
        Self::new(Attach::NotRequired, STAGES)
    }

    /// Repeats calls with an unknown outcome without limit.
    pub(crate) fn never_gives_up_quiescing(&mut self) -> &mut Self {
        let policy = Policy { quiesce_attempts: None, ..Policy::default() };
        self.volume = Volume::new(self.volume.attach(), self.volume.capabilities(), policy);
        self
    }

    /// Creates the same script with the volume published for these consumers.
    pub(crate) fn published(consumers: &[&str]) -> Self {
        let mut script = Self::staging();
        for consumer in consumers {
            script.want(consumer).all_goes_well();
        }
        script.calls.clear();
        script
    }

    pub(crate) fn send(&mut self, event: Event) -> &mut Self {
        let (volume, effects) = record(&self.volume, event);
        self.volume = volume;
        for effect in &effects {
            if let Effect::Call(call) = effect {
                self.calls.push(call.clone());
            }
        }
        self.open.extend(effects);
        self
    }

    pub(crate) fn want(&mut self, name: &str) -> &mut Self {
        self.send(Event::Want(consumer(name)))
    }

    pub(crate) fn release(&mut self, name: &str) -> &mut Self {
        self.send(Event::Release(consumer(name)))
    }

    /// Ends the call in flight. After an OK, the mount table determines its result.
    pub(crate) fn ends(&mut self, outcome: Outcome) -> &mut Self {
        let call = self.volume.in_flight().unwrap().clone();
        if call.rpc.shows_in_mount_table() && !matches!(outcome, Outcome::Failed(_)) {
            self.answered = Some(call);
            return self;
        }
        self.send(Event::Finished { call, outcome })
    }

    /// Completes the mount check with this finding.
    pub(crate) fn shows(&mut self, finding: Finding) -> &mut Self {
        let call = self.answered.take().unwrap();
        self.send(Event::Finished { call, outcome: finding.outcome() })
    }

    /// Ends every back-off.
    pub(crate) fn resumes(&mut self) -> &mut Self {
        let waiting: Vec<_> = self
            .volume
            .failed_calls()
            .filter(|failed| failed.backing_off)
            .map(|failed| failed.call.clone())
            .collect();
        for call in waiting {
            self.send(Event::Resume(call));
        }
        self
    }

    /// Completes every call with a success until nothing remains to be done.
    pub(crate) fn all_goes_well(&mut self) -> &mut Self {
        for _ in 0..100 {
            if self.asks().is_some() {
                self.shows(Finding::Agrees);
            } else if self.volume.in_flight().is_some() {
                self.ends(Outcome::Ok);
            } else if self.volume.failed_calls().any(|failed| failed.backing_off) {
                self.resumes();
            } else {
                return self;
            }
        }
        panic!("no end: {self:#?}");
    }

    /// Returns the call whose mount is being checked.
    pub(crate) fn asks(&self) -> Option<&Call> {
        self.answered.as_ref()
    }

    /// Restarts the process from its record, with or without a reboot of the node.
    pub(crate) fn restarts(&mut self, boot: bool) -> &mut Self {
        let snapshot: Snapshot = self.volume.snapshot().clone();
        let (attach, capabilities) = (self.volume.attach(), self.volume.capabilities());
        self.volume = Volume::restored(snapshot, attach, capabilities, self.volume.policy());
        self.open.clear();
        self.answered = None;
        if boot {
            self.send(Event::Rebooted);
        }
        self.send(Event::Proceed)
    }

    /// Returns the RPCs since the last call of this function, with their consumers.
    pub(crate) fn called(&mut self) -> Vec<(Rpc, Option<String>)> {
        let calls = std::mem::take(&mut self.calls);
        calls
            .into_iter()
            .map(|call| (call.rpc, call.consumer.map(|consumer| consumer.as_str().to_owned())))
            .collect()
    }

    /// Returns the RPCs since the last call of this function, without their consumers.
    pub(crate) fn methods(&mut self) -> Vec<Rpc> {
        self.called().into_iter().map(|(rpc, _)| rpc).collect()
    }

    pub(crate) fn was_reported(&self, reached: &Completed) -> bool {
        self.open.contains(&Effect::Completed(reached.clone()))
    }

    pub(crate) fn is_forgotten(&self) -> bool {
        self.open.last() == Some(&Effect::Forget)
    }
}
