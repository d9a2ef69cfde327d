//! A model of everything around one volume: disk, driver, mount table, consumers. It performs the effects of the state
//! machine one at a time, injects every permitted fault, and checks the invariants at every effect.
//!
//! The driver behaves as badly as the spec permits: it accepts calls at any time, continues after a timeout, and
//! executes late calls after the caller has given up. The mount table is always correct; the driver may lie.

use std::collections::{BTreeMap, BTreeSet};

use volume_manager::ConsumerId;
use volume_manager::advanced::lifecycle::{
    Base, Call, Completed, Direction, DriverCapabilities, Effect, Event, ExpansionPhase, LostMount, Outcome,
    Snapshot, TargetState, Volume,
};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Mismatch, Rpc};

use crate::actions::{Action, Answer, Interrupted, Mount, Scope};
use crate::mutants::Mutant;

/// A broken invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Violation {
    pub(crate) invariant: &'static str,
    pub(crate) found: String,
}

/// One volume and its environment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) volume: Volume,
    pub(crate) capabilities: DriverCapabilities,
    pub(crate) disk: Option<Snapshot>,
    /// Whether the record on disk has the boot id of this boot.
    of_this_boot: bool,
    pub(crate) writing: Option<Snapshot>,
    pub(crate) store_failed: bool,
    pub(crate) running: Option<Call>,
    pub(crate) late: BTreeSet<Call>,
    /// The call that returned OK and whose mount is being checked.
    pub(crate) checking: Option<Call>,
    pub(crate) timers: BTreeSet<Call>,
    pub(crate) attached: bool,
    pub(crate) staging: Mount,
    pub(crate) targets: Vec<Mount>,
    pub(crate) foreign: bool,
    /// The consumers that want the volume, by index.
    pub(crate) wants: Vec<bool>,
    /// A stage succeeded, the mount table agreed, and no unstage was attempted since.
    staged_well: bool,
    /// Downward calls that have not succeeded, by their subject.
    owed: BTreeMap<(Rpc, Option<ConsumerId>), Rpc>,
    /// The state before the running call: the required teardown of the same target, and `staged_well`.
    before: (Option<Rpc>, bool),
    /// The targets at which the driver may know of a publish.
    asked: BTreeSet<ConsumerId>,
    pub(crate) forgotten: bool,
}

impl World {
    pub(crate) fn new(scope: &Scope) -> Self {
        Self {
            volume: Volume::new(scope.attach, scope.capabilities, scope.policy),
            capabilities: scope.capabilities,
            disk: None,
            of_this_boot: true,
            writing: None,
            store_failed: false,
            running: None,
            late: BTreeSet::new(),
            checking: None,
            timers: BTreeSet::new(),
            attached: scope.attach == Attach::NotRequired,
            staging: Mount::Nothing,
            targets: vec![Mount::Nothing; scope.consumers.len()],
            foreign: false,
            wants: vec![false; scope.consumers.len()],
            staged_well: false,
            owed: BTreeMap::new(),
            before: (None, false),
            asked: BTreeSet::new(),
            forgotten: false,
        }
    }

    /// Returns the next action without faults and new requests, or `None` if nothing remains to be done.
    pub(crate) fn healing(&self, scope: &Scope) -> Option<Action> {
        let answer = self.running.as_ref().map(|call| {
            let never = scope.unreachable_controller && call.rpc == Rpc::ControllerExpandVolume;
            Action::Answer(match call.rpc {
                Rpc::NodeUnstageVolume if self.foreign => Answer::InUse,
                _ if never => Answer::NoneOfNothing,
                _ => Answer::Ok,
            })
        });
        let check = self.checking.is_some().then_some(Action::CheckMounts { truthful: true });
        let write = self.writing.is_some().then_some(Action::Write { ok: true, written: true });
        let proceed = self.store_failed.then_some(Action::Proceed);
        let useful = |call: &&Call| !scope.unreachable_controller || call.rpc != Rpc::ControllerExpandVolume;
        let timer = self.timers.iter().find(useful).cloned().map(Action::Resume);
        let foreign = self.foreign.then_some(Action::Foreign(false));
        let attach = (scope.attach == Attach::Awaited && !self.attached).then_some(Action::Attach);
        write.or(answer).or(check).or(foreign).or(attach).or(proceed).or(timer)
    }

