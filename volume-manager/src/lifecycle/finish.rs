//! What the end of a call changes besides the state of the volume: who is answered, and when the call is repeated.

use super::call::Call;
use super::event::{Effect, Waiter};
use super::outcome::{Failure, Mismatch, Outcome};
use super::snapshot::TargetState;
use super::state::{Direction, Rpc};
use super::transitions::{shared_failed, target_after, target_failed};
use super::volume::{InFlight, Trouble, Volume};

impl Volume {
    pub(super) fn finished(&mut self, call: &Call, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(InFlight { orphaned, required_bytes, .. }) =
            self.in_flight.take_if(|running| running.call == *call)
        else {
            return;
        };
        let never_sent = matches!(outcome, Outcome::Failed(Failure::NotSent | Failure::InUse));
        if never_sent && !self.may_be_running(call) {
            self.take_back();
        }
        self.unsent = None;
        match outcome {
            // An earlier one of its kind was sent, and how that one ended is not known.
            Outcome::Failed(Failure::NotSent) if self.may_be_running(call) => {
                self.uncertain(call, orphaned, effects);
            }
            Outcome::Failed(Failure::Uncertain) => self.uncertain(call, orphaned, effects),
            Outcome::Failed(failure) => self.failed(call, failure, effects),
            Outcome::Ok | Outcome::Expanded { .. } => {
                self.ended(call);
                if call.rpc.expands() {
                    self.expansion_succeeded(call, outcome, required_bytes, effects);
                } else {
                    self.succeeded(call);
                }
            }
        }
    }

    /// A call other than those of expansion has done what it should.
    fn succeeded(&mut self, call: &Call) {
        self.record.calling = None;
        self.record.attached_here &= call.rpc != Rpc::ControllerUnpublishVolume;
        self.record.base = self.shared_after(call.rpc);
        self.fit_base();
        let mut wanted = self.is_wanted();
        let mut republished = false;
        if let Some(target) = self.target(call) {
            wanted = target.wanted;
            republished = wanted && target.state == TargetState::Republish;
            target.state = target_after(call.rpc, target.state);
        }
        if republished && call.rpc == Rpc::NodePublishVolume {
            self.waiting.extend(call.consumer.clone().map(Waiter::Consumer));
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
    fn uncertain(&mut self, call: &Call, orphaned: bool, effects: &mut Vec<Effect>) {
        self.ended(call);
        let most = self.policy.quiesce_attempts;
        if !orphaned && most.is_none_or(|most| self.unknown_ends(call) < most) {
            self.suspects.insert(call.clone());
        }
        self.failed(call, Failure::Uncertain, effects);
    }

    /// How often this call ended unknown in a row, with the end that is just told, as far as the policy counts.
    fn unknown_ends(&self, call: &Call) -> u8 {
        let trouble = self.troubles.get(&call.part()).filter(|trouble| trouble.call == *call);
        let before = trouble.map_or(0, |trouble| trouble.unknown);
        self.policy.quiesce_attempts.map_or(0, |most| before.saturating_add(1).min(most))
    }

    /// No earlier one of this call runs any more, nor of any other that was waited for: none but this one was sent since.
    fn ended(&mut self, call: &Call) {
        self.suspects.retain(|suspect| suspect.is_growth() != call.is_growth());
    }

    pub(super) fn failed(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        if !matches!(failure, Failure::Uncertain | Failure::InUse | Failure::NotSent) {
            self.ended(call);
        }
        let is_settled = self.move_on_failure(call, failure);
        if failure == Failure::NeverRetry {
            self.never.insert(call.rpc);
        }
        if failure.is_told() {
            let waiters = self.waiting_for(call).into_iter();
            effects.extend(waiters.map(|waiter| Effect::Failed { waiter, call: call.clone(), failure }));
        }
        let given_up = call.rpc == Rpc::ControllerExpandVolume
            && matches!(failure, Failure::NeverRetry | Failure::Infeasible);
        if given_up {
            self.give_up_expansion();
        }
        if is_settled || given_up {
            self.troubles.remove(&call.part());
        } else {
            self.repeat_later(call, failure, effects);
        }
    }

    /// Moves what the call was about to where its failure leads. Answers whether that is where it was before the call, so
    /// that nothing is to be repeated.
    fn move_on_failure(&mut self, call: &Call, failure: Failure) -> bool {
        self.record.base = shared_failed(call.rpc, self.record.base, failure);
        let Some(target) = self.target(call) else { return false };
        let (wanted, before) = (target.wanted, target.state);
        target.state = target_failed(call.rpc, before, failure);
        let after = target.state;
        if before == TargetState::Republish && after == TargetState::NodeUnpublish && wanted {
            self.waiting.extend(call.consumer.clone().map(Waiter::Consumer));
        }
        let is_settled = before != after && after == TargetState::Published;
        if is_settled {
            self.record.calling = None;
        }
        is_settled
    }

    fn repeat_later(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        if call.rpc == Rpc::NodeExpandVolume && failure == Failure::Infeasible {
            self.never.insert(call.rpc);
            self.waiting.remove(&Waiter::Expansion);
        }
        let most = self.policy.counted_attempts.max(1);
        let attempts = self.troubles.get(&call.part()).map_or(0, |trouble| trouble.attempts);
        let attempt = attempts.saturating_add(1).min(most);
        let waits = match failure {
            Failure::NeverRetry | Failure::Infeasible | Failure::Abandoned => false,
            // It comes again after what it did was undone.
            Failure::Contradicted(Mismatch::Wrong) => true,
            _ => self.may_be_running(call) || self.wishes().contains(call),
        };
        let unknown = if failure == Failure::Uncertain { self.unknown_ends(call) } else { 0 };
        let trouble = Trouble { call: call.clone(), failure, attempts: attempt, unknown, waits };
        self.troubles.insert(call.part(), trouble);
        if waits {
            effects.push(Effect::BackOff { call: call.clone(), failure, attempt });
        } else if failure == Failure::NeverRetry && !call.rpc.expands() {
            for waiter in self.waiting_for(call) {
                self.waiting.remove(&waiter);
            }
        }
    }
}
