//! Topology routing against nodes in this process.

mod chaos;
mod decommission;
mod foreign_ids;
mod foreign_places;
mod hostile;
mod many_nodes;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message as _;
use tokio::time::{Instant, sleep};

use super::*;
use crate::call::{Call, Fault, Metadata, MethodPath, NodeSession, Reply, Subject};
use crate::observe::Abandoned;
use crate::relay::{ClockTerms, Reachability, RetryRelay};
use crate::routing::store::MemoryStore;
use csi_proto::Code;

/// The true state of the nodes, and every call to them.
#[derive(Default)]
struct World(Mutex<State>);

#[derive(Default)]
struct State {
    /// Volumes by node.
    nodes: BTreeMap<String, BTreeSet<String>>,
    offline: BTreeSet<String>,
    without_driver: BTreeSet<String>,
    /// Nodes whose driver does not answer GetCapacity, and sends only the first part of block metadata.
    hanging: BTreeSet<String>,
    /// Connected nodes that answer nothing.
    silent: BTreeSet<String>,
    /// The names that nodes report as their `node_id` and topology instead of their own.
    lies: BTreeMap<String, String>,
    /// The topology of all nodes instead of their own.
    zone: Option<String>,
    /// How the lists of nodes are wrong.
    lists: BTreeMap<String, WrongList>,
    /// The answers of nodes instead of those by their state, by node and method path.
    forged: BTreeMap<(String, &'static str), Vec<u8>>,
    calls: Vec<(String, Method)>,
    /// The calls with the secret `canary`.
    secrets: Vec<(String, Method)>,
    /// Of the last CreateVolume.
    remaining: Option<Duration>,
    open: usize,
    most_open: usize,
}

#[derive(Clone, Copy, Debug)]
enum WrongList {
    /// Each page has a next one.
    Endless,
    /// Each page has a next one, and arrives just before its timeout.
    Slow,
    /// A page has more entries than requested.
    TooLong,
    Fails,
    Hangs,
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn place(name: &str) -> csi::Topology {
    csi::Topology::from_iter([("node", name)])
}

fn ok(message: impl prost::Message) -> Result<Replies, Fault> {
    Ok(Replies::unary(message.encode_to_vec(), Outcome::ok()))
}

impl World {
    fn of(nodes: usize) -> Self {
        let world = Self::default();
        world.lock().nodes = (0..nodes).map(|number| (format!("edge-{number}"), BTreeSet::new())).collect();
        world
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has(&self, name: &str, volume: &str) {
        self.lock().nodes.get_mut(name).unwrap().insert(volume.to_owned());
    }

    fn forge(&self, name: &str, method: Method, answer: impl Into<Vec<u8>>) {
        self.lock().forged.insert((name.to_owned(), method.path()), answer.into());
    }

    /// Clears the recorded calls and returns how many there were per method.
    fn take_calls(&self) -> BTreeMap<&'static str, usize> {
        let mut counts = BTreeMap::new();
        for (_, method) in std::mem::take(&mut self.lock().calls) {
            *counts.entry(method.path().rsplit('/').next().unwrap()).or_default() += 1;
        }
        counts
    }

