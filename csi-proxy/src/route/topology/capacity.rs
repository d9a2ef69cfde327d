//! `GetCapacity`.

use std::time::Duration;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::create::class_of;
use super::quotes::Quotes;
use super::way::{Answer, Way};
use super::{AT_ONCE, Inquiry, TopologyRouter, path};
use crate::call::NodeId;
use crate::fault::Fault;
use crate::operation::Digest;
use crate::outcome::{Origin, Outcome};
use crate::route::Refusal;

/// How long a node may take. A provisioner asks for every node and class once a minute, one after the other.
const PATIENCE: Duration = Duration::from_secs(5);

impl TopologyRouter {
    pub(super) async fn capacity(&self, way: &Way<'_>, inquiry: &Inquiry) -> Result<Answer, Refusal> {
        let request = csi::GetCapacityRequest::decode(inquiry.body.clone());
        let request = request.map_err(|_| Refusal::Unreadable { field: "the request" })?;
        let topology = request.accessible_topology.unwrap_or_default();
        // An offline node has no room: so says the scheduler's filter that a pod must not go there.
        let nodes = self.nodes.not_away(&topology);
        let class = class_of(&request.parameters);
        let way = way.until(Instant::now() + PATIENCE);
        let one = |node: NodeId| {
            let way = &way;
            async move { self.capacity_of(way, inquiry, node, class).await }
        };
        let mut answers: Vec<_> = stream::iter(nodes).map(one).buffer_unordered(AT_ONCE).collect().await;
        if let Some(at) = answers.iter().position(|answer| !is_settled(answer)) {
            // What was known before holds better than a figure without this node.
            return Ok(answers.swap_remove(at));
        }
        if answers.len() == 1
            && let Some(answer) = answers.pop_if(|answer| answer.1.origin == Origin::Driver)
        {
            return Ok(answer);
        }
        Ok((Some(together(&answers).encode_to_vec().into()), Outcome::from_endpoint(crate::Code::OK, "")))
    }

    async fn capacity_of(&self, way: &Way<'_>, inquiry: &Inquiry, node: NodeId, class: Digest) -> Answer {
        // Where nobody tells who is away, what was said a minute ago could be of a node that is.
        let said = self.nodes.with_quotes(&node, |quotes| quotes.answer(&inquiry.body, Instant::now()));
        if let Some(answer) = said.flatten().filter(|_| self.nodes.are_told()) {
            return answer;
        }
        let answer = self.ask_capacity(way, &node, &inquiry.body, class).await;
        self.keep_quote(&node, &inquiry.body, &answer, true);
        // From now on this is asked again in the background.
        self.returned.notify_one();
        answer
    }

    async fn ask_capacity(&self, way: &Way<'_>, node: &NodeId, question: &Bytes, class: Digest) -> Answer {
        let asked = async {
            let inquiry = Inquiry { method: path(Method::GetCapacity)?, body: question.clone() };
            Ok::<_, Outcome>(self.ask(way, node, &inquiry).await)
        };
        let asked = tokio::time::timeout(PATIENCE, asked).await;
        let late = |_| Err(Fault::Deadline { waited: PATIENCE }.into());
        let answer = asked.unwrap_or_else(late).unwrap_or_else(|outcome| (None, outcome));
        if let Some(response) = decoded(&answer) {
            let largest = response.maximum_volume_size.unwrap_or(response.available_capacity);
            let largest = u64::try_from(largest).unwrap_or_default();
            self.nodes.found_room(node, class, largest, Instant::now());
        }
        answer
    }

    fn keep_quote(&self, node: &NodeId, question: &Bytes, answer: &Answer, wanted: bool) {
        let keep =
            |quotes: &mut Quotes| quotes.keep(question.clone(), answer.clone(), wanted, Instant::now());
        self.nodes.with_quotes(node, keep);
    }

    /// Asks a node again for what sidecars will want to know of its capacity.
    pub(super) async fn ask_quotes(&self, way: &Way<'_>, node: &NodeId) {
        let due = self.nodes.with_quotes(node, |quotes| quotes.take_due(Instant::now()));
        for question in due.unwrap_or_default() {
            let Ok(request) = csi::GetCapacityRequest::decode(question.clone()) else { continue };
            let way = way.until(Instant::now() + PATIENCE);
            let answer = self.ask_capacity(&way, node, &question, class_of(&request.parameters)).await;
            self.keep_quote(node, &question, &answer, false);
        }
    }
}

/// Whether a node has said how much room it has, or has none since it is away.
fn is_settled((_, outcome): &Answer) -> bool {
    match &outcome.origin {
        Origin::Driver | Origin::Endpoint => true,
        Origin::Relay(fault) => matches!(
            **fault,
            Fault::NodeOffline { .. } | Fault::NodeUnknown { .. } | Fault::DriverNotRegistered { .. }
        ),
    }
}

fn decoded(answer: &Answer) -> Option<csi::GetCapacityResponse> {
    csi::GetCapacityResponse::decode(answer.0.clone()?).ok()
}

/// The capacity of several nodes: a volume is on one of them, so the largest is what the roomiest one can take.
fn together(answers: &[Answer]) -> csi::GetCapacityResponse {
    let mut sum = csi::GetCapacityResponse::default();
    for response in answers.iter().filter_map(decoded) {
        let largest = response.maximum_volume_size.unwrap_or(response.available_capacity);
        sum.available_capacity = sum.available_capacity.saturating_add(response.available_capacity);
        sum.maximum_volume_size = Some(sum.maximum_volume_size.map_or(largest, |known| known.max(largest)));
    }
    sum
}