    /// Checks I7 and I8 when nothing remains to be done.
    pub(crate) fn is_at_its_goal(&self, scope: &Scope) -> Result<(), Violation> {
        let wanted = self.wants.iter().any(|wanted| *wanted);
        let stages = scope.capabilities.stage_unstage;
        let right = |yes: bool| if yes { Mount::Right } else { Mount::Nothing };
        for (wanted, mount) in self.wants.iter().zip(&self.targets) {
            // A second mount stays until its consumer is released.
            let found = if *mount == Mount::Twice { Mount::Right } else { *mount };
            ensure("I7", found == right(*wanted), || format!("wanted: {wanted}, mounted: {mount:?}"))?;
        }
        // Published consumers keep the staging, or its absence, of the earlier driver.
        let kept = wanted && !scope.changes.is_empty() && self.staging != Mount::Wrong;
        ensure("I7", kept || self.staging == right(wanted && stages), || {
            format!("wanted: {wanted}, staged: {:?}", self.staging)
        })?;
        if scope.unreachable_controller {
            return Ok(());
        }
        ensure("I7", self.disk.as_ref() == Some(self.volume.snapshot()) || self.forgotten, || {
            "the record is not what the volume is".to_owned()
        })?;
        ensure("I7", wanted || self.forgotten, || "not wanted and not forgotten".to_owned())?;
        ensure("I7", self.volume.snapshot().expansion.is_none(), || "an expansion is owed".to_owned())?;
        ensure("I8", self.late.is_empty(), || format!("still running: {:?}", self.late))
    }

    pub(crate) fn act(&self, action: &Action, scope: &Scope) -> Result<Self, Violation> {
        let mut then = self.clone();
        then.perform(action, scope)?;
        Ok(then)
    }

    fn perform(&mut self, action: &Action, scope: &Scope) -> Result<(), Violation> {
        match action {
            Action::Want(consumer) => {
                self.wants[*consumer] = true;
                self.send(Event::Want(scope.consumers[*consumer].clone()), scope)
            }
            Action::Release(consumer) => {
                self.wants[*consumer] = false;
                self.send(Event::Release(scope.consumers[*consumer].clone()), scope)
            }
            Action::Expand(required_bytes) => {
                self.send(Event::Expand { required_bytes: *required_bytes }, scope)
            }
            Action::Republish(consumer) => {
                self.send(Event::Republish(scope.consumers[*consumer].clone()), scope)
            }
            Action::Write { ok, written } => {
                let snapshot = self.writing.take();
                if *written {
                    (self.disk, self.of_this_boot) = (snapshot, true);
                }
                self.store_failed = !ok;
                self.send(Event::Recorded(*ok), scope)
            }
            Action::Answer(answer) => self.answer(*answer, scope),
            Action::Late { call, works } => {
                self.late.remove(call);
                if *works {
                    self.work(call, scope, true);
                }
                Ok(())
            }
            Action::CheckMounts { truthful } => {
                let Some(call) = self.checking.take() else { return Ok(()) };
                let found = if *truthful { self.check(&call, scope) } else { Err(Failure::Unchecked) };
                if found.is_ok() {
                    self.staged_well |= call.rpc == Rpc::NodeStageVolume;
                    self.pay(&call);
                }
                let outcome = found.map_or_else(Outcome::Failed, |()| Outcome::Ok);
                self.send(Event::Finished { call, outcome }, scope)
            }
            Action::Resume(call) => {
                self.timers.remove(call);
                self.send(Event::Resume(call.clone()), scope)
            }
            Action::Proceed => {
                self.store_failed = false;
                self.send(Event::Proceed, scope)
            }
            Action::Crash { written, call } => {
                match (call, self.running.clone()) {
                    (Interrupted::Done, Some(running)) => self.work(&running, scope, true),
                    (Interrupted::Running, Some(running)) => {
                        self.late.insert(running);
                    }
                    _ => {}
                }
                self.restart(*written, scope);
                self.start(!self.of_this_boot, scope)
            }
            Action::Reboot { written } => {
                self.restart(*written, scope);
                self.late.clear();
                self.unmount_all();
                self.of_this_boot = self.disk.is_none();
                self.owed.retain(|(rpc, _), _| *rpc == Rpc::ControllerUnpublishVolume);
                self.start(true, scope)
            }
            Action::DriverRestarted { works, capabilities } => {
                let running = self.running.take();
                running.iter().for_each(|call| self.note_asked(call, scope));
                if let Some(call) = running.as_ref().filter(|_| *works) {
                    self.work(call, scope, true);
                }
                self.late.clear();
                self.capabilities = *capabilities;
                self.send(Event::DriverRestarted(*capabilities), scope)?;
                match running {
                    Some(call) => self
                        .send(Event::Finished { call, outcome: Outcome::Failed(Failure::Uncertain) }, scope),
                    None => Ok(()),
                }
            }
            Action::Reconnect(capabilities) => {
                self.capabilities = *capabilities;
                self.send(Event::Reconnected(*capabilities), scope)
            }
            Action::Unmount(lost) => {
                match lost {
                    LostMount::Staging => (self.staging, self.foreign) = (Mount::Nothing, false),
                    LostMount::Target(consumer) => self.targets[position(scope, consumer)] = Mount::Nothing,
                }
                self.send(Event::MountLost(lost.clone()), scope)
            }
            Action::Foreign(uses) => {
                self.foreign = *uses;
                Ok(())
            }
            Action::Attach => {
                self.attached = true;
                self.send(Event::Attached, scope)
            }
            Action::Detach => {
                self.attached = false;
                self.send(Event::Detached, scope)
            }
        }
    }

