//! Calls with the id of a volume, a snapshot or a group.

use csi_proto::{Code, Method};
use futures_util::{StreamExt as _, stream};

use super::{InboundCall, TopologyRouter, subjects};
use crate::call::Subject;
use crate::call::{NodeId, Origin, Outcome, Replies, Reply};
use crate::relay::Relay;
use crate::routing::Refusal;

impl TopologyRouter {
    /// Routes a call by the id of its subject: to its node, or else to one node after the other until one has it.
    pub(super) async fn locate(
        &self,
        relay: &dyn Relay,
        inbound: &InboundCall,
        method: Method,
    ) -> Result<Replies, Refusal> {
        let known = self.common_node(&subjects(method, &inbound.body)?)?;
        let (mut unreachable, mut absent) = (None, None);
        for node in known.map_or_else(|| self.online_first(), |node| vec![node]) {
            let mut rest = None;
            let answer = if method.is_server_streaming() {
                let mut replies = self.call_node(relay, &node, inbound).await;
                // The first part shows whether the node has the subject.
                match replies.next().await {
                    Some(Reply::Message(first)) => {
                        rest = Some(replies);
                        (Some(first), Outcome::ok())
                    }
                    Some(Reply::End(outcome)) => (None, outcome),
                    None => continue,
                }
            } else {
                self.ask(relay, &node, inbound).await
            };
            match &answer.1.origin {
                Origin::Driver if answer.1.code == Code::NOT_FOUND => absent = absent.or(Some(answer)),
                Origin::Driver => {
                    self.record_subjects(inbound, method, &node, &answer).await?;
                    let (message, outcome) = answer;
                    return Ok(match (message, rest) {
                        (Some(first), Some(rest)) => {
                            Replies::stream(stream::iter([Reply::Message(first)]).chain(rest))
                        }
                        (message, _) => Replies::whole(message, outcome),
                    });
                }
                // An unreachable node may have the subject.
                _ => unreachable = unreachable.or(Some(answer)),
            }
        }
        let no_node = || Refusal::Undetermined {
            what: "no node with the driver is known; start the agent on a node".to_owned(),
        };
        let (message, outcome) = unreachable.or(absent).ok_or_else(no_node)?;
        Ok(Replies::whole(message, outcome))
    }

    /// The node of all subjects whose node is known; `None` if no node is known.
    fn common_node(&self, subjects: &[Subject]) -> Result<Option<NodeId>, Refusal> {
        let mut nodes = subjects.iter().filter_map(|subject| self.placements.node_of(subject));
        let Some(first) = nodes.next() else { return Ok(None) };
        if nodes.any(|node| node != first) { Err(Refusal::VolumesOnDifferentNodes) } else { Ok(Some(first)) }
    }
}
