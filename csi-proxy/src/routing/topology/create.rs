//! `CreateVolume`.

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::{Delivery, Method};
use prost::Message as _;

use super::{Answer, Inquiry, TopologyRouter};
use crate::call::{Fault, Origin, Outcome, protobuf};
use crate::dispatcher::operation::{Digest, MAX_SUBJECT};
use crate::relay::Relay;
use crate::routing::durable::OpenAttempt;
use crate::routing::{Ballot, End, Refusal, VolumeRequest};

impl TopologyRouter {
    pub(super) async fn create(&self, relay: &dyn Relay, inquiry: &Inquiry) -> Result<Answer, Refusal> {
        let request = VolumeRequest::read(&inquiry.body)?;
        let (open, topology) = match self.attempt(&request).await {
            // The last word on who is there is not to be an old one.
            Err(
                Refusal::Offline { .. }
                | Refusal::AllOffline
                | Refusal::NoNodeThere
                | Refusal::NotKnown { .. },
            ) => {
                self.drivers.ask_absent().await;
                self.attempt(&request).await?
            }
            other => other?,
        };
        let node = open.node().clone();
        let (message, outcome) = self.ask(relay, &node, inquiry).await;
        let volume = message.as_ref().map(|message| csi::CreateVolumeResponse::decode(message.clone()));
        let volume = volume.and_then(Result::ok).and_then(|response| response.volume);
        let Some(message) = message else {
            // That it could not be written is told, and changes nothing in what the driver said.
            let _ = open.end(end_of(&outcome)).await;
            return Ok((None, outcome));
        };
        let Some(volume) = volume.filter(|volume| {
            let id = volume.volume_id.len();
            id > 0 && id <= MAX_SUBJECT
        }) else {
            // Dropped, the attempt is uncertain: something may have been made.
            let reason = "the driver's answer to CreateVolume has no volume id that can be used".to_owned();
            return Ok((None, Fault::Protocol { reason }.into()));
        };
        open.end(End::Made(&volume.volume_id)).await?;
        self.rooms().changed(&node);
        let message = with_topology(message, &topology);
        Ok((Some(message), outcome))
    }

    /// The attempt to make a volume, and where its node is.
    async fn attempt(&self, request: &VolumeRequest) -> Result<(OpenAttempt, csi::Topology), Refusal> {
        let candidates = self.candidates(&class_of(&request.parameters));
        let only = self.only();
        let default = self.settings.default_node.as_ref().or(only.as_ref());
        let ballot = Ballot { candidates: &candidates, default, offline: self.settings.offline };
        let open = self.placements.attempt(request, ballot).await?;
        match self.known_topology(open.node()) {
            Some(topology) => Ok((open, topology)),
            // A name that was placed before a restart, on a node that has not been asked since. A volume of which is not said where it
            // is would let its pod go anywhere.
            None => {
                let refusal = Refusal::not_reached(open.node());
                open.end(End::NeverLeft).await?;
                Err(refusal)
            }
        }
    }
}

/// The fields of CreateVolumeResponse with the volume, and of a volume with its topologies.
const VOLUME: u32 = 1;
const ACCESSIBLE_TOPOLOGY: u32 = 5;

/// The answer to a CreateVolume with this topology, if its volume names none. Without one a pod could be put where its volume is not.
pub(crate) fn with_topology(message: Bytes, topology: &csi::Topology) -> Bytes {
    let known = csi::CreateVolumeResponse::decode(message.clone()).ok().and_then(|answer| answer.volume);
    if topology.segments.is_empty() || known.is_none_or(|volume| !volume.accessible_topology.is_empty()) {
        return message;
    }
    protobuf::with(&message, VOLUME, &protobuf::with(&[], ACCESSIBLE_TOPOLOGY, &topology.encode_to_vec()))
}

/// What a failed attempt says of the volume.
fn end_of(outcome: &Outcome) -> End<'static> {
    match &outcome.origin {
        Origin::Driver if outcome.code.may_be_running() => End::Uncertain,
        Origin::Driver => End::Refused,
        Origin::Relay(fault) if fault.delivery() == Delivery::NotSent => End::NeverLeft,
        Origin::Relay(_) => End::Uncertain,
        Origin::Endpoint => End::Uncertain,
    }
}

/// Tells storage classes apart by their parameters.
pub(super) fn class_of(parameters: &std::collections::BTreeMap<String, String>) -> Digest {
    let parameters = parameters.clone();
    let request = csi::GetCapacityRequest { parameters, ..Default::default() };
    Digest::of(Method::GetCapacity.request_shape(), &request.encode_to_vec())
}