    /// Sends the events of a new process to a restored volume.
    fn start(&mut self, booted: bool, scope: &Scope) -> Result<(), Violation> {
        if booted {
            self.send(Event::Rebooted, scope)?;
        }
        let Snapshot { base, targets, attached, .. } = self.volume.snapshot().clone();
        if attached != self.attached && scope.attach == Attach::Awaited {
            self.send(if self.attached { Event::Attached } else { Event::Detached }, scope)?;
        }
        for (consumer, target) in targets {
            let published = matches!(target.state, TargetState::Published | TargetState::Republish);
            if published && self.targets[position(scope, &consumer)] == Mount::Nothing {
                self.send(Event::MountLost(LostMount::Target(consumer)), scope)?;
            }
        }
        if base == Base::VolReady && self.staging == Mount::Nothing {
            self.send(Event::MountLost(LostMount::Staging), scope)?;
        }
        self.send(Event::Proceed, scope)
    }

    fn unmount_all(&mut self) {
        self.staging = Mount::Nothing;
        self.foreign = false;
        self.targets.fill(Mount::Nothing);
        self.staged_well = false;
    }

    /// Starts a new process, which loads the records from disk. Pending callers repeat their requests.
    fn restart(&mut self, written: bool, scope: &Scope) {
        if let Some(snapshot) = self.writing.take().filter(|_| written) {
            (self.disk, self.of_this_boot) = (Some(snapshot), true);
        }
        (self.running, self.checking, self.store_failed) = (None, None, false);
        self.before = (None, false);
        self.timers.clear();
        self.volume = match (&self.disk, scope.mutant) {
            (None, _) => Volume::new(scope.attach, self.capabilities, scope.policy),
            (Some(snapshot), mutant) => {
                let snapshot =
                    mutant.map_or_else(|| snapshot.clone(), |mutant| mutant.read(snapshot.clone()));
                Volume::restored(snapshot, scope.attach, self.capabilities, scope.policy)
            }
        };
        let disk = self.disk.as_ref();
        // The next process does not know which calls of the record were not sent.
        let targets = disk.iter().flat_map(|disk| &disk.targets);
        let intended = targets.filter(|(_, target)| scope.not_sent && target.state != TargetState::Absent);
        self.asked.extend(intended.map(|(consumer, _)| consumer.clone()));
        self.wants = scope
            .consumers
            .iter()
            .map(|consumer| {
                disk.and_then(|disk| disk.targets.get(consumer)).is_some_and(|target| target.wanted)
            })
            .collect();
    }

