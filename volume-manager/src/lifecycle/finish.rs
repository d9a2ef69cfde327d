//! What the end of a call, and the look into the mount table after it, change.

use super::call::{Call, Check, Finding};
use super::event::{Effect, Waiter};
use super::outcome::{Failure, Outcome};
use super::snapshot::{Base, TargetState};
use super::state::{Direction, Rpc};
use super::volume::{Activity, Trouble, Volume, is_growth};

impl Volume {
    pub(super) fn finished(&mut self, call: &Call, outcome: Outcome, effects: &mut Vec<Effect>) {
        let (orphaned, outgrown) = match &self.activity {
            Activity::Call { call: running, orphaned, outgrown } if running == call => (*orphaned, *outgrown),
            _ => return,
        };
        self.activity = Activity::Nothing;
        if outcome == Outcome::NotSent && !self.may_be_running(call) {
            self.take_back();
            return self.failed(call, Failure::NotSent, effects);
        }
        self.unsent = None;
        match outcome {
            Outcome::Ok | Outcome::Expanded { .. } | Outcome::Gone if call.rpc.shows_in_mount_table() => {
                self.ended(call);
                let check = Check::After(call.clone());
                self.activity = Activity::Check(check.clone());
                effects.push(Effect::Check(check));
            }
            Outcome::Ok | Outcome::Expanded { .. } => {
                self.ended(call);
                match call.rpc {
                    Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => {
                        self.expansion_succeeded(call, outcome, outgrown, effects);
                    }
                    _ => self.succeeded(call),
                }
            }
            Outcome::Gone | Outcome::Final => self.failed(call, Failure::Final, effects),
            Outcome::Infeasible => self.failed(call, Failure::Infeasible, effects),
            Outcome::NeverRetry => self.failed(call, Failure::NeverRetry, effects),
            Outcome::Uncertain | Outcome::NotSent => {
                self.suspect_of_running(call, orphaned);
                self.failed(call, Failure::Uncertain, effects);
            }
        }
    }

    pub(super) fn checked(&mut self, check: &Check, finding: Finding, effects: &mut Vec<Effect>) {
        if !matches!(&self.activity, Activity::Check(asked) if asked == check) {
            return;
        }
        self.activity = Activity::Nothing;
        match (check, finding) {
            (Check::Unused, Finding::Agrees) => self.unused = true,
            (Check::Unused, found) => {
                let failure = if found == Finding::Unknown { Failure::Unchecked } else { Failure::InUse };
                self.failed(&Call::of_volume(Rpc::NodeUnstageVolume), failure, effects);
            }
            (Check::After(call), Finding::Agrees) => self.succeeded(call),
            (Check::After(call), Finding::Unknown) => self.failed(call, Failure::Unchecked, effects),
            (Check::After(call), found) => {
                self.undo_what_is_wrong(call, found);
                self.failed(call, Failure::Contradicted(found), effects);
            }
        }
    }

    /// What is wrongly mounted goes before the right thing comes. A target that was published and has no mount any more
    /// goes as well, as if it had been seen to be lost. One that is published and got a second mount is left to its consumer:
    /// that is told of by the failure, and undone when it is released.
    fn undo_what_is_wrong(&mut self, call: &Call, found: Finding) {
        match call.rpc {
            Rpc::NodeStageVolume if found != Finding::Missing && self.record.base == Base::NodeStage => {
                self.record.base = Base::NodeUnstage;
            }
            Rpc::NodePublishVolume => {
                let Some(target) = self.target(call) else { return };
                let (wanted, republished) = (target.wanted, target.state == TargetState::Republish);
                if republished == (found == Finding::Missing) {
                    target.state = TargetState::NodeUnpublish;
                    let consumer = call.consumer.clone().filter(|_| wanted && republished);
                    self.waiting.extend(consumer);
                }
            }
            _ => {}
        }
    }

    /// A call other than those of expansion has done what it should. What it is about may be on its way elsewhere by now.
    fn succeeded(&mut self, call: &Call) {
        self.record.calling = None;
        self.record.attached_here &= call.rpc != Rpc::ControllerUnpublishVolume;
        let ladder = self.ladder();
        let base = match (call.rpc, self.record.base) {
            (Rpc::ControllerPublishVolume, Base::ControllerPublish) => Base::NodeReady,
            (Rpc::ControllerUnpublishVolume, Base::ControllerUnpublish) => Base::Created,
            (Rpc::NodeStageVolume, Base::NodeStage) => Base::VolReady,
            (Rpc::NodeUnstageVolume, Base::NodeUnstage) => ladder.unstaged(),
            (_, base) => base,
        };
        self.record.base = ladder.fit(base);
        let mut wanted = self.is_wanted();
        let mut republished = false;
        if let Some(target) = self.target(call) {
            wanted = target.wanted;
            republished = wanted && target.state == TargetState::Republish;
            target.state = match (call.rpc, target.state) {
                (Rpc::NodePublishVolume, TargetState::NodePublish | TargetState::Republish) => {
                    TargetState::Published
                }
                (Rpc::NodeUnpublishVolume, TargetState::NodeUnpublish) => TargetState::Absent,
                (_, state) => state,
            };
        }
        if republished && call.rpc == Rpc::NodePublishVolume {
            self.waiting.extend(call.consumer.clone());
        }
        // The back-off of what was undone because it was wrong goes on, or it would be a hot loop.
        let undone = |trouble: &Trouble| {
            call.rpc.direction() == Direction::Down && wanted && trouble.call.rpc != call.rpc
        };
        if !self.troubles.get(&call.part()).is_some_and(undone) {
            self.troubles.remove(&call.part());
        }
    }

