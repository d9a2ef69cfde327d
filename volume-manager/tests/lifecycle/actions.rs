//! The actions of the model, and the selection of the possible next ones.

use volume_manager::ConsumerId;
use volume_manager::advanced::lifecycle::{Call, Direction, DriverCapabilities, LostMount, Policy};
use volume_manager::driver::Attach;
use volume_manager::node::Rpc;

use crate::mutants::Mutant;
use crate::world::World;

/// The actions that are possible in a run of the model.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) attach: Attach,
    pub(crate) capabilities: DriverCapabilities,
    pub(crate) policy: Policy,
    pub(crate) consumers: Vec<ConsumerId>,
    /// The driver returns OK or an error that does not match its state.
    pub(crate) lies: bool,
    /// Calls end with an unknown outcome.
    pub(crate) unknown_ends: bool,
    /// Calls are prevented before they are sent.
    pub(crate) not_sent: bool,
    /// Calls with an unknown outcome may take effect late.
    pub(crate) late_ends: bool,
    /// The process crashes, the node reboots, or the driver restarts.
    pub(crate) crashes: bool,
    /// The store fails.
    pub(crate) store_fails: bool,
    /// A foreign process unmounts a mount, or uses a staged volume.
    pub(crate) meddling: bool,
    /// The volume is expanded, and targets are published again.
    pub(crate) extras: bool,
    /// The possible capabilities of the driver after a restart; empty if they never change.
    pub(crate) changes: Vec<DriverCapabilities>,
    /// `ControllerExpandVolume` never returns, and all other calls succeed.
    pub(crate) unreachable_controller: bool,
    pub(crate) mutant: Option<Mutant>,
}

impl Scope {
    pub(crate) fn new(consumers: usize) -> Self {
        let names = ["a", "b", "c", "d"];
        Self {
            attach: Attach::NotRequired,
            capabilities: DriverCapabilities { stage_unstage: true, ..DriverCapabilities::default() },
            // No call is sent before the outcome of older calls is known, so that the model's requirement is strict.
            // Failures are counted to 1, so that the model is finite.
            policy: Policy { quiesce_attempts: None, counted_attempts: 1 },
            consumers: names[..consumers].iter().map(|name| ConsumerId::new(name).unwrap()).collect(),
            lies: true,
            unknown_ends: true,
            not_sent: false,
            late_ends: true,
            crashes: true,
            store_fails: true,
            meddling: false,
            extras: false,
            changes: Vec::new(),
            unreachable_controller: false,
            mutant: None,
        }
    }
}

/// The mount at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mount {
    Nothing,
    Right,
    /// Another device, or a bind of the bare directory under the staging mount.
    Wrong,
    /// The expected mount twice, after a repeated publish stacked a second mount on the first.
    Twice,
}

/// A possible next action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Want(usize),
    Release(usize),
    Expand(u64),
    Republish(usize),
    /// The store reports a commit as durable or failed. A failed commit may be on disk nevertheless.
    Write {
        ok: bool,
        written: bool,
    },
    Answer(Answer),
    /// A call with an unknown outcome takes effect, or fails, now.
    Late {
        call: Call,
        works: bool,
    },
    CheckMounts {
        truthful: bool,
    },
    Resume(Call),
    Proceed,
    /// The process crashes. Calls in the driver continue, and the record being written may or may not be on disk.
    Crash {
        written: bool,
        call: Interrupted,
    },
    Reboot {
        written: bool,
    },
    /// The driver's process is replaced, before or after it executed the running call.
    DriverRestarted {
        works: bool,
        capabilities: DriverCapabilities,
    },
    /// The driver is reconnected, and its process keeps running.
    Reconnect(DriverCapabilities),
    Unmount(LostMount),
    Foreign(bool),
    Attach,
    Detach,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interrupted {
    NotBegun,
    Done,
    Running,
}

/// The driver's response to a call, and its effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    OkOfNothing,
    OkOfSomethingElse,
    /// The call was not sent.
    NotSent,
    /// The call was not sent, since the staged volume is in foreign use.
    InUse,
    ErrorOfNothing,
    ErrorAfterSuccess,
    NotFoundOfNothing,
    NoneOfNothing,
    NoneAfterSuccess,
    /// The call is still running.
    NoneYet,
}

