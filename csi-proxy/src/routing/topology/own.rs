//! Checks that the answers of a node report only what is its own: new ids, topologies and attachments.

use std::collections::BTreeSet;

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::call::subjects;
use super::search::Report;
use super::{InboundCall, RoutedCall, TopologyRouter};
use crate::call::{Fault, MAX_SUBJECT, MAX_SUBJECTS, NodeId, Outcome, Subject, created_subjects, protobuf};
use crate::routing::{Refusal, VolumeRequest};

// The field of the volume, snapshot or group in an answer, or in an entry of a list, and of the status of a volume.
const RESOURCE: u32 = 1;
pub(super) const STATUS: u32 = 2;
const PUBLISHED_NODE_IDS: u32 = 1;

// Fields of a volume, a snapshot and a group.
const VOLUME_TOPOLOGY: u32 = 5;
const SNAPSHOT_TOPOLOGY: u32 = 7;
const SNAPSHOTS: u32 = 2;

// Fields of requests that name ids which are not their subjects.
const LISTED_SOURCE_VOLUME_ID: u32 = 3;
const LISTED_SNAPSHOT_ID: u32 = 4;
const SNAPSHOTS_OF_GROUP: u32 = 2;

/// Whether a node may report this id.
pub(super) fn is_usable(id: &str) -> bool {
    !id.is_empty() && id.len() <= MAX_SUBJECT && !id.chars().any(char::is_control)
}

/// The ids in an answer to a method that creates or gets a resource; `None` if one is missing or unusable. The answer
/// must have the resource once: protobuf merges several, and readers would see another id than this check.
pub(super) fn answered(method: Method, message: &[u8]) -> Option<Vec<Subject>> {
    // The answers of both methods have the same resource in the same field.
    let method = match method {
        Method::ControllerGetVolume => Method::CreateVolume,
        Method::GetSnapshot => Method::CreateSnapshot,
        Method::GetVolumeGroupSnapshot => Method::CreateVolumeGroupSnapshot,
        other => other,
    };
    let mut resources = protobuf::fields(message)?.of(RESOURCE);
    let (resource, None) = (resources.next()?.bytes()?, resources.next()) else { return None };
    let snapshots = match method {
        Method::CreateVolumeGroupSnapshot => protobuf::count(resource, SNAPSHOTS),
        _ => 0,
    };
    let subjects = created_subjects(method, message);
    let is_complete = subjects.len() == 1 + snapshots && snapshots <= MAX_SUBJECTS;
    (is_complete && subjects.iter().all(|subject| is_usable(subject.id()))).then_some(subjects)
}

/// The ids that a request names.
fn named(method: Method, body: &[u8]) -> Vec<Subject> {
    let mut named = subjects(method, body).unwrap_or_default();
    let mut add = |number, make: fn(Box<str>) -> Subject| {
        named.extend(protobuf::texts(body, number).map(|id| make(id.into())));
    };
    match method {
        Method::ListSnapshots => {
            add(LISTED_SOURCE_VOLUME_ID, Subject::Volume);
            add(LISTED_SNAPSHOT_ID, Subject::Snapshot);
        }
        Method::DeleteVolumeGroupSnapshot | Method::GetVolumeGroupSnapshot => {
            add(SNAPSHOTS_OF_GROUP, Subject::Snapshot);
        }
        Method::CreateVolume => {
            named.extend(VolumeRequest::read(body).ok().and_then(|request| request.source));
        }
        _ => {}
    }
    named.retain(|subject| !matches!(subject, Subject::VolumeName(_)));
    named
}

impl TopologyRouter {
    /// Records the ids without a record that a call sends to a node.
    pub(super) fn record_sent(&self, inbound: &InboundCall) {
        let Some(method) = Method::from_path(inbound.method.as_str()) else { return };
        for subject in named(method, &inbound.body) {
            if self.placements.node_of(&subject).is_none() {
                self.doubts().sent(&subject);
            }
        }
    }

    /// Whether an answer to a method that gets a resource is about this subject, and names no id of another node.
    /// Otherwise it is logged and counted.
    pub(super) fn is_about(&self, node: &NodeId, method: Method, subject: &Subject, message: &[u8]) -> bool {
        let is_own = answered(method, message).is_some_and(|answered| {
            answered.first() == Some(subject) && !answered[1..].iter().any(|one| self.is_foreign(node, one))
        });
        if !is_own {
            tracing::warn!(%node, %method, %subject, "a node answers with another id than that of the request, or with that of another node; the answer is not used");
            #[cfg(feature = "metrics")]
            crate::metrics::wrong_answer(&self.driver);
        }
        is_own
    }

