//! `CreateVolume`.

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use prost::Message as _;
use tokio::time::Instant;

use super::way::{Answer, Way};
use super::{Inquiry, TopologyRouter};
use crate::call::NodeId;
use crate::fault::Fault;
use crate::operation::{Digest, MAX_SUBJECT};
use crate::outcome::{Origin, Outcome};
use crate::route::keeper::OpenAttempt;
use crate::route::{Ballot, End, Refusal, VolumeRequest, field};
use csi_proto::Code;

/// The field of the response with the volume, and the field of a volume with its topologies.
const VOLUME: u32 = 1;
const ACCESSIBLE_TOPOLOGY: u32 = 5;

impl TopologyRouter {
    pub(super) async fn create(&self, way: &Way<'_>, inquiry: &Inquiry) -> Result<Answer, Refusal> {
        let request = VolumeRequest::read(&inquiry.body)?;
        let open = match self.attempt(&request).await {
            // The last word on who is there is not to be an old one.
            Err(
                Refusal::Offline { .. }
                | Refusal::AllOffline
                | Refusal::NoNodeThere
                | Refusal::NotKnown { .. },
            ) => {
                self.survey_absent(way).await;
                self.attempt(&request).await?
            }
            other => other?,
        };
        let node = open.node().clone();
        let (message, outcome) = self.ask(way, &node, inquiry).await;
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
        self.nodes.room_changed(&node);
        let message = self.with_topology(&node, message, &volume);
        Ok((Some(message), outcome))
    }

    async fn attempt(&self, request: &VolumeRequest) -> Result<OpenAttempt, Refusal> {
        let candidates = self.nodes.candidates(&class_of(&request.parameters), Instant::now());
        let only = self.nodes.only();
        let default = self.settings.default_node.as_ref().or(only.as_ref());
        let ballot = Ballot { candidates: &candidates, default, offline: self.settings.offline };
        self.keeper.attempt(request, ballot).await
    }

    /// The answer with the node's topology, if the driver gave none: without one a pod could be put where its volume is not.
    fn with_topology(&self, node: &NodeId, message: bytes::Bytes, volume: &csi::Volume) -> bytes::Bytes {
        let topology = self.nodes.topology(node);
        if topology.segments.is_empty() || !volume.accessible_topology.is_empty() {
            return message;
        }
        let addition = field::with(&[], ACCESSIBLE_TOPOLOGY, &topology.encode_to_vec());
        field::with(&message, VOLUME, &addition)
    }
}

/// What a failed attempt says of the volume.
fn end_of(outcome: &Outcome) -> End<'static> {
    match &outcome.origin {
        Origin::Driver => match outcome.code {
            Code::CANCELLED | Code::DEADLINE_EXCEEDED | Code::UNAVAILABLE | Code::ABORTED => End::Uncertain,
            _ => End::Refused,
        },
        Origin::Relay(fault) => match &**fault {
            // `NodeOffline` is no proof: the request may have been delivered before a link was lost, and be sent again.
            Fault::HubUnreachable { .. } | Fault::RequestTooLarge { .. } => End::NeverLeft,
            _ => End::Uncertain,
        },
        Origin::Endpoint => End::Uncertain,
    }
}

/// Tells storage classes apart by their parameters.
pub(super) fn class_of(parameters: &std::collections::BTreeMap<String, String>) -> Digest {
    let parameters = parameters.clone();
    let request = csi::GetCapacityRequest { parameters, ..Default::default() };
    Digest::of(Method::GetCapacity.request_shape(), &request.encode_to_vec())
}
