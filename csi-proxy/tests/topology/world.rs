//! The nodes and their drivers, as a relay.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proxy::{Call, Fault, Outcome, Relay, Replies};
use prost::Message;

use super::common::driver_name;

/// A driver on a node, as far as a controller sees it.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) offline: bool,
    /// Whether the answer to the next CreateVolume is lost.
    pub(super) loses_next: bool,
    /// Whether its answers report the topology of a volume.
    pub(super) reports_topology: bool,
    /// The size in bytes of the answer to GetCapacity, which has unknown fields; 0 for a usual answer.
    pub(super) capacity_bytes: usize,
    /// Whether the driver does not support lists.
    pub(super) cannot_list: bool,
    /// Whether volume ids are the same on every node.
    pub(super) plain_ids: bool,
    /// Volumes by name, with their ids.
    pub(super) volumes: BTreeMap<String, String>,
    pub(super) snapshots: BTreeSet<String>,
    pub(super) attached: BTreeSet<(String, String)>,
    pub(super) created: usize,
}

/// All nodes and the relay to them.
#[derive(Debug, Clone, Default)]
pub(super) struct World(pub(super) Arc<Mutex<BTreeMap<String, Node>>>);

impl World {
    pub(super) fn new(nodes: &[&str]) -> Self {
        let node = |name: &&str| ((*name).to_owned(), Node::default());
        Self(Arc::new(Mutex::new(nodes.iter().map(node).collect())))
    }

    pub(super) fn with<T>(&self, node: &str, act: impl FnOnce(&mut Node) -> T) -> T {
        act(self.0.lock().unwrap().get_mut(node).unwrap())
    }

    pub(super) fn volumes(&self, node: &str) -> Vec<String> {
        self.with(node, |node| node.volumes.keys().cloned().collect())
    }
}

pub(super) fn place(node: &str) -> csi::Topology {
    csi::Topology::from_iter([("topology.csi-hostpath/node", node)])
}

fn ok(message: impl Message) -> Result<Replies, Fault> {
    // A field of a later version, which must pass unchanged.
    let mut bytes = message.encode_to_vec();
    bytes.extend_from_slice(LATER);
    Ok(Replies::unary(bytes, Outcome::ok()))
}

/// Field 99 with the text `later`.
pub(super) const LATER: &[u8] = b"\x9a\x06\x05later";

fn failed(code: csi_proxy::Code, text: &str) -> Result<Replies, Fault> {
    Ok(Replies::outcome(Outcome::from_driver(code, text)))
}

