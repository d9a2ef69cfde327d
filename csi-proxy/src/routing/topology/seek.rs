//! What names a volume, a snapshot or a group by its id.

use csi_proto::{Code, Method};
use futures_util::{StreamExt as _, stream};

use super::{Inquiry, TopologyRouter, subjects};
use crate::call::{NodeId, Origin, Outcome, Replies, Reply};
use crate::dispatcher::operation::Subject;
use crate::relay::Relay;
use crate::routing::Refusal;

impl TopologyRouter {
    /// A call about something that has an id: to where it is, or else to one node after the other until one has it.
    pub(super) async fn seek(
        &self,
        relay: &dyn Relay,
        inquiry: &Inquiry,
        method: Method,
    ) -> Result<Replies, Refusal> {
        let place = self.place_of(&subjects(method, &inquiry.body)?)?;
        let (mut unreachable, mut absent) = (None, None);
        for node in place.map_or_else(|| self.online_first(), |place| vec![place]) {
            let mut rest = None;
            let answer = if method.is_server_streaming() {
                let mut replies = self.carry(relay, &node, inquiry).await;
                // What comes first says whether it is there.
                match replies.next().await {
                    Some(Reply::Message(first)) => {
                        rest = Some(replies);
                        (Some(first), Outcome::ok())
                    }
                    Some(Reply::End(outcome)) => (None, outcome),
                    None => continue,
                }
            } else {
                self.ask(relay, &node, inquiry).await
            };
            match &answer.1.origin {
                Origin::Driver if answer.1.code == Code::NOT_FOUND => absent = absent.or(Some(answer)),
                Origin::Driver => {
                    self.learn(inquiry, method, &node, &answer).await?;
                    let (message, outcome) = answer;
                    return Ok(match (message, rest) {
                        (Some(first), Some(rest)) => {
                            Replies::stream(stream::iter([Reply::Message(first)]).chain(rest))
                        }
                        (message, _) => Replies::whole(message, outcome),
                    });
                }
                // It may be there.
                _ => unreachable = unreachable.or(Some(answer)),
            }
        }
        let not_asked = || Refusal::NotKnown { what: "no node was asked".to_owned() };
        let (message, outcome) = unreachable.or(absent).ok_or_else(not_asked)?;
        Ok(Replies::whole(message, outcome))
    }

    /// The one node on which all of it is, as far as known.
    fn place_of(&self, subjects: &[Subject]) -> Result<Option<NodeId>, Refusal> {
        let mut nodes = subjects.iter().filter_map(|subject| self.placements.node_of(subject));
        let Some(first) = nodes.next() else { return Ok(None) };
        if nodes.any(|node| node != first) { Err(Refusal::Apart) } else { Ok(Some(first)) }
    }
}
