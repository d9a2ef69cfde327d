//! `GetCapacity`.

use csi_proto::csi::v1 as csi;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;
use tokio::time::Instant;

use super::create::class_of;
use super::limits::NODE_TIMEOUT;
use super::{Answer, InboundCall, MAX_CONCURRENT_ROUNDS, RoutedCall, TopologyRouter};
use crate::call::{BadRequest, Digest};
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::routing::Refusal;

impl TopologyRouter {
    pub(super) async fn capacity(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        let request = csi::GetCapacityRequest::decode(call.inbound.body.clone());
        let request = request.map_err(|_| BadRequest::NotAMessage)?;
        let topology = request.accessible_topology.unwrap_or_default();
        // An offline node has no capacity, so that the scheduler places no pod there.
        let nodes = self.possibly_online(&topology);
        let class = class_of(&request.parameters);
        let end = call.inbound.end.min(Instant::now() + NODE_TIMEOUT);
        let inbound = InboundCall { end, ..call.inbound.clone() };
        let call = call.with(&inbound);
        let one = |node: NodeId| async move {
            let answer = self.capacity_of(call, &node, class).await;
            (node, answer)
        };
        let mut answers: Vec<_> =
            stream::iter(nodes).map(one).buffer_unordered(MAX_CONCURRENT_ROUNDS).collect().await;
        let is_one = answers.len() == 1;
        let passes = |(_, answer): &mut (NodeId, Answer)| is_one && answer.1.origin == Origin::Driver;
        // With an error, a provisioner keeps its previous capacity.
        let is_unknown = !answers.iter().any(|(_, answer)| is_settled(answer));
        if let Some((_, answer)) = answers.pop_if(|answer| is_unknown || passes(answer)) {
            return Ok(answer);
        }
        // One node of several does not fail the sum: its last answer counts, if it is recent.
        let capacities = answers.iter().filter_map(|(node, answer)| match is_settled(answer) {
            true => decoded(answer),
            false => self.last_capacity(node, class),
        });
        let total = total_capacity(capacities).encode_to_vec().into();
        Ok((Some(total), Outcome::from_endpoint(crate::Code::OK, "")))
    }

    fn last_capacity(&self, node: &NodeId, class: Digest) -> Option<csi::GetCapacityResponse> {
        let largest = self.capacity_cache().of(node, &class, Instant::now())?;
        let available_capacity = i64::try_from(largest).unwrap_or(i64::MAX);
        Some(csi::GetCapacityResponse { available_capacity, ..Default::default() })
    }

    async fn capacity_of(&self, call: RoutedCall<'_>, node: &NodeId, class: Digest) -> Answer {
        let late = |_| (None, Fault::Deadline { waited: NODE_TIMEOUT }.into());
        let mut answer = tokio::time::timeout(NODE_TIMEOUT, self.ask(call, node)).await.unwrap_or_else(late);
        if let Some(response) = decoded(&answer) {
            let valid = without_negative(response);
            if valid != response {
                answer.0 = Some(valid.encode_to_vec().into());
            }
            let largest = valid.maximum_volume_size.unwrap_or(valid.available_capacity);
            let largest = u64::try_from(largest).unwrap_or_default();
            self.capacity_cache().put(node, class, largest, Instant::now());
        }
        answer
    }
}

/// Whether a node has reported its capacity, or has none since it is offline.
fn is_settled((_, outcome): &Answer) -> bool {
    match &outcome.origin {
        Origin::Driver | Origin::Endpoint => true,
        Origin::Relay(fault) => {
            matches!(**fault, Fault::NodeOffline { .. } | Fault::DriverNotRegistered { .. })
        }
    }
}

fn decoded(answer: &Answer) -> Option<csi::GetCapacityResponse> {
    csi::GetCapacityResponse::decode(answer.0.clone()?).ok()
}

/// A negative capacity would reduce that of other nodes.
fn without_negative(response: csi::GetCapacityResponse) -> csi::GetCapacityResponse {
    csi::GetCapacityResponse {
        available_capacity: response.available_capacity.max(0),
        maximum_volume_size: response.maximum_volume_size.map(|bytes| bytes.max(0)),
        minimum_volume_size: response.minimum_volume_size.map(|bytes| bytes.max(0)),
    }
}

/// The capacity of several nodes: a volume is on one of them, so the maximum size is that of the largest.
fn total_capacity(capacities: impl Iterator<Item = csi::GetCapacityResponse>) -> csi::GetCapacityResponse {
    let mut sum = csi::GetCapacityResponse::default();
    for response in capacities {
        let largest = response.maximum_volume_size.unwrap_or(response.available_capacity);
        sum.available_capacity = sum.available_capacity.saturating_add(response.available_capacity);
        sum.maximum_volume_size = Some(sum.maximum_volume_size.map_or(largest, |known| known.max(largest)));
    }
    sum
}
