//! What may happen in a model, and what of it may happen next.

use volume_manager::ConsumerId;
use volume_manager::lifecycle::{Attach, Call, Direction, DriverCapabilities, Lost, Policy, Rpc};

use crate::mutants::Mutant;
use crate::world::World;

/// What can happen in a run of the model.
#[derive(Debug, Clone)]
pub(crate) struct Scope {
    pub(crate) attach: Attach,
    pub(crate) capabilities: DriverCapabilities,
    pub(crate) policy: Policy,
    pub(crate) consumers: Vec<ConsumerId>,
    /// The driver says OK, or an error, of what is not so.
    pub(crate) lies: bool,
    /// Calls end unknown.
    pub(crate) unknown_ends: bool,
    /// Calls are prevented before they are sent.
    pub(crate) not_sent: bool,
    /// Calls that ended unknown may do their work late.
    pub(crate) late_ends: bool,
    /// The process dies, the node is booted, the driver's process is replaced.
    pub(crate) crashes: bool,
    /// The store fails.
    pub(crate) store_fails: bool,
    /// Somebody else unmounts what we mounted, or uses what we staged.
    pub(crate) meddling: bool,
    /// The volume is made larger, and targets are published again.
    pub(crate) extras: bool,
    /// What the driver may be able to do after it was replaced; empty if that never changes.
    pub(crate) changes: Vec<DriverCapabilities>,
    /// `ControllerExpandVolume` is never answered when all else goes well.
    pub(crate) unreachable_controller: bool,
    pub(crate) mutant: Option<Mutant>,
}

impl Scope {
    pub(crate) fn new(consumers: usize) -> Self {
        let names = ["a", "b", "c", "d"];
        Self {
            attach: Attach::NotRequired,
            capabilities: DriverCapabilities { stage_unstage: true, ..DriverCapabilities::default() },
            // Nothing is sent before older calls are known to have ended, so that what the model asks for is strict;
            // and failures are counted to one, so that the model has an end.
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

/// What is mounted at a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Mount {
    Nothing,
    Right,
    /// Another device, or a bind of the bare directory under the staging mount.
    Wrong,
    /// The right thing twice, after a repeated publish that was stacked on the first one.
    Twice,
}

/// One thing that may happen next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Action {
    Want(usize),
    Release(usize),
    Expand(u64),
    Republish(usize),
    /// The store answers: durable or not, and whether it wrote nevertheless.
    Write {
        ok: bool,
        written: bool,
    },
    Answer(Answer),
    /// A call of which we know no end does its work, or fails, now.
    Late {
        call: Call,
        works: bool,
    },
    Look {
        truthful: bool,
    },
    Resume(Call),
    Proceed,
    /// The process dies. What runs in the driver goes on; whether what was being written is on disk is open.
    Crash {
        written: bool,
        call: Interrupted,
    },
    Reboot {
        written: bool,
    },
    /// The driver's process is replaced, after it did the work of the call under way or not.
    NewGeneration {
        works: bool,
        capabilities: DriverCapabilities,
    },
    /// The driver is connected to anew, and its process lives on.
    Reconnect(DriverCapabilities),
    Unmount(Lost),
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

/// How the driver answers, and what it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Ok,
    OkOfNothing,
    OkOfSomethingElse,
    /// It was not even asked.
    NotSent,
    /// It was not even asked, since somebody else uses what is staged.
    InUse,
    ErrorOfNothing,
    ErrorAfterSuccess,
    NotFoundOfNothing,
    NoneOfNothing,
    NoneAfterSuccess,
    /// It goes on working.
    NoneYet,
}

impl World {
    /// Everything that may happen next.
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
            // The look before it says nothing.
            let unknown = unstages && scope.lies && !scope.not_sent;
            actions.extend(unknown.then_some(Action::Answer(Answer::NotSent)));
        }
        for call in &self.late {
            actions.extend([false, true].map(|works| Action::Late { call: call.clone(), works }));
        }
        if self.checking.is_some() {
            actions.push(Action::Look { truthful: true });
            if scope.lies {
                actions.push(Action::Look { truthful: false });
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
            actions.push(Action::NewGeneration { works: false, capabilities });
            if self.running.is_some() {
                actions.push(Action::NewGeneration { works: true, capabilities });
            }
        }
    }

    fn meddling(&self, scope: &Scope, actions: &mut Vec<Action>) {
        if self.staging == Mount::Right && self.running.is_none() && self.checking.is_none() {
            actions.push(Action::Unmount(Lost::Staging));
        }
        for (mount, consumer) in self.targets.iter().zip(&scope.consumers) {
            if *mount == Mount::Right && self.running.is_none() && self.checking.is_none() {
                actions.push(Action::Unmount(Lost::Target(consumer.clone())));
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