    /// Checks the new ids in an answer to a create method. An id that another node may have is believed only if every
    /// other node denies it.
    ///
    /// # Errors
    /// If another node has, or may have, one of the ids.
    pub(super) async fn check_created(
        &self,
        call: RoutedCall<'_>,
        node: &NodeId,
        created: &[Subject],
    ) -> Result<(), Refusal> {
        if self.only().is_some() {
            return Ok(());
        }
        for subject in created {
            // An id with a record is compared with it when the answer is recorded.
            if self.placements.node_of(subject).is_some() || !self.doubts().of_new(node, subject) {
                continue;
            }
            self.check_complete()?;
            let mut others = self.names();
            others.retain(|other| other != node);
            let reports = self.reports(call, subject, others).await;
            let (subject, other) = (subject.clone(), node.clone());
            if let Some((_, known)) = reports.iter().find(|(report, _)| *report == Report::Present) {
                tracing::warn!(%subject, %node, %known, "a node reports an id of another as new");
                return Err(Refusal::DuplicateId { subject, known: known.clone(), other });
            }
            if let Some((_, node)) = reports.into_iter().find(|(report, _)| *report != Report::Absent) {
                return Err(Refusal::MayBeOn { subject, node });
            }
        }
        Ok(())
    }

    /// Checks that no other node still reports the id that is recorded for a node.
    ///
    /// # Errors
    /// If another node lists the id, and does not deny it now.
    pub(super) async fn check_disputed(
        &self,
        call: RoutedCall<'_>,
        node: &NodeId,
        subject: &Subject,
    ) -> Result<(), Refusal> {
        let mut others = self.doubts().disputants(subject);
        others.retain(|other| other != node);
        for (report, other) in self.reports(call, subject, others).await {
            if report != Report::Absent {
                let (subject, known) = (subject.clone(), node.clone());
                return Err(Refusal::DuplicateId { subject, known, other });
            }
            self.doubts().denied(&other, subject);
        }
        Ok(())
    }

    /// Whether a listed id is that of another node. Records what the list shows.
    pub(super) fn is_foreign(&self, node: &NodeId, subject: &Subject) -> bool {
        match self.placements.node_of(subject) {
            Some(known) if known == *node => false,
            Some(known) => {
                if self.doubts().disputed(node, subject) {
                    tracing::warn!(%subject, %known, other = %node, "a node lists an id of another; calls that change it or have secrets are not sent until the node denies it, or is decommissioned");
                }
                true
            }
            None => {
                self.doubts().listed(node, subject);
                false
            }
        }
    }

    /// What a node may report about places.
    pub(super) fn own_place(&self, node: &NodeId) -> OwnPlace {
        let node_id =
            self.driver_info.read(|cache| cache.entry(node).map(|entry| entry.node_id().to_owned()));
        let shared = self.settings.shared_topology_keys.iter().map(|key| key.to_ascii_lowercase());
        OwnPlace {
            topology: self.topology(node),
            node_id: node_id.unwrap_or_default(),
            shared: shared.collect(),
        }
    }
}

/// The topology of a node, and its `node_id`: a node may report no other.
#[derive(Debug)]
pub(super) struct OwnPlace {
    topology: csi::Topology,
    node_id: String,
    /// In lower case.
    shared: BTreeSet<String>,
}

impl OwnPlace {
    /// The answer with the place of the node instead of others.
    ///
    /// # Errors
    /// If the answer cannot be decoded.
    pub(super) fn correct(&self, method: Method, message: Bytes) -> Result<Bytes, Outcome> {
        let corrected = match method {
            Method::CreateVolume => protobuf::replace_each(&message, RESOURCE, |volume| self.volume(volume)),
            Method::ControllerGetVolume => self.listed_volume(&message),
            Method::CreateSnapshot | Method::GetSnapshot => self.listed_snapshot(&message),
            Method::CreateVolumeGroupSnapshot | Method::GetVolumeGroupSnapshot => {
                let group = |group: &[u8]| protobuf::replace_each(group, SNAPSHOTS, |one| self.snapshot(one));
                protobuf::replace_each(&message, RESOURCE, group)
            }
            _ => return Ok(message),
        };
        let reason = || format!("the answer to {method} cannot be decoded");
        corrected.map(Bytes::from).ok_or_else(|| Fault::Protocol { reason: reason() }.into())
    }