    fn answer(&self, call: Call) -> Result<Replies, Fault> {
        let (name, method) = (call.node.to_string(), Method::from_path(call.method.as_str()).unwrap());
        let mut state = self.lock();
        if state.offline.contains(&name) {
            return Err(Fault::NodeOffline { node: call.node });
        }
        if state.without_driver.contains(&name) {
            return Err(Fault::DriverNotRegistered { driver: call.driver });
        }
        if let Some(forged) = state.forged.get(&(name.clone(), method.path())) {
            return Ok(Replies::unary(forged.clone(), Outcome::ok()));
        }
        let reported = state.lies.get(&name).unwrap_or(&name).clone();
        let volumes = state.nodes.get_mut(&name).unwrap();
        match method {
            Method::GetPluginInfo => ok(csi::GetPluginInfoResponse::default()),
            Method::NodeGetInfo => ok(csi::NodeGetInfoResponse {
                accessible_topology: Some(place(state.zone.as_ref().unwrap_or(&reported))),
                node_id: reported,
                ..Default::default()
            }),
            Method::GetPluginCapabilities => {
                let services = [Service::ControllerService].map(csi::PluginCapability::service);
                ok(services.into_iter().collect::<csi::GetPluginCapabilitiesResponse>())
            }
            Method::ControllerGetCapabilities => {
                let rpcs = [Rpc::CreateDeleteVolume, Rpc::ListVolumes, Rpc::GetCapacity];
                ok(rpcs.into_iter().collect::<csi::ControllerGetCapabilitiesResponse>())
            }
            Method::Probe => ok(csi::ProbeResponse::default()),
            Method::ListVolumes => {
                let entry = |id: &String| csi::list_volumes_response::Entry {
                    volume: Some(csi::Volume { volume_id: id.clone(), ..Default::default() }),
                    ..Default::default()
                };
                let mut entries: Vec<_> = volumes.iter().map(entry).collect();
                let mut next_token = String::new();
                match state.lists.get(&name) {
                    Some(WrongList::Endless | WrongList::Slow) => next_token = "more".to_owned(),
                    Some(WrongList::TooLong) => entries.extend(vec![entry(&"x".to_owned()); 100]),
                    Some(WrongList::Fails) => {
                        return Ok(Replies::outcome(Outcome::from_driver(Code::INTERNAL, "no")));
                    }
                    Some(WrongList::Hangs) | None => {}
                }
                ok(csi::ListVolumesResponse { entries, next_token })
            }
            Method::ListSnapshots => {
                let wanted = csi::ListSnapshotsRequest::decode(call.body).unwrap().snapshot_id;
                let is_wanted = |id: &&String| wanted.is_empty() || **id == wanted;
                let entry = |id: &String| csi::list_snapshots_response::Entry {
                    snapshot: Some(csi::Snapshot { snapshot_id: id.clone(), ..Default::default() }),
                };
                let entries = volumes.iter().filter(is_wanted).map(entry).collect();
                ok(csi::ListSnapshotsResponse { entries, ..Default::default() })
            }
            Method::ControllerListVolumeHealth => ok(csi::ControllerListVolumeHealthResponse::default()),
            Method::GetCapacity => {
                ok(csi::GetCapacityResponse { available_capacity: 7, ..Default::default() })
            }
            Method::CreateVolume => {
                let request = csi::CreateVolumeRequest::decode(call.body).unwrap();
                let volume_id = format!("{name}/{}", request.name);
                volumes.insert(volume_id.clone());
                let volume = csi::Volume { volume_id, ..Default::default() };
                ok(csi::CreateVolumeResponse { volume: Some(volume) })
            }
            Method::ControllerGetVolume => {
                let volume_id = csi::ControllerGetVolumeRequest::decode(call.body).unwrap().volume_id;
                if !volumes.contains(&volume_id) {
                    return Ok(Replies::outcome(Outcome::from_driver(Code::NOT_FOUND, "no such volume")));
                }
                let volume = csi::Volume { volume_id, ..Default::default() };
                ok(csi::ControllerGetVolumeResponse { volume: Some(volume), ..Default::default() })
            }
            Method::DeleteVolume => {
                volumes.remove(&csi::DeleteVolumeRequest::decode(call.body).unwrap().volume_id);
                ok(csi::DeleteVolumeResponse {})
            }
            Method::ControllerPublishVolume => ok(csi::ControllerPublishVolumeResponse::default()),
            Method::ControllerExpandVolume => ok(csi::ControllerExpandVolumeResponse::default()),
            Method::ControllerUnpublishVolume => ok(csi::ControllerUnpublishVolumeResponse {}),
            Method::DeleteVolumeGroupSnapshot => ok(csi::DeleteVolumeGroupSnapshotResponse {}),
            Method::GetMetadataAllocated => {
                let request = csi::GetMetadataAllocatedRequest::decode(call.body).unwrap();
                if !volumes.contains(&request.snapshot_id) {
                    return Ok(Replies::outcome(Outcome::from_driver(Code::NOT_FOUND, "no such snapshot")));
                }
                let message = || Reply::Message(name.clone().into());
                if state.hanging.contains(&name) {
                    return Ok(Replies::stream(stream::iter([message()]).chain(stream::pending())));
                }
                let parts = [message(), message(), Reply::End(Outcome::ok())];
                Ok(Replies::stream(stream::iter(parts)))
            }
            _ => Ok(Replies::outcome(Outcome::from_driver(Code::UNIMPLEMENTED, "no"))),
        }
    }
}

#[async_trait]
impl Relay for World {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        {
            let mut state = self.lock();
            let method = Method::from_path(call.method.as_str()).unwrap();
            state.calls.push((call.node.to_string(), method));
            if call.body.windows(6).any(|window| window == b"canary") {
                state.secrets.push((call.node.to_string(), method));
            }
            if method == Method::CreateVolume {
                state.remaining = call.remaining;
            }
            state.open += 1;
            state.most_open = state.most_open.max(state.open);
        }
        sleep(LATENCY).await;
        self.lock().open -= 1;
        let (is_capacity, is_list) = [Method::GetCapacity, Method::ListVolumes]
            .map(|method| call.method.as_str() == method.path())
            .into();
        let list = self.lock().lists.get(call.node.as_str()).copied();
        if is_list && matches!(list, Some(WrongList::Slow)) {
            sleep(Duration::from_millis(4500)).await;
        }
        let hangs = self.lock().silent.contains(call.node.as_str())
            || (is_capacity && self.lock().hanging.contains(call.node.as_str()))
            || (is_list && matches!(list, Some(WrongList::Hangs)));
        if hangs {
            sleep(Duration::from_secs(3600)).await;
        }
        self.answer(call)
    }
}

async fn open(disk: &MemoryStore) -> TopologyRouter {
    open_with(disk.clone(), Settings::default()).await
}

/// Opens a route that discovers its nodes.
async fn open_with(
    store: impl PlacementStore + DriverInfoStore + 'static,
    settings: Settings,
) -> TopologyRouter {
    let settings = Settings { discovers: true, ..settings };
    TopologyRouter::open(DriverName::new("csi-hostpath").unwrap(), [], store, settings).await.unwrap()
}

/// Reports all nodes as connected, and the list as complete.
fn report_all_up(route: &TopologyRouter, world: &World) {
    let names: Vec<_> = world.lock().nodes.keys().cloned().collect();
    for name in names {
        route.arrived(&node(&name));
    }
    route.synced();
}

/// Runs a script while the route refreshes the nodes in the background.
async fn while_running<T>(route: &TopologyRouter, world: &dyn Relay, script: impl Future<Output = T>) -> T {
    tokio::select! {
        () = route.driver_info.run(world) => unreachable!(),
        played = script => played,
    }
}

/// Runs a script with new nodes, which are connected and known.
async fn with_nodes(count: usize, script: impl AsyncFnOnce(&World, &TopologyRouter)) {
    let world = World::of(count);
    with_disk(&world, &MemoryStore::default(), async |route| script(&world, route).await).await;
}

/// Runs a script with a route on a disk, from its start to its end, while all nodes are connected and known.
async fn with_disk(world: &World, disk: &MemoryStore, script: impl AsyncFnOnce(&TopologyRouter)) {
    let route = open(disk).await;
    while_running(&route, world, async {
        report_all_up(&route, world);
        sleep(MINUTE).await;
        script(&route).await;
    })
    .await;
}

async fn call(
    route: &TopologyRouter,
    relay: &dyn Relay,
    method: Method,
    body: Vec<u8>,
) -> (Option<Bytes>, Code) {
    let (messages, code) = parts(route, relay, method, body).await;
    (messages.into_iter().next(), code)
}

fn inbound(method: Method, body: Vec<u8>) -> InboundCall {
    let (metadata, abandoned) = (Metadata::default(), Abandoned::default());
    let (method, end) = (MethodPath::new(method.path()).unwrap(), Instant::now() + Duration::from_secs(60));
    InboundCall { method, metadata, body: body.into(), end, abandoned }
}

async fn parts(
    route: &TopologyRouter,
    relay: &dyn Relay,
    method: Method,
    body: Vec<u8>,
) -> (Vec<Bytes>, Code) {
    let (messages, outcome) = route.answer(relay, inbound(method, body)).await.collect().await;
    (messages, outcome.code)
}

fn secrets() -> BTreeMap<String, String> {
    [("password".to_owned(), "canary".to_owned())].into()
}

/// The nodes that got secrets since the last call.
fn trusted(world: &World) -> BTreeSet<String> {
    std::mem::take(&mut world.lock().secrets).into_iter().map(|(name, _)| name).collect()
}

async fn create(route: &TopologyRouter, relay: &dyn Relay, name: &str, at: &str) -> Code {
    created(route, relay, name, at).await.1
}

/// The topologies of the volume and the code in the answer to a CreateVolume.
async fn created(
    route: &TopologyRouter,
    relay: &dyn Relay,
    name: &str,
    at: &str,
) -> (Vec<csi::Topology>, Code) {
    let requirement = csi::TopologyRequirement { preferred: vec![place(at)], requisite: vec![place(at)] };
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        accessibility_requirements: Some(requirement),
        ..Default::default()
    };
    let (message, code) = call(route, relay, Method::CreateVolume, request.encode_to_vec()).await;
    let answer = csi::CreateVolumeResponse::decode(message.unwrap_or_default()).unwrap();
    (answer.volume.map(|volume| volume.accessible_topology).unwrap_or_default(), code)
}

async fn delete(route: &TopologyRouter, relay: &dyn Relay, id: &str) -> Code {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    call(route, relay, Method::DeleteVolume, request.encode_to_vec()).await.1
}

async fn capacity(route: &TopologyRouter, world: &World, at: &str) -> i64 {
    let request = csi::GetCapacityRequest { accessible_topology: Some(place(at)), ..Default::default() };
    let (message, code) = call(route, world, Method::GetCapacity, request.encode_to_vec()).await;
    assert_eq!(code, Code::OK, "{at}");
    csi::GetCapacityResponse::decode(message.unwrap()).unwrap().available_capacity
}

const MINUTE: Duration = Duration::from_secs(60);

/// The latency of a call.
const LATENCY: Duration = Duration::from_millis(20);