#[async_trait]
impl Relay for World {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let mut nodes = self.0.lock().unwrap();
        let name = call.node.to_string();
        let Some(node) = nodes.get_mut(&name).filter(|node| !node.offline) else {
            return Err(Fault::NodeOffline { node: call.node });
        };
        let body = call.body;
        match Method::from_path(call.method.as_str()).unwrap() {
            Method::GetPluginInfo => ok(csi::GetPluginInfoResponse {
                name: driver_name().to_string(),
                vendor_version: "1".to_owned(),
                ..Default::default()
            }),
            Method::NodeGetInfo => ok(csi::NodeGetInfoResponse {
                node_id: format!("id-of-{name}"),
                accessible_topology: Some(place(&name)),
                ..Default::default()
            }),
            Method::GetPluginCapabilities => {
                let services = [Service::ControllerService].map(csi::PluginCapability::service);
                ok(services.into_iter().collect::<csi::GetPluginCapabilitiesResponse>())
            }
            Method::ControllerGetCapabilities => {
                let mut rpcs = vec![Rpc::CreateDeleteVolume, Rpc::GetCapacity];
                rpcs.extend((!node.cannot_list).then_some(Rpc::ListVolumes));
                if name == "edge-1" {
                    rpcs.push(Rpc::ExpandVolume);
                }
                ok(rpcs.into_iter().collect::<csi::ControllerGetCapabilitiesResponse>())
            }
            Method::NodeGetCapabilities => ok(csi::NodeGetCapabilitiesResponse::default()),
            Method::Probe => ok(csi::ProbeResponse { ready: Some(true) }),
            Method::CreateVolume => create(node, &name, body),
            Method::DeleteVolume => {
                let request = csi::DeleteVolumeRequest::decode(body).unwrap();
                node.volumes.retain(|_, id| *id != request.volume_id);
                ok(csi::DeleteVolumeResponse {})
            }
            Method::ControllerGetVolume => {
                let id = csi::ControllerGetVolumeRequest::decode(body).unwrap().volume_id;
                if !node.volumes.values().any(|found| *found == id) {
                    return failed(csi_proxy::Code::NOT_FOUND, "no such volume");
                }
                let volume = csi::Volume { volume_id: id, ..Default::default() };
                ok(csi::ControllerGetVolumeResponse { volume: Some(volume), ..Default::default() })
            }
            Method::ValidateVolumeCapabilities => {
                let id = csi::ValidateVolumeCapabilitiesRequest::decode(body).unwrap().volume_id;
                match node.volumes.values().any(|found| *found == id) {
                    true => ok(csi::ValidateVolumeCapabilitiesResponse::default()),
                    false => failed(csi_proxy::Code::NOT_FOUND, "no such volume"),
                }
            }
            Method::CreateSnapshot => {
                let request = csi::CreateSnapshotRequest::decode(body).unwrap();
                let snapshot_id = format!("{name}-{}", request.name);
                node.snapshots.insert(snapshot_id.clone());
                let snapshot = csi::Snapshot {
                    snapshot_id,
                    source_volume_id: request.source_volume_id,
                    ready_to_use: true,
                    ..Default::default()
                };
                ok(csi::CreateSnapshotResponse { snapshot: Some(snapshot) })
            }
            Method::ControllerPublishVolume => {
                let request = csi::ControllerPublishVolumeRequest::decode(body).unwrap();
                node.attached.insert((request.volume_id, request.node_id));
                ok(csi::ControllerPublishVolumeResponse::default())
            }
            Method::ControllerUnpublishVolume => {
                let request = csi::ControllerUnpublishVolumeRequest::decode(body).unwrap();
                node.attached.retain(|(volume, _)| *volume != request.volume_id);
                ok(csi::ControllerUnpublishVolumeResponse {})
            }
            Method::ListVolumes => list(node, body),
            Method::GetCapacity if node.capacity_bytes > 0 => {
                // Field 15 with the number 0, again and again.
                Ok(Replies::unary(b"\x78\x00".repeat(node.capacity_bytes / 2), Outcome::ok()))
            }
            Method::GetCapacity => {
                ok(csi::GetCapacityResponse { available_capacity: 100, ..Default::default() })
            }
            other => panic!("{other} is not implemented by this driver"),
        }
    }
}

fn create(node: &mut Node, name: &str, body: Bytes) -> Result<Replies, Fault> {
    let request = csi::CreateVolumeRequest::decode(body).unwrap();
    let id = match node.plain_ids {
        true => "1".to_owned(),
        false => format!("{name}/{}", request.name),
    };
    if request.parameters.contains_key("refuse") {
        return failed(csi_proxy::Code::INVALID_ARGUMENT, "no");
    }
    if request.parameters.contains_key("kind") && node.volumes.contains_key(&request.name) {
        return failed(csi_proxy::Code::ALREADY_EXISTS, "it exists and is of another kind");
    }
    node.created += 1;
    node.volumes.insert(request.name, id.clone());
    if std::mem::take(&mut node.loses_next) {
        return Err(Fault::LinkLost { reason: "cut".to_owned() });
    }
    let volume = csi::Volume {
        volume_id: id,
        capacity_bytes: 7,
        accessible_topology: node.reports_topology.then(|| place(name)).into_iter().collect(),
        ..Default::default()
    };
    ok(csi::CreateVolumeResponse { volume: Some(volume) })
}

/// Lists at most two volumes per page. The token is the index of the next volume.
fn list(node: &Node, body: Bytes) -> Result<Replies, Fault> {
    let request = csi::ListVolumesRequest::decode(body).unwrap();
    let Ok(from) = request.starting_token.parse().or_else(|error| match request.starting_token.as_str() {
        "" => Ok(0),
        _ => Err(error),
    }) else {
        return failed(csi_proxy::Code::ABORTED, "no such token");
    };
    let most = if request.max_entries == 0 { 2 } else { request.max_entries.min(2) };
    let most = usize::try_from(most).unwrap();
    let ids: Vec<_> = node.volumes.values().collect();
    let entry = |id: &&String| csi::list_volumes_response::Entry {
        volume: Some(csi::Volume { volume_id: (*id).clone(), ..Default::default() }),
        ..Default::default()
    };
    let entries: Vec<_> = ids.iter().skip(from).take(most).map(entry).collect();
    let next = from + entries.len();
    let next_token = if next < ids.len() { next.to_string() } else { String::new() };
    ok(csi::ListVolumesResponse { entries, next_token })
}
