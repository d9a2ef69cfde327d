//! `ControllerPublishVolume` and `ControllerUnpublishVolume`.

use super::remove::merge_results;
use super::{Answer, RoutedCall, TopologyRouter};
use crate::call::BadRequest;
use crate::call::NodeId;
use crate::call::protobuf;
use crate::routing::Refusal;

/// The number of the field `node_id` in both requests.
const NODE_ID: u32 = 2;

/// The number of the field `volume_capability` of ControllerPublishVolumeRequest.
const VOLUME_CAPABILITY: u32 = 3;

impl TopologyRouter {
    pub(super) async fn publish(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        let (volume_node, body) = (self.volume_node(call)?, &call.inbound.body);
        let node_id = protobuf::text(body, NODE_ID).ok_or(BadRequest::Missing { field: "node_id" })?;
        if protobuf::count(body, VOLUME_CAPABILITY) == 0 {
            return Err(BadRequest::Missing { field: "volume_capability" }.into());
        }
        let node = match self.by_node_id(node_id) {
            Err(Refusal::NoSuchNode { .. } | Refusal::Undetermined { .. }) => {
                self.driver_info.refresh_absent(|_, _| true).await;
                self.by_node_id(node_id)?
            }
            other => other?,
        };
        if let Some(volume_node) = volume_node.filter(|volume_node| self.is_out_of_reach(volume_node, &node))
        {
            return Err(Refusal::WrongNode { node: volume_node });
        }
        Ok(self.ask(call, &node).await)
    }

    pub(super) async fn unpublish(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        let volume_node = self.volume_node(call)?;
        let Some(node_id) = protobuf::text(&call.inbound.body, NODE_ID) else {
            // An empty `node_id` detaches the volume from all nodes. Only the node of the volume gets the secrets.
            let Some(volume_node) = volume_node else {
                return self.ask_holder_or_all(call, &call.subjects()?).await;
            };
            let mut others = self.names();
            others.retain(|node| *node != volume_node && !self.is_out_of_reach(&volume_node, node));
            let stripped = call.without_secrets()?;
            let mut answers = self.ask_all(call.with(&stripped), others).await;
            answers.push(self.ask(call, &volume_node).await);
            return Ok(merge_results(answers));
        };
        match self.by_node_id(node_id) {
            Ok(node) => Ok(self.ask(call, &node).await),
            // The driver on the volume's node can detach the volume even from an unknown `node_id`.
            Err(refusal) => match volume_node {
                Some(volume_node) => Ok(self.ask(call, &volume_node).await),
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

    fn volume_node(&self, call: RoutedCall<'_>) -> Result<Option<NodeId>, Refusal> {
        Ok(call.subjects()?.iter().find_map(|subject| self.placements.node_of(subject)))
    }

    /// Whether a volume on one node cannot be attached to the other.
    fn is_out_of_reach(&self, volume_node: &NodeId, node: &NodeId) -> bool {
        let (volume_topology, topology) = (self.topology(volume_node), self.topology(node));
        volume_node != node && !volume_topology.segments.is_empty() && !topology.is_within(&volume_topology)
    }
}