impl World {
    /// Returns all possible next actions.
    pub(crate) fn actions(&self, scope: &Scope) -> Vec<Action> {
        let mut actions = Vec::new();
        for (consumer, wanted) in self.wants.iter().enumerate() {
            actions.push(if *wanted { Action::Release(consumer) } else { Action::Want(consumer) });
            if scope.extras && *wanted {
                actions.push(Action::Republish(consumer));
            }
        }
        if scope.extras {
            actions.extend([Action::Expand(1), Action::Expand(2)]);
        }
        if self.writing.is_some() {
            actions.push(Action::Write { ok: true, written: true });
            if scope.store_fails {
                actions.extend([false, true].map(|written| Action::Write { ok: false, written }));
            }
        }
        if let Some(call) = &self.running {
            actions.extend(answers(call, scope).into_iter().map(Action::Answer));
            let unstages = call.rpc == Rpc::NodeUnstageVolume;
            actions.extend((unstages && self.foreign).then_some(Action::Answer(Answer::InUse)));
            // The check before the call is inconclusive.
            let unknown = unstages && scope.lies && !scope.not_sent;
            actions.extend(unknown.then_some(Action::Answer(Answer::NotSent)));
        }
        for call in &self.late {
            actions.extend([false, true].map(|works| Action::Late { call: call.clone(), works }));
        }
        if self.checking.is_some() {
            actions.push(Action::CheckMounts { truthful: true });
            if scope.lies {
                actions.push(Action::CheckMounts { truthful: false });
            }
        }
        actions.extend(self.timers.iter().cloned().map(Action::Resume));
        if self.store_failed {
            actions.push(Action::Proceed);
        }
        if scope.crashes {
            self.crashes(scope, &mut actions);
        }
        if scope.meddling {
            self.meddling(scope, &mut actions);
        }
        if scope.attach == Attach::Awaited {
            actions.push(if self.attached { Action::Detach } else { Action::Attach });
        }
        actions
    }

    fn crashes(&self, scope: &Scope, actions: &mut Vec<Action>) {
        let written = if self.writing.is_some() { &[false, true][..] } else { &[false] };
        for written in written.iter().copied() {
            actions.push(Action::Crash { written, call: Interrupted::NotBegun });
            if self.running.is_some() {
                actions.push(Action::Crash { written, call: Interrupted::Done });
                if scope.late_ends {
                    actions.push(Action::Crash { written, call: Interrupted::Running });
                }
            }
            actions.push(Action::Reboot { written });
        }
        let same = [self.capabilities];
        let changes = if scope.changes.is_empty() { &same[..] } else { &scope.changes };
        for capabilities in changes.iter().copied() {
            if !scope.changes.is_empty() {
                actions.push(Action::Reconnect(capabilities));
            }
            actions.push(Action::DriverRestarted { works: false, capabilities });
            if self.running.is_some() {
                actions.push(Action::DriverRestarted { works: true, capabilities });
            }
        }
    }

    fn meddling(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if self.staging == Mount::Right && self.running.is_none() && self.checking.is_none() {
            actions.push(Action::Unmount(LostMount::Staging));
        }
        for (mount, consumer) in self.targets.iter().zip(&scope.consumers) {
            if *mount == Mount::Right && self.running.is_none() && self.checking.is_none() {
                actions.push(Action::Unmount(LostMount::Target(consumer.clone())));
            }
        }
        if self.staging == Mount::Right || self.foreign {
            actions.push(Action::Foreign(!self.foreign));
        }
    }
}

fn answers(call: &Call, scope: &Scope) -> Vec<Answer> {
    let mut answers = vec![Answer::Ok, Answer::ErrorOfNothing];
    answers.extend(scope.not_sent.then_some(Answer::NotSent));
    let (visible, up) = (call.rpc.shows_in_mount_table(), call.rpc.direction() == Direction::Up);
    if scope.lies {
        answers.push(Answer::ErrorAfterSuccess);
        answers.extend(visible.then_some(Answer::OkOfNothing));
        answers.extend((visible && up).then_some(Answer::OkOfSomethingElse));
        answers.extend((visible && !up).then_some(Answer::NotFoundOfNothing));
    }
    if scope.unknown_ends {
        answers.extend([Answer::NoneOfNothing, Answer::NoneAfterSuccess]);
        answers.extend(scope.late_ends.then_some(Answer::NoneYet));
    }
    answers
}