    fn answer(&mut self, answer: Answer, scope: &Scope) -> Result<(), Violation> {
        let Some(call) = self.running.take() else { return Ok(()) };
        // The driver coalesces a repeated call with the running one, so both end together.
        let never_sent = matches!(answer, Answer::NotSent | Answer::InUse);
        if !never_sent {
            self.late.remove(&call);
        }
        let outcome = match answer {
            Answer::NotSent | Answer::InUse => {
                let (owed, staged_well) = std::mem::take(&mut self.before);
                self.staged_well = staged_well;
                match owed {
                    Some(owed) => self.owed.insert(subject(&call), owed),
                    None => self.owed.remove(&subject(&call)),
                };
                let failure = if answer == Answer::InUse { Failure::InUse } else { Failure::NotSent };
                return self.send(Event::Finished { call, outcome: Outcome::Failed(failure) }, scope);
            }
            Answer::Ok => {
                self.work(&call, scope, true);
                if call.rpc == Rpc::ControllerUnpublishVolume {
                    self.pay(&call);
                }
                Outcome::Ok
            }
            Answer::OkOfNothing => Outcome::Ok,
            Answer::OkOfSomethingElse => {
                self.work(&call, scope, false);
                Outcome::Ok
            }
            Answer::ErrorOfNothing => Outcome::Failed(Failure::Final),
            Answer::ErrorAfterSuccess => {
                self.work(&call, scope, true);
                Outcome::Failed(Failure::Final)
            }
            Answer::NotFoundOfNothing => Outcome::Ok,
            Answer::NoneOfNothing => Outcome::Failed(Failure::Uncertain),
            Answer::NoneAfterSuccess => {
                self.work(&call, scope, true);
                Outcome::Failed(Failure::Uncertain)
            }
            Answer::NoneYet => {
                self.late.insert(call.clone());
                Outcome::Failed(Failure::Uncertain)
            }
        };
        self.before = (None, false);
        self.note_asked(&call, scope);
        if outcome == Outcome::Ok && call.rpc.shows_in_mount_table() {
            self.checking = Some(call);
            return Ok(());
        }
        self.send(Event::Finished { call, outcome }, scope)
    }

    /// Notes that the call was sent, or may have been.
    fn note_asked(&mut self, call: &Call, scope: &Scope) {
        if scope.not_sent && call.rpc == Rpc::NodePublishVolume {
            self.asked.extend(call.consumer.clone());
        }
    }

    /// Notes that a downward call succeeded.
    fn pay(&mut self, call: &Call) {
        if call.rpc.direction() == Direction::Down {
            self.owed.remove(&subject(call));
            self.asked.retain(|consumer| {
                call.rpc != Rpc::NodeUnpublishVolume || call.consumer.as_ref() != Some(consumer)
            });
        }
    }

    fn work(&mut self, call: &Call, scope: &Scope, right: bool) {
        let mount = |right: bool| if right { Mount::Right } else { Mount::Wrong };
        let target = call.consumer.as_ref().map(|consumer| position(scope, consumer));
        match (call.rpc, target) {
            (Rpc::ControllerPublishVolume, _) => self.attached = true,
            (Rpc::ControllerUnpublishVolume, _) => self.attached = false,
            (Rpc::NodeStageVolume, _) => self.staging = mount(right),
            (Rpc::NodeUnstageVolume, _) => self.staging = Mount::Nothing,
            (Rpc::NodePublishVolume, Some(target)) => {
                let staged = !scope.capabilities.stage_unstage || self.staging == Mount::Right;
                let staged = staged || !scope.changes.is_empty();
                // A repeated publish can only mount on top of the first.
                self.targets[target] = match self.targets[target] {
                    Mount::Right | Mount::Twice if !right => Mount::Twice,
                    _ => mount(right && staged),
                };
            }
            (Rpc::NodeUnpublishVolume, Some(target)) => self.targets[target] = Mount::Nothing,
            _ => {}
        }
    }