    /// An entry of a list of volumes.
    pub(super) fn listed_volume(&self, entry: &[u8]) -> Option<Vec<u8>> {
        let entry = protobuf::replace_each(entry, RESOURCE, |volume| self.volume(volume))?;
        // A volume of a node without a topology may be attached to any node.
        let is_own = |id: Option<&str>| self.topology.segments.is_empty() || id == Some(&self.node_id);
        protobuf::replace_each(&entry, STATUS, |status| {
            protobuf::retain(status, |field| field.number != PUBLISHED_NODE_IDS || is_own(field.value.text()))
        })
    }

    /// An entry of a list of snapshots.
    pub(super) fn listed_snapshot(&self, entry: &[u8]) -> Option<Vec<u8>> {
        protobuf::replace_each(entry, RESOURCE, |snapshot| self.snapshot(snapshot))
    }

    fn volume(&self, volume: &[u8]) -> Option<Vec<u8>> {
        self.with_own_topology(volume, VOLUME_TOPOLOGY)
    }

    fn snapshot(&self, snapshot: &[u8]) -> Option<Vec<u8>> {
        self.with_own_topology(snapshot, SNAPSHOT_TOPOLOGY)
    }

    /// The resource with the topology of the node if it has one that is not the node's.
    fn with_own_topology(&self, resource: &[u8], number: u32) -> Option<Vec<u8>> {
        for topology in protobuf::fields(resource)?.of(number) {
            if !self.admits(&csi::Topology::decode(topology.bytes()?).ok()?) {
                let rest = protobuf::remove_field(resource, number)?;
                return Some(match self.topology.segments.is_empty() {
                    true => rest,
                    false => protobuf::append_field(&rest, number, &self.topology.encode_to_vec()).into(),
                });
            }
        }
        Some(resource.to_vec())
    }

    /// Whether a topology is part of that of the node, and reached from no other node. With shared keys alone it could
    /// be that of a neighbor.
    fn admits(&self, topology: &csi::Topology) -> bool {
        let has_own = |topology: &csi::Topology| {
            topology.segments.keys().any(|key| !self.shared.contains(&key.to_ascii_lowercase()))
        };
        !topology.segments.is_empty()
            && self.topology.is_within(topology)
            && (has_own(topology) || !has_own(&self.topology))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Snapshots of a few bytes with the topology of another node, which the long one of this node replaces.
    #[test]
    fn correction_of_many_snapshots_is_bounded() {
        let at = |value: &str| csi::Topology::from_iter([("node", value)]);
        let place =
            OwnPlace { topology: at(&"a".repeat(4096)), node_id: String::new(), shared: BTreeSet::new() };
        let corrected = |count| {
            let snapshot = csi::Snapshot { accessible_topology: vec![at("b")], ..Default::default() };
            let group = csi::VolumeGroupSnapshot { snapshots: vec![snapshot; count], ..Default::default() };
            let answer = csi::GetVolumeGroupSnapshotResponse { group_snapshot: Some(group) };
            let corrected = place.correct(Method::GetVolumeGroupSnapshot, answer.encode_to_vec().into());
            corrected.map(|answer| answer.len()).map_err(|outcome| outcome.code)
        };
        let longest = (1000..2000).map_while(|count| corrected(count).ok()).last();
        assert!(longest.is_some_and(|bytes| (4_180_000..=4 << 20).contains(&bytes)), "{longest:?}");
        assert_eq!(corrected(2000), Err(csi_proto::Code::UNAVAILABLE));
    }

    #[test]
    fn topology_is_admitted_with_a_segment_of_this_node_alone() {
        let at = |segments: &[(&str, &str)]| csi::Topology::from_iter(segments.iter().copied());
        let place = |topology: csi::Topology| OwnPlace {
            topology,
            node_id: String::new(),
            shared: ["zone".to_owned()].into(),
        };
        let own = place(at(&[("node", "a"), ("Zone", "z")]));
        for admitted in [at(&[("node", "a")]), at(&[("NODE", "a"), ("zone", "z")])] {
            assert!(own.admits(&admitted), "{admitted:?}");
        }
        for wrong in [
            at(&[]),
            at(&[("zone", "z")]),
            at(&[("node", "b")]),
            at(&[("node", "a"), ("zone", "y")]),
            at(&[("node", "a"), ("NODE", "b")]),
            at(&[("node", "a"), ("rack", "r")]),
        ] {
            assert!(!own.admits(&wrong), "{wrong:?}");
        }
        // A node with shared segments only.
        let shared = place(at(&[("zone", "z")]));
        assert!(shared.admits(&at(&[("ZONE", "z")])) && !shared.admits(&at(&[("zone", "y")])));
        assert!(!place(at(&[])).admits(&at(&[("node", "a")])));
    }
}
