//! `ControllerPublishVolume` and `ControllerUnpublishVolume`.

use csi_proto::Method;

use super::remove::merge_results;
use super::{Answer, InboundCall, TopologyRouter, subjects};
use crate::call::NodeId;
use crate::call::protobuf;
use crate::call::{BadRequest, Subject};
use crate::relay::Relay;
use crate::routing::Refusal;

/// The field `node_id` of both requests.
const NODE_ID: u32 = 2;

/// The field `volume_capability` of ControllerPublishVolumeRequest.
const VOLUME_CAPABILITY: u32 = 3;

impl TopologyRouter {
    pub(super) async fn publish(&self, relay: &dyn Relay, inbound: &InboundCall) -> Result<Answer, Refusal> {
        let place = self.volume_place(Method::ControllerPublishVolume, inbound)?;
        let node_id =
            protobuf::text(&inbound.body, NODE_ID).ok_or(BadRequest::Missing { field: "node_id" })?;
        if protobuf::count(&inbound.body, VOLUME_CAPABILITY) == 0 {
            return Err(BadRequest::Missing { field: "volume_capability" }.into());
        }
        let node = match self.by_node_id(node_id) {
            Err(Refusal::NoSuchNode { .. } | Refusal::Undetermined { .. }) => {
                self.drivers.ask_absent().await;
                self.by_node_id(node_id)?
            }
            other => other?,
        };
        if let Some(place) = place.filter(|place| self.is_out_of_reach(place, &node)) {
            return Err(Refusal::WrongNode { node: place });
        }
        Ok(self.ask(relay, &node, inbound).await)
    }

    pub(super) async fn unpublish(
        &self,
        relay: &dyn Relay,
        inbound: &InboundCall,
    ) -> Result<Answer, Refusal> {
        let place = self.volume_place(Method::ControllerUnpublishVolume, inbound)?;
        let Some(node_id) = protobuf::text(&inbound.body, NODE_ID) else {
            // An empty `node_id` detaches the volume from all nodes. A volume that only one node can access is
            // attached to no other.
            let bound = |place: &NodeId| !self.topology(place).segments.is_empty();
            return Ok(match place.filter(bound) {
                Some(place) => self.ask(relay, &place, inbound).await,
                None => merge_results(self.ask_all(relay, inbound, self.names()).await),
            });
        };
        match self.by_node_id(node_id) {
            Ok(node) => Ok(self.ask(relay, &node, inbound).await),
            // The driver of the volume knows its attachments even if the `node_id` is unknown.
            Err(refusal) => match place {
                Some(place) => Ok(self.ask(relay, &place, inbound).await),
                None => Err(match refusal {
                    Refusal::NoSuchNode { node_id } => Refusal::Undetermined {
                        what: format!(
                            "no node has the node_id {node_id:?}, so an attachment there cannot be excluded"
                        ),
                    },
                    other => other,
                }),
            },
        }
    }

    fn volume_place(&self, method: Method, inbound: &InboundCall) -> Result<Option<NodeId>, Refusal> {
        let subjects = subjects(method, &inbound.body)?;
        Ok(subjects.iter().find_map(|subject: &Subject| self.placements.node_of(subject)))
    }

    /// Whether a volume on one node cannot be attached to the other.
    fn is_out_of_reach(&self, place: &NodeId, node: &NodeId) -> bool {
        let (there, here) = (self.topology(place), self.topology(node));
        place != node && !there.segments.is_empty() && !here.is_within(&there)
    }
}