    fn check(&self, call: &Call, scope: &Scope) -> Result<(), Failure> {
        let mount = match &call.consumer {
            Some(consumer) => self.targets[position(scope, consumer)],
            None => self.staging,
        };
        match (call.rpc.direction(), mount) {
            (Direction::Up, Mount::Right) | (Direction::Down, Mount::Nothing) => Ok(()),
            (Direction::Up, Mount::Nothing) => Err(Failure::Contradicted(Mismatch::Missing)),
            (Direction::Up, Mount::Wrong | Mount::Twice) => Err(Failure::Contradicted(Mismatch::Wrong)),
            (Direction::Down, _) => Err(Failure::Contradicted(Mismatch::StillThere)),
        }
    }

    fn send(&mut self, event: Event, scope: &Scope) -> Result<(), Violation> {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let (volume, effects) = match scope.mutant {
                None => crate::script::step(&self.volume, event),
                Some(mutant) => mutant.step(&self.volume, event),
            };
            self.volume = volume;
            for effect in effects {
                if scope.mutant == Some(Mutant::RecordsNothing) && effect == Effect::Record {
                    events.push(Event::Recorded(true));
                } else {
                    self.take(effect, scope)?;
                }
            }
        }
        Ok(())
    }

    fn take(&mut self, effect: Effect, scope: &Scope) -> Result<(), Violation> {
        match effect {
            Effect::Record => {
                ensure("I6", self.writing.is_none(), || "two records at once".to_owned())?;
                self.forgotten = false;
                self.writing = Some(self.volume.snapshot().clone());
            }
            Effect::Call(call) => self.take_call(call, scope)?,
            Effect::BackOff { call, .. } => {
                self.timers.insert(call);
            }
            Effect::Completed(Completed::Published(consumer))
                if !scope.meddling && scope.attach != Attach::Awaited =>
            {
                let target = position(scope, &consumer);
                let found = self.targets[target];
                let right = matches!(found, Mount::Right | Mount::Twice);
                ensure("I2", right && self.wants[target], || {
                    format!("{consumer} got a successful publish, and the mount is {found:?}")
                })?;
            }
            Effect::Completed(Completed::Released(consumer)) => {
                let found = self.targets[position(scope, &consumer)];
                ensure("I8", found == Mount::Nothing, || format!("{consumer} left {found:?} behind"))?;
            }
            Effect::Forget => {
                let clean = self.staging == Mount::Nothing
                    && self.targets.iter().all(|mount| *mount == Mount::Nothing)
                    && (scope.attach != Attach::Here || !self.attached);
                ensure("I8", clean, || "forgotten with something left".to_owned())?;
                ensure("I8", self.late.is_empty(), || format!("forgotten while {:?} run", self.late))?;
                (self.disk, self.of_this_boot, self.forgotten) = (None, true, true);
            }
            _ => {}
        }
        Ok(())
    }

    fn take_call(&mut self, call: Call, scope: &Scope) -> Result<(), Violation> {
        let describe = || format!("{call}");
        ensure("I1", self.running.is_none() && self.checking.is_none(), || {
            format!("{call} while {:?} or {:?}", self.running, self.checking)
        })?;
        // The controller's change of the size does not affect the node.
        let apart = |late: &Call| {
            late.rpc == Rpc::ControllerExpandVolume
                && !matches!(call.rpc, Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume)
                && call.rpc != Rpc::NodeExpandVolume
        };
        ensure("I1", self.late.iter().all(|late| *late == call || apart(late)), || {
            format!("{call} while the driver may be at {:?}", self.late)
        })?;
        if scope.not_sent || call.rpc == Rpc::NodeUnstageVolume {
            self.before = (self.owed.get(&subject(&call)).copied(), self.staged_well);
        }
        let stages = scope.capabilities.stage_unstage && scope.changes.is_empty();
        match call.rpc {
            Rpc::NodePublishVolume => {
                ensure("I2", !stages || self.staged_well, describe)?;
                ensure("I2", !stages || scope.meddling || self.staging == Mount::Right, describe)?;
                ensure(
                    "I2",
                    self.attached
                        || scope.attach != Attach::Here
                        || !scope.capabilities.publish_unpublish
                        || !scope.changes.is_empty(),
                    describe,
                )?;
            }
            Rpc::NodeStageVolume => {
                ensure(
                    "I2",
                    self.attached
                        || !self.capabilities.publish_unpublish
                        || scope.attach == Attach::NotRequired
                        // The call only determines the outcome of an earlier attempt, which was sent to a driver with
                        // other capabilities.
                        || (!scope.changes.is_empty() && self.volume.may_be_running(&call)),
                    describe,
                )?;
            }
            Rpc::NodeUnpublishVolume => {
                let asked = call.consumer.as_ref().is_some_and(|consumer| self.asked.contains(consumer));
                ensure("never sent", asked || !scope.not_sent, || {
                    format!("{call}, which the driver knows nothing of")
                })?;
            }
            Rpc::NodeUnstageVolume => {
                let used = self.targets.iter().any(|mount| *mount != Mount::Nothing);
                ensure("I3", !used, describe)?;
                self.staged_well = false;
            }
            Rpc::ControllerUnpublishVolume => {
                let used = self.staging != Mount::Nothing
                    || self.targets.iter().any(|mount| *mount != Mount::Nothing);
                ensure("I3", !used, describe)?;
            }
            _ => {}
        }
        let owed = self.owed.get(&subject(&call)).copied().filter(|owed| *owed != call.rpc);
        ensure("I4", owed.is_none(), || format!("{call} while {owed:?} is owed"))?;
        if call.rpc.direction() == Direction::Down {
            self.owed.insert(subject(&call), call.rpc);
        }
        ensure("I6", self.disk.as_ref().is_some_and(|disk| is_intended(disk, &call)), || {
            format!("{call}, and on disk is {:?}", self.disk)
        })?;
        self.running = Some(call);
        Ok(())
    }
}

