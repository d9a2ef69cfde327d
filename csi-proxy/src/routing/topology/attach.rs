//! `ControllerPublishVolume` and `ControllerUnpublishVolume`.

use csi_proto::Method;

use super::remove::merge_results;
use super::{Answer, InboundCall, TopologyRouter, subjects};
use crate::call::NodeId;
use crate::call::protobuf;
use crate::call::{BadRequest, Subject};
use crate::relay::Relay;
use crate::routing::Refusal;

/// The number of the field `node_id` in both requests.
const NODE_ID: u32 = 2;

/// The number of the field `volume_capability` of ControllerPublishVolumeRequest.
const VOLUME_CAPABILITY: u32 = 3;

impl TopologyRouter {
    pub(super) async fn publish(&self, relay: &dyn Relay, inbound: &InboundCall) -> Result<Answer, Refusal> {
        let volume_node = self.volume_node(Method::ControllerPublishVolume, inbound)?;
        let node_id =
            protobuf::text(&inbound.body, NODE_ID).ok_or(BadRequest::Missing { field: "node_id" })?;
        if protobuf::count(&inbound.body, VOLUME_CAPABILITY) == 0 {
            return Err(BadRequest::Missing { field: "volume_capability" }.into());
        }
        let node = match self.by_node_id(node_id) {
            Err(Refusal::NoSuchNode { .. } | Refusal::Undetermined { .. }) => {
                self.driver_info.refresh_absent().await;
                self.by_node_id(node_id)?
            }
            other => other?,
        };
        if let Some(volume_node) = volume_node.filter(|volume_node| self.is_out_of_reach(volume_node, &node))
        {
            return Err(Refusal::WrongNode { node: volume_node });
        }
        Ok(self.ask(relay, &node, inbound).await)
    }

    pub(super) async fn unpublish(
        &self,
        relay: &dyn Relay,
        inbound: &InboundCall,
    ) -> Result<Answer, Refusal> {
        let method = Method::ControllerUnpublishVolume;
        let volume_node = self.volume_node(method, inbound)?;
        let Some(node_id) = protobuf::text(&inbound.body, NODE_ID) else {
            // An empty `node_id` detaches the volume from all nodes. Only the node of the volume gets the secrets.
            let Some(volume_node) = volume_node else {
                let subjects = subjects(method, &inbound.body)?;
                return self.ask_holder_or_all(relay, inbound, method, &subjects).await;
            };
            let mut others = self.names();
            others.retain(|node| *node != volume_node && !self.is_out_of_reach(&volume_node, node));
            let stripped = inbound.without_secrets(method)?;
            let mut answers = self.ask_all(relay, &stripped, others).await;
            answers.push(self.ask(relay, &volume_node, inbound).await);
            return Ok(merge_results(answers));
        };
        match self.by_node_id(node_id) {
            Ok(node) => Ok(self.ask(relay, &node, inbound).await),
            // The driver on the volume's node can detach the volume even from an unknown `node_id`.
            Err(refusal) => match volume_node {
                Some(volume_node) => Ok(self.ask(relay, &volume_node, inbound).await),
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

    fn volume_node(&self, method: Method, inbound: &InboundCall) -> Result<Option<NodeId>, Refusal> {
        let subjects = subjects(method, &inbound.body)?;
        Ok(subjects.iter().find_map(|subject: &Subject| self.placements.node_of(subject)))
    }

    /// Whether a volume on one node cannot be attached to the other.
    fn is_out_of_reach(&self, volume_node: &NodeId, node: &NodeId) -> bool {
        let (volume_topology, topology) = (self.topology(volume_node), self.topology(node));
        volume_node != node && !volume_topology.segments.is_empty() && !topology.is_within(&volume_topology)
    }
}
