//! What names a volume, a snapshot or a group by its id.

use csi_proto::Method;

use super::way::{Answer, Way};
use super::{Inquiry, TopologyRouter, subjects};
use crate::call::NodeId;
use crate::code::Code;
use crate::operation::Subject;
use crate::outcome::Origin;
use crate::replies::Replies;
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
        for node in self.nodes.online_first() {
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
        let node = self.place_of(&subjects)?.or_else(|| self.nodes.only()).ok_or_else(|| {
            let what = match subjects.first() {
                Some(subject) => {
                    format!("on which node {subject} is; ask for it with GetSnapshot or ListSnapshots first")
                }
                None => "what the call is about".to_owned(),
            };
            Refusal::NotKnown { what: format!("it is not known {what}") }
        })?;
        Ok(way.relay(&node, &inquiry.method, inquiry.body.clone()).await)
    }

    /// The one node on which all of it is, as far as known.
    fn place_of(&self, subjects: &[Subject]) -> Result<Option<NodeId>, Refusal> {
        let mut nodes = subjects.iter().filter_map(|subject| self.keeper.node_of(subject));
        let Some(first) = nodes.next() else { return Ok(None) };
        if nodes.any(|node| node != first) { Err(Refusal::Apart) } else { Ok(Some(first)) }
    }
}