/// Returns the subject of a call, named by its upward call and its consumer.
fn subject(call: &Call) -> (Rpc, Option<ConsumerId>) {
    let rpc = match call.rpc.direction() {
        Direction::Up => negation(call.rpc),
        Direction::Down => call.rpc,
    };
    (rpc, call.consumer.clone())
}

/// Returns the opposite call, or the call itself if it has none.
pub(crate) fn negation(rpc: Rpc) -> Rpc {
    match rpc {
        Rpc::ControllerPublishVolume => Rpc::ControllerUnpublishVolume,
        Rpc::ControllerUnpublishVolume => Rpc::ControllerPublishVolume,
        Rpc::NodeStageVolume => Rpc::NodeUnstageVolume,
        Rpc::NodeUnstageVolume => Rpc::NodeStageVolume,
        Rpc::NodePublishVolume => Rpc::NodeUnpublishVolume,
        Rpc::NodeUnpublishVolume => Rpc::NodePublishVolume,
        rpc => rpc,
    }
}

fn position(scope: &Scope, consumer: &ConsumerId) -> usize {
    scope.consumers.iter().position(|known| known == consumer).unwrap()
}

fn is_intended(disk: &Snapshot, call: &Call) -> bool {
    if disk.calling.as_ref() != Some(call) {
        return false;
    }
    let target =
        || call.consumer.as_ref().and_then(|consumer| disk.targets.get(consumer)).map(|target| target.state);
    let phase = disk.expansion.map(|expansion| expansion.phase);
    match call.rpc {
        Rpc::ControllerPublishVolume => disk.base == Base::ControllerPublish,
        Rpc::ControllerUnpublishVolume => disk.base == Base::ControllerUnpublish,
        Rpc::NodeStageVolume => disk.base == Base::NodeStage,
        Rpc::NodeUnstageVolume => disk.base == Base::NodeUnstage,
        Rpc::NodePublishVolume => matches!(target(), Some(TargetState::NodePublish | TargetState::Republish)),
        Rpc::NodeUnpublishVolume => target() == Some(TargetState::NodeUnpublish),
        Rpc::ControllerExpandVolume => phase == Some(ExpansionPhase::Controller),
        Rpc::NodeExpandVolume => phase == Some(ExpansionPhase::Node),
    }
}

fn ensure(invariant: &'static str, holds: bool, found: impl FnOnce() -> String) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { invariant, found: found() }) }
}
