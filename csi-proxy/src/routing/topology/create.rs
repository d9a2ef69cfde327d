//! `CreateVolume`.

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::{Delivery, Method};
use prost::Message as _;

use super::own::answered;
use super::reach::Reach;
use super::search::Search;
use super::{Answer, RoutedCall, TopologyRouter};
use crate::call::{Digest, Fault, NodeId, Origin, Outcome, protobuf};
use crate::driver_info::Entry;
use crate::routing::durable::OpenAttempt;
use crate::routing::{AttemptResult, NodeSelector, Refusal, VolumeRequest};

impl TopologyRouter {
    pub(super) async fn create(&self, call: RoutedCall<'_>) -> Result<Answer, Refusal> {
        let request = VolumeRequest::read(&call.inbound.body)?;
        self.find_source(call, &request).await?;
        let reach = self.reach(&request);
        let (open, topology) = match self.attempt(&request, &reach, false).await {
            // The code may be final, so it must not depend on an outdated presence.
            Err(
                Refusal::Offline { .. }
                | Refusal::AllOffline
                | Refusal::NoNodeInTopology
                | Refusal::Undetermined { .. },
            ) => {
                let wanted = |node: &NodeId, entry: &Entry| reach.may_include(node, entry.topology());
                self.driver_info.refresh_absent(wanted).await;
                self.attempt(&request, &reach, true).await?
            }
            other => other?,
        };
        let node = open.node().clone();
        let (message, outcome) = self.ask(call, &node).await;
        let Some(message) = message else {
            // A failed write is logged, and does not change the answer of the driver.
            let _ = open.end(result_of(&outcome)).await;
            return Ok((None, outcome));
        };
        // On an error the dropped attempt has an unknown result: a volume may have been created.
        let (method, place) = (call.method, self.own_place(&node));
        let created = answered(method, &message).unwrap_or_default();
        let ([volume], Ok(message)) = (created.as_slice(), place.correct(method, message)) else {
            let reason = "the response to CreateVolume has no usable volume".to_owned();
            return Ok((None, Fault::Protocol { reason }.into()));
        };
        self.check_created(call, &node, &created).await?;
        open.end(AttemptResult::Created(volume.id())).await?;
        self.capacity_cache().changed(&node);
        Ok((Some(with_topology(message, &topology)), outcome))
    }

    /// Searches the content source of a new volume if its node is not known: only the driver there can copy the source.
    ///
    /// # Errors
    /// If no node has the source, or a node that may have it does not answer.
    async fn find_source(&self, call: RoutedCall<'_>, request: &VolumeRequest) -> Result<(), Refusal> {
        let Some(source) = request.source.as_ref().filter(|_| self.only().is_none()) else { return Ok(()) };
        let is_known = || self.placements.node_of(source).is_some();
        let is_new = || self.placements.read(|placements| placements.is_new(&request.name));
        if is_known() || !is_new() {
            return Ok(());
        }
        let found = self.search(call, source, true).await;
        // The code may be final, so it must not be that of a name that was sent meanwhile.
        if !is_new() {
            return Ok(());
        }
        match found? {
            Search::Found(_) if is_known() => Ok(()),
            Search::Found(node) => {
                let what = format!("{source} is on node {node}, but the table of placements is full");
                Err(Refusal::Undetermined { what })
            }
            Search::Absent => Err(Refusal::Absent { subject: source.clone() }),
            // Its driver knows whether it can copy the source.
            Search::Unanswerable(_) if !call.has_secrets() => Ok(()),
            Search::Unanswerable(node) | Search::Reported(node) => {
                Err(Refusal::MayBeOn { subject: source.clone(), node })
            }
        }
    }

    /// Starts an attempt to create a volume and returns the topology of its node. `waited` means that the nodes which
    /// could not be selected were asked before.
    async fn attempt(
        &self,
        request: &VolumeRequest,
        reach: &Reach<'_>,
        waited: bool,
    ) -> Result<(OpenAttempt, csi::Topology), Refusal> {
        let candidates = self.candidates(request, reach, waited);
        let only = self.only();
        let default = self.settings.default_node.as_ref().or(only.as_ref());
        let selector = NodeSelector { candidates: &candidates, default, offline: self.settings.offline };
        let open = self.placements.attempt(request, selector).await?;
        match self.known_topology(open.node()) {
            Some(topology) => Ok((open, topology)),
            // The name was placed before a restart, and its node was not reached since. Without a topology the pod of
            // the volume could be scheduled anywhere.
            None => {
                let quarantined = self.check_claim(open.node()).err();
                let refusal = quarantined.unwrap_or_else(|| Refusal::not_reached(open.node()));
                open.end(AttemptResult::NotSent).await?;
                Err(refusal)
            }
        }
    }
}

/// The field numbers of the volume in CreateVolumeResponse, and of the topologies in a volume.
const VOLUME: u32 = 1;
const ACCESSIBLE_TOPOLOGY: u32 = 5;

/// Adds this topology to the answer of a CreateVolume if its volume has none. Without a topology, a pod could be
/// scheduled on a node that does not have its volume.
pub(crate) fn with_topology(message: Bytes, topology: &csi::Topology) -> Bytes {
    let known = csi::CreateVolumeResponse::decode(message.clone()).ok().and_then(|answer| answer.volume);
    if topology.segments.is_empty() || known.is_none_or(|volume| !volume.accessible_topology.is_empty()) {
        return message;
    }
    protobuf::append_field(
        &message,
        VOLUME,
        &protobuf::append_field(&[], ACCESSIBLE_TOPOLOGY, &topology.encode_to_vec()),
    )
}

/// The result of a failed attempt.
fn result_of(outcome: &Outcome) -> AttemptResult<'static> {
    match &outcome.origin {
        Origin::Driver if outcome.code.may_be_running() => AttemptResult::Unknown,
        Origin::Driver => AttemptResult::Failed,
        Origin::Relay(fault) if fault.delivery() == Delivery::NotSent => AttemptResult::NotSent,
        Origin::Relay(_) => AttemptResult::Unknown,
        Origin::Endpoint => AttemptResult::Unknown,
    }
}

/// A digest that distinguishes storage classes by their parameters.
pub(super) fn class_of(parameters: &std::collections::BTreeMap<String, String>) -> Digest {
    let parameters = parameters.clone();
    let request = csi::GetCapacityRequest { parameters, ..Default::default() };
    Digest::of(Method::GetCapacity.request_shape(), &request.encode_to_vec())
}
