//! What names a volume, a snapshot or a group by its id.

use csi_proto::{Code, Method};
use futures_util::{StreamExt as _, stream};

use super::way::{Answer, Way};
use super::{Inquiry, TopologyRouter, subjects};
use crate::call::NodeId;
use crate::operation::Subject;
use crate::outcome::Origin;
use crate::replies::{Replies, Reply};
use crate::route::Refusal;

impl TopologyRouter {
    /// A unary call about something that has an id.
    pub(super) async fn seek(
        &self,
        way: &Way<'_>,
        inquiry: &Inquiry,
        method: Method,
    ) -> Result<Answer, Refusal> {
        let subjects = subjects(method, &inquiry.body)?;
        if let Some(node) = self.place_of(&subjects)? {
            let answer = self.ask(way, &node, inquiry).await;
            self.learn(inquiry, method, &node, &answer).await?;
            return Ok(answer);
        }
        let (mut unreachable, mut absent) = (None, None);
        for node in self.online_first() {
            let answer = self.ask(way, &node, inquiry).await;
            match &answer.1.origin {
                Origin::Driver if answer.1.code == Code::NOT_FOUND => absent = absent.or(Some(answer)),
                Origin::Driver => {
                    self.learn(inquiry, method, &node, &answer).await?;
                    return Ok(answer);
                }
                // It may be there.
                _ => unreachable = unreachable.or(Some(answer)),
            }
        }
        let not_asked = || Refusal::NotKnown { what: "no node was asked".to_owned() };
        unreachable.or(absent).ok_or_else(not_asked)
    }

    /// A call about something that has an id and is answered by a stream.
    pub(super) async fn stream(
        &self,
        way: &Way<'_>,
        inquiry: &Inquiry,
        method: Method,
    ) -> Result<Replies, Refusal> {
        let subjects = subjects(method, &inquiry.body)?;
        if let Some(node) = self.place_of(&subjects)?.or_else(|| self.only()) {
            return Ok(self.relay(way, &node, inquiry).await);
        }
        let (mut unreachable, mut absent) = (None, None);
        for node in self.online_first() {
            let mut replies = self.relay(way, &node, inquiry).await;
            // What comes first says whether it is there.
            match replies.next().await {
                Some(Reply::End(outcome)) if outcome.origin != Origin::Driver => {
                    unreachable = unreachable.or(Some(outcome));
                }
                Some(Reply::End(outcome)) if outcome.code == Code::NOT_FOUND => {
                    absent = absent.or(Some(outcome));
                }
                Some(first) => {
                    for subject in subjects.into_iter().filter(|_| matches!(first, Reply::Message(_))) {
                        self.placements.found(&subject, &node).await?;
                    }
                    return Ok(Replies::stream(stream::iter([first]).chain(replies)));
                }
                None => {}
            }
        }
        let not_asked = || Refusal::NotKnown { what: "no node was asked".to_owned() };
        unreachable.or(absent).map(Replies::outcome).ok_or_else(not_asked)
    }

    /// The one node on which all of it is, as far as known.
    fn place_of(&self, subjects: &[Subject]) -> Result<Option<NodeId>, Refusal> {
        let mut nodes = subjects.iter().filter_map(|subject| self.placements.node_of(subject));
        let Some(first) = nodes.next() else { return Ok(None) };
        if nodes.any(|node| node != first) { Err(Refusal::Apart) } else { Ok(Some(first)) }
    }
}
