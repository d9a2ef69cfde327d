//! Volume expansion: the controller phase, then the node phase.

use super::call::Call;
use super::event::{Effect, RejectReason, Waiter};
use super::outcome::{Failure, Outcome};
use super::snapshot::{Expansion, ExpansionPhase};
use super::state::Rpc;
use super::volume::Volume;

impl Volume {
    pub(super) fn expand(&mut self, required_bytes: u64, effects: &mut Vec<Effect>) {
        let pending = self.record.expansion;
        let granted_bytes = pending.map_or(self.record.granted_bytes, |expansion| expansion.required_bytes);
        if required_bytes < granted_bytes || required_bytes == 0 {
            return effects.push(Effect::Rejected(RejectReason::Shrink { required_bytes, granted_bytes }));
        }
        if !self.capabilities.controller_expand && !self.capabilities.node_expand {
            return effects.push(Effect::Rejected(RejectReason::CannotExpand));
        }
        self.waiters.insert(Waiter::Expansion);
        // A new request permits a new attempt.
        self.never_retry.retain(|rpc| !rpc.expands());
        let phase = match pending {
            None if required_bytes <= self.record.capacity_bytes => {
                self.record.granted_bytes = required_bytes;
                return;
            }
            // The driver may be executing the node phase, which must end before the controller is called again.
            Some(Expansion { phase: ExpansionPhase::Node, .. }) => ExpansionPhase::Node,
            Some(Expansion { phase: ExpansionPhase::Controller, .. }) | None => ExpansionPhase::Controller,
        };
        self.record.expansion = Some(Expansion { required_bytes, phase });
    }

    pub(super) fn expansion_succeeded(
        &mut self,
        call: &Call,
        outcome: Outcome,
        requested_bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.record.calling = None;
        let Some(Expansion { required_bytes, .. }) = self.record.expansion else { return };
        let larger_size_requested = required_bytes > requested_bytes;
        let (bytes, node_expansion_required) = match outcome {
            Outcome::Expanded { capacity_bytes, node_expansion_required } => {
                (capacity_bytes, node_expansion_required)
            }
            _ => (0, true),
        };
        // A response without a size confirms the requested size, which is unknown here if a larger one was
        // requested since.
        let bytes = if bytes == 0 && !larger_size_requested { required_bytes } else { bytes };
        if call.rpc == Rpc::ControllerExpandVolume {
            if bytes >= required_bytes {
                self.failed_calls.remove(&call.part());
                self.record.capacity_bytes = bytes;
                self.record.expansion = node_expansion_required
                    .then_some(Expansion { required_bytes, phase: ExpansionPhase::Node });
                self.grant(required_bytes);
            } else if !larger_size_requested {
                self.failed(call, Failure::TooSmall, effects);
            }
            return;
        }
        self.failed_calls.remove(&call.part());
        if self.capabilities.controller_expand && self.record.capacity_bytes < required_bytes {
            self.record.expansion = Some(Expansion { required_bytes, phase: ExpansionPhase::Controller });
        } else if !larger_size_requested {
            self.record.capacity_bytes = self.record.capacity_bytes.max(bytes).max(required_bytes);
            self.record.expansion = None;
            self.grant(required_bytes);
        }
    }

    fn grant(&mut self, required_bytes: u64) {
        if self.record.expansion.is_none() {
            self.record.granted_bytes = required_bytes;
        }
    }

    pub(super) fn abandon_expansion(&mut self) {
        self.record.expansion = None;
        self.record.calling = None;
        self.waiters.remove(&Waiter::Expansion);
    }

    /// Skips the phases that the driver does not support, and abandons the expansion of a volume without consumers: no
    /// request for it remains, and the record would never be removed.
    pub(super) fn advance_expansion(&mut self, effects: &mut Vec<Effect>) {
        let Some(Expansion { required_bytes, phase }) = self.record.expansion else { return };
        let expand_running = self.uncertain_calls.iter().any(Call::is_controller_expand);
        if phase == ExpansionPhase::Controller && !self.capabilities.controller_expand && !expand_running {
            self.record.expansion = Some(Expansion { required_bytes, phase: ExpansionPhase::Node });
        }
        let Some(Expansion { phase, .. }) = self.record.expansion else { return };
        if phase == ExpansionPhase::Node && !self.capabilities.node_expand {
            self.record.capacity_bytes = self.record.capacity_bytes.max(required_bytes);
            self.record.expansion = None;
            self.grant(required_bytes);
        } else if self.record.targets.is_empty()
            && self.record.base == self.lowest_base()
            && !self.record.attached_here
            && !expand_running
            && self.in_flight.is_none()
        {
            if let Some(waiter) = self.waiters.take(&Waiter::Expansion) {
                let call = Call::of_volume(phase.rpc());
                effects.push(Effect::Failed { waiter, call, failure: Failure::Abandoned });
            }
            self.abandon_expansion();
        }
    }
}
