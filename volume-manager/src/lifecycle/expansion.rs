//! Making a volume larger: the controller half, then the node half.

use super::call::Call;
use super::event::{Effect, Refusal, Waiter};
use super::outcome::{Failure, Outcome};
use super::snapshot::{Expansion, Half};
use super::state::Rpc;
use super::volume::Volume;

impl Volume {
    pub(super) fn expand(&mut self, required_bytes: u64, effects: &mut Vec<Effect>) {
        let pending = self.record.expansion;
        let granted_bytes = pending.map_or(self.record.granted_bytes, |expansion| expansion.required_bytes);
        if required_bytes < granted_bytes || required_bytes == 0 {
            return effects.push(Effect::Refused(Refusal::Shrink { required_bytes, granted_bytes }));
        }
        if !self.capabilities.controller_expand && !self.capabilities.node_expand {
            return effects.push(Effect::Refused(Refusal::CannotExpand));
        }
        self.waiting.insert(Waiter::Expansion);
        // Asked for anew, it may be tried anew.
        self.never.retain(|rpc| !rpc.expands());
        let half = match pending {
            None if required_bytes <= self.record.capacity_bytes => {
                self.record.granted_bytes = required_bytes;
                return;
            }
            // The driver may be at the node half: it has to end before the controller is asked for more.
            Some(Expansion { half: Half::Node, .. }) => Half::Node,
            Some(Expansion { half: Half::Controller, .. }) | None => Half::Controller,
        };
        self.record.expansion = Some(Expansion { required_bytes, half });
    }

    pub(super) fn expansion_succeeded(
        &mut self,
        call: &Call,
        outcome: Outcome,
        asked_bytes: u64,
        effects: &mut Vec<Effect>,
    ) {
        self.record.calling = None;
        let Some(Expansion { required_bytes, .. }) = self.record.expansion else { return };
        let outgrown = required_bytes > asked_bytes;
        let (bytes, node_half) = match outcome {
            Outcome::Expanded { capacity_bytes, node_expansion_required } => {
                (capacity_bytes, node_expansion_required)
            }
            _ => (0, true),
        };
        // A response without a size means the one that was asked for; which that was is not known if it grew since.
        let bytes = if bytes == 0 && !outgrown { required_bytes } else { bytes };
        if call.rpc == Rpc::ControllerExpandVolume {
            if bytes >= required_bytes {
                self.troubles.remove(&call.part());
                self.record.capacity_bytes = bytes;
                self.record.expansion = node_half.then_some(Expansion { required_bytes, half: Half::Node });
                self.grant(required_bytes);
            } else if !outgrown {
                self.failed(call, Failure::TooSmall, effects);
            }
            return;
        }
        self.troubles.remove(&call.part());
        if self.capabilities.controller_expand && self.record.capacity_bytes < required_bytes {
            self.record.expansion = Some(Expansion { required_bytes, half: Half::Controller });
        } else if !outgrown {
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

    pub(super) fn give_up_expansion(&mut self) {
        self.record.expansion = None;
        self.record.calling = None;
        self.waiting.remove(&Waiter::Expansion);
    }

    /// Skips the halves that the driver does not have, and gives up the expansion of a volume that nobody uses any more:
    /// nothing would be left that asks for it, and the record would never go.
    pub(super) fn sweep_expansion(&mut self, effects: &mut Vec<Effect>) {
        let Some(Expansion { required_bytes, half }) = self.record.expansion else { return };
        let growing = self.suspects.iter().any(Call::is_growth);
        if half == Half::Controller && !self.capabilities.controller_expand && !growing {
            self.record.expansion = Some(Expansion { required_bytes, half: Half::Node });
        }
        let Some(Expansion { half, .. }) = self.record.expansion else { return };
        if half == Half::Node && !self.capabilities.node_expand {
            self.record.capacity_bytes = self.record.capacity_bytes.max(required_bytes);
            self.record.expansion = None;
            self.grant(required_bytes);
        } else if self.record.targets.is_empty()
            && self.record.base == self.floor()
            && !self.record.attached_here
            && !growing
            && self.in_flight.is_none()
        {
            if let Some(waiter) = self.waiting.take(&Waiter::Expansion) {
                let call = Call::of_volume(half.rpc());
                effects.push(Effect::Failed { waiter, call, failure: Failure::Abandoned });
            }
            self.give_up_expansion();
        }
    }
}