    /// The end of a call is not known, so it may still be running, unless its driver is gone.
    fn suspect_of_running(&mut self, call: &Call, orphaned: bool) {
        self.ended(call);
        let most = self.policy.quiesce_attempts;
        if orphaned || most.is_some_and(|most| self.unknown_ends(call) >= most) {
            return;
        }
        if is_growth(call) {
            self.growing = true;
        } else {
            self.suspect = Some(call.clone());
        }
    }

    /// How often this call ended unknown in a row, with the end that is just told, as far as the policy counts.
    fn unknown_ends(&self, call: &Call) -> u8 {
        let trouble = self.troubles.get(&call.part()).filter(|trouble| trouble.call == *call);
        let before = trouble.map_or(0, |trouble| trouble.unknown);
        self.policy.quiesce_attempts.map_or(0, |most| before.saturating_add(1).min(most))
    }

    /// No earlier one of this call runs any more, nor of any other that was waited for: none but this one was sent since.
    fn ended(&mut self, call: &Call) {
        if is_growth(call) {
            self.growing = false;
        } else {
            self.suspect = None;
        }
    }

    pub(super) fn failed(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        if !matches!(failure, Failure::Uncertain | Failure::InUse | Failure::Unchecked | Failure::NotSent) {
            self.ended(call);
        }
        if failure == Failure::NeverRetry {
            self.never.insert(call.rpc);
        }
        if failure.is_told() {
            let expansion = matches!(call.rpc, Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume);
            let waiters = self.waiting_for(call).into_iter().map(Waiter::Consumer);
            let waiters = waiters.chain((expansion && self.expanded).then_some(Waiter::Expansion));
            effects.extend(waiters.map(|waiter| Effect::Failed { waiter, call: call.clone(), failure }));
        }
        if self.keeps_what_was(call, failure) {
            self.troubles.remove(&call.part());
            return;
        }
        let most = self.policy.counted_attempts.max(1);
        let attempts = self.troubles.get(&call.part()).map_or(0, |trouble| trouble.attempts);
        let attempt = attempts.saturating_add(1).min(most);
        let repeated = self.is_repeated(call, failure);
        let unknown = if failure == Failure::Uncertain { self.unknown_ends(call) } else { 0 };
        let trouble = Trouble { call: call.clone(), failure, attempts: attempt, unknown, waits: repeated };
        self.troubles.insert(call.part(), trouble);
        if repeated {
            effects.push(Effect::BackOff { call: call.clone(), failure, attempt });
        } else if failure == Failure::NeverRetry {
            for consumer in self.waiting_for(call) {
                self.waiting.remove(&consumer);
            }
        }
    }

    /// Whether the call is made again when its time has come.
    fn is_repeated(&self, call: &Call, failure: Failure) -> bool {
        match failure {
            Failure::NeverRetry | Failure::Infeasible | Failure::Abandoned => false,
            // It comes again after what it did was undone.
            Failure::Contradicted(Finding::Wrong) => true,
            _ => self.may_be_running(call) || self.wishes().contains(call),
        }
    }

    /// Whether the failure leaves things as they were before the call: a target stays published, a size what it is.
    fn keeps_what_was(&mut self, call: &Call, failure: Failure) -> bool {
        let known = matches!(
            failure,
            Failure::Final
                | Failure::NeverRetry
                | Failure::Infeasible
                | Failure::NotSent
                | Failure::Contradicted(Finding::Wrong)
        );
        match call.rpc {
            Rpc::NodePublishVolume if known => {
                let Some(target) = self.target(call).filter(|target| target.state == TargetState::Republish)
                else {
                    return false;
                };
                target.state = TargetState::Published;
                self.record.calling = None;
                true
            }
            Rpc::ControllerExpandVolume if matches!(failure, Failure::NeverRetry | Failure::Infeasible) => {
                self.give_up_expansion();
                true
            }
            Rpc::NodeExpandVolume if failure == Failure::Infeasible => {
                self.never.insert(call.rpc);
                self.expanded = false;
                false
            }
            _ => false,
        }
    }
}
