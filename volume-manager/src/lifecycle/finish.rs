//! The effects of a finished call besides the state of the volume: notifications and retries.

use super::call::Call;
use super::event::{Effect, Waiter};
use super::outcome::{Failure, Mismatch, Outcome};
use super::snapshot::TargetState;
use super::state::{Direction, Rpc};
use super::transitions::{base_after_failure, target_after_failure, target_after_success};
use super::volume::{FailedCall, InFlight, Volume};

impl Volume {
    pub(super) fn finished(&mut self, call: &Call, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(InFlight { driver_restarted, required_bytes, .. }) =
            self.in_flight.take_if(|running| running.call == *call)
        else {
            return;
        };
        let was_not_sent = matches!(outcome, Outcome::Failed(Failure::NotSent | Failure::InUse));
        if was_not_sent && !self.may_be_running(call) {
            self.undo_unsent_intent();
        }
        self.unsent_intent = None;
        match outcome {
            // An earlier attempt was sent, and its outcome is unknown.
            Outcome::Failed(Failure::NotSent) if self.may_be_running(call) => {
                self.uncertain(call, driver_restarted, effects);
            }
            Outcome::Failed(Failure::Uncertain) => self.uncertain(call, driver_restarted, effects),
            Outcome::Failed(failure) => self.failed(call, failure, effects),
            Outcome::Ok | Outcome::Expanded { .. } => {
                self.clear_uncertain(call);
                if call.rpc.expands() {
                    self.expansion_succeeded(call, outcome, required_bytes, effects);
                } else {
                    self.succeeded(call);
                }
            }
        }
    }

    /// Handles the success of a call that is not part of an expansion.
    fn succeeded(&mut self, call: &Call) {
        self.record.calling = None;
        self.record.attached_here &= call.rpc != Rpc::ControllerUnpublishVolume;
        self.record.base = self.base_after_success(call.rpc);
        self.normalize_base();
        let mut wanted = self.is_wanted();
        let mut republished = false;
        if let Some(target) = self.target(call) {
            wanted = target.wanted;
            republished = wanted && target.state == TargetState::Republish;
            target.state = target_after_success(call.rpc, target.state);
        }
        if republished && call.rpc == Rpc::NodePublishVolume {
            self.waiters.extend(call.consumer.clone().map(Waiter::Consumer));
        }
        // The back-off continues after a wrong mount was undone. Otherwise the retries would form a hot loop.
        let undone = |failed: &FailedCall| {
            call.rpc.direction() == Direction::Down && wanted && failed.call.rpc != call.rpc
        };
        if !self.failed_calls.get(&call.part()).is_some_and(undone) {
            self.failed_calls.remove(&call.part());
        }
    }

    /// Records that the outcome of a call is unknown: it may still be running, unless its driver was restarted.
    fn uncertain(&mut self, call: &Call, driver_restarted: bool, effects: &mut Vec<Effect>) {
        self.clear_uncertain(call);
        let limit = self.policy.quiesce_attempts;
        if !driver_restarted && limit.is_none_or(|limit| self.uncertain_attempts(call) < limit) {
            self.uncertain_calls.insert(call.clone());
        }
        self.failed(call, Failure::Uncertain, effects);
    }

    /// Returns the number of consecutive attempts of this call with an unknown outcome, including the current one,
    /// capped by the policy.
    fn uncertain_attempts(&self, call: &Call) -> u8 {
        let failed = self.failed_calls.get(&call.part()).filter(|failed| failed.call == *call);
        let before = failed.map_or(0, |failed| failed.unknown);
        self.policy.quiesce_attempts.map_or(0, |limit| before.saturating_add(1).min(limit))
    }

    /// Clears the earlier attempts of this call, and of any other uncertain call: no other call was sent since.
    fn clear_uncertain(&mut self, call: &Call) {
        self.uncertain_calls
            .retain(|uncertain| uncertain.is_controller_expand() != call.is_controller_expand());
    }

    pub(super) fn failed(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        if !matches!(failure, Failure::Uncertain | Failure::InUse | Failure::NotSent) {
            self.clear_uncertain(call);
        }
        let is_unchanged = self.apply_failure(call, failure);
        if failure == Failure::NeverRetry {
            self.never_retry.insert(call.rpc);
        }
        if failure.is_reported() {
            let waiters = self.waiters_for(call).into_iter();
            effects.extend(waiters.map(|waiter| Effect::Failed { waiter, call: call.clone(), failure }));
        }
        let given_up = call.rpc == Rpc::ControllerExpandVolume
            && matches!(failure, Failure::NeverRetry | Failure::Infeasible);
        if given_up {
            self.abandon_expansion();
        }
        if is_unchanged || given_up {
            self.failed_calls.remove(&call.part());
        } else {
            self.schedule_retry(call, failure, effects);
        }
    }

    /// Applies the transition for a failed call. Returns whether the volume is back in its state before the call, so
    /// that no retry is needed.
    fn apply_failure(&mut self, call: &Call, failure: Failure) -> bool {
        self.record.base = base_after_failure(call.rpc, self.record.base, failure);
        let Some(target) = self.target(call) else { return false };
        let (wanted, before) = (target.wanted, target.state);
        target.state = target_after_failure(call.rpc, before, failure);
        let after = target.state;
        if before == TargetState::Republish && after == TargetState::NodeUnpublish && wanted {
            self.waiters.extend(call.consumer.clone().map(Waiter::Consumer));
        }
        let is_unchanged = before != after && after == TargetState::Published;
        if is_unchanged {
            self.record.calling = None;
        }
        is_unchanged
    }

    fn schedule_retry(&mut self, call: &Call, failure: Failure, effects: &mut Vec<Effect>) {
        if call.rpc == Rpc::NodeExpandVolume && failure == Failure::Infeasible {
            self.never_retry.insert(call.rpc);
            self.waiters.remove(&Waiter::Expansion);
        }
        let limit = self.policy.counted_attempts.max(1);
        let attempts = self.failed_calls.get(&call.part()).map_or(0, |failed| failed.attempts);
        let attempt = attempts.saturating_add(1).min(limit);
        let backing_off = match failure {
            Failure::NeverRetry | Failure::Infeasible | Failure::Abandoned => false,
            // The call is repeated after its effect was undone.
            Failure::Contradicted(Mismatch::Wrong) => true,
            _ => self.may_be_running(call) || self.candidate_calls().contains(call),
        };
        let unknown = if failure == Failure::Uncertain { self.uncertain_attempts(call) } else { 0 };
        let failed = FailedCall { call: call.clone(), failure, attempts: attempt, unknown, backing_off };
        self.failed_calls.insert(call.part(), failed);
        if backing_off {
            effects.push(Effect::BackOff { call: call.clone(), failure, attempt });
        } else if failure == Failure::NeverRetry && !call.rpc.expands() {
            for waiter in self.waiters_for(call) {
                self.waiters.remove(&waiter);
            }
        }
    }
}
