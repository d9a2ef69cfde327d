//! A route that is told which nodes there are, up to a thousand of them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use prost::Message as _;
use tokio::time::sleep;

use super::super::*;
use crate::call::{Fault, NodeSession, Reply};
use crate::relay::{ClockTerms, Reachability, RetryRelay};
use crate::routing::store::{FaultyStore, MemoryStore, StoreFault};
use csi_proto::Code;

/// The nodes as they are, whatever the route is told, and every call to them.
#[derive(Default)]
struct World(Mutex<State>);

#[derive(Default)]
struct State {
    /// Volumes by node.
    nodes: BTreeMap<String, BTreeSet<String>>,
    offline: BTreeSet<String>,
    without_driver: BTreeSet<String>,
    /// Their driver never says how much room there is, and sends no more than the first part of block metadata.
    hanging: BTreeSet<String>,
    calls: Vec<(String, Method)>,
    /// Of the last CreateVolume.
    remaining: Option<Duration>,
    open: usize,
    most_open: usize,
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

    /// Forgets the calls that were made, and says how many there were of each method.
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
        let volumes = state.nodes.get_mut(&name).unwrap();
        match method {
            Method::GetPluginInfo => ok(csi::GetPluginInfoResponse::default()),
            Method::NodeGetInfo => ok(csi::NodeGetInfoResponse {
                node_id: name.clone(),
                accessible_topology: Some(place(&name)),
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
                ok(csi::ListVolumesResponse {
                    entries: volumes.iter().map(entry).collect(),
                    ..Default::default()
                })
            }
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
            if method == Method::CreateVolume {
                state.remaining = call.remaining;
            }
            state.open += 1;
            state.most_open = state.most_open.max(state.open);
        }
        sleep(WAY).await;
        self.lock().open -= 1;
        let hangs = call.method.as_str() == Method::GetCapacity.path()
            && self.lock().hanging.contains(call.node.as_str());
        if hangs {
            sleep(Duration::from_secs(3600)).await;
        }
        self.answer(call)
    }
}

async fn open(disk: &MemoryStore) -> TopologyRouter {
    let settings = TopologySettings { discovers: true, ..TopologySettings::default() };
    let driver = DriverName::new("csi-hostpath").unwrap();
    TopologyRouter::open(driver, [], disk.clone(), settings).await.unwrap()
}

/// Tells a route that all nodes of a world are there, and nobody else.
fn tell_all(route: &TopologyRouter, world: &World) {
    let names: Vec<_> = world.lock().nodes.keys().cloned().collect();
    for name in names {
        route.arrived(&node(&name));
    }
    route.current();
}

/// Plays a script while the route asks the nodes in the background.
async fn while_running<T>(route: &TopologyRouter, world: &dyn Relay, script: impl Future<Output = T>) -> T {
    tokio::select! {
        () = route.drivers.run(world) => unreachable!(),
        played = script => played,
    }
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

fn inquiry(method: Method, body: Vec<u8>) -> Inquiry {
    let (metadata, abandoned) = (Metadata::default(), Abandoned::default());
    let (method, end) = (MethodPath::new(method.path()).unwrap(), Instant::now() + Duration::from_secs(60));
    Inquiry { method, metadata, body: body.into(), end, abandoned }
}

async fn parts(
    route: &TopologyRouter,
    relay: &dyn Relay,
    method: Method,
    body: Vec<u8>,
) -> (Vec<Bytes>, Code) {
    let (messages, outcome) = route.answer(relay, inquiry(method, body)).await.collect().await;
    (messages, outcome.code)
}

async fn create(route: &TopologyRouter, relay: &dyn Relay, name: &str, at: &str) -> Code {
    created(route, relay, name, at).await.1
}

/// The answer to a CreateVolume: where the volume is, and the code.
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

/// How long a call is on its way.
const WAY: Duration = Duration::from_millis(20);

#[tokio::test(start_paused = true)]
async fn the_time_that_choosing_a_node_takes_is_the_callers() {
    let (world, disk) = (World::of(1), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        let began = Instant::now();
        // Its node has not been asked yet where it is.
        assert_eq!(create(&route, &world, "pvc-1", "edge-0").await, Code::OK);
        let choosing = began.elapsed() - WAY;
        assert!(choosing >= 4 * WAY, "{choosing:?}");
        assert_eq!(world.lock().remaining, Some(MINUTE - choosing));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_thousand_nodes_are_asked_once_when_they_come_a_few_at_a_time_and_then_seldom() {
    let (world, disk) = (World::of(1000), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        let mut calls = world.take_calls();
        let brief = calls.remove("Probe").unwrap();
        assert!((1000..1020).contains(&brief), "{brief}: one node more often");
        assert!(calls["ControllerGetCapabilities"] == 1000 && calls.len() == 5, "{calls:?}");
        assert!(world.lock().most_open <= AT_ONCE, "{} at once", world.lock().most_open);
        assert_eq!(route.node_counts(), (1000, 1000));
        sleep(3 * MINUTE).await;
        let calls = world.take_calls();
        assert!(calls.values().all(|count| *count <= 20), "one node answers Probe: {calls:?}");

        assert_eq!(create(&route, &world, "pvc-1", "edge-777").await, Code::OK);
        assert_eq!(world.lock().nodes["edge-777"].len(), 1);
        assert_eq!(delete(&route, &world, "edge-777/pvc-1").await, Code::OK);
        let calls = world.take_calls();
        assert_eq!((calls["CreateVolume"], calls["DeleteVolume"]), (1, 1), "each went to the one node");
    })
    .await;
}

/// A volume's name is placed, and what its node is was not kept: the restart came before that was on the disk.
#[tokio::test(start_paused = true)]
async fn no_volume_is_made_where_the_topology_is_not_known() {
    let (world, disk) = (World::of(2), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &world, "pvc-1", "edge-1").await, Code::OK);
    })
    .await;
    drop(route);
    disk.save(&node("edge-1"), None).await.unwrap();
    let route = open(&disk).await;
    tell_all(&route, &world);
    world.take_calls();
    // Nobody asks the nodes what they are.
    assert_eq!(created(&route, &world, "pvc-1", "edge-1").await, (vec![], Code::UNAVAILABLE));
    assert_eq!(world.take_calls().len(), 0, "nothing was sent");
    while_running(&route, &world, async {
        assert_eq!(created(&route, &world, "pvc-1", "edge-1").await, (vec![place("edge-1")], Code::OK));
    })
    .await;
    assert_eq!(route.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_is_away_has_no_capacity_and_is_not_asked() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(capacity(&route, &world, "edge-1").await, 7);
        world.take_calls();
        route.left(&node("edge-1"));
        assert_eq!(capacity(&route, &world, "edge-1").await, 0);
        assert!(!world.take_calls().contains_key("GetCapacity"));
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!(create(&route, &world, "pvc-1", "edge-1").await, Code::UNAVAILABLE);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_hangs_delays_only_its_own_capacity() {
    let (world, disk) = (World::of(100), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        world.lock().hanging.insert("edge-50".to_owned());
        world.lock().most_open = 0;
        let room = async |topology: Option<csi::Topology>| {
            let request = csi::GetCapacityRequest { accessible_topology: topology, ..Default::default() };
            let began = Instant::now();
            let (_, code) = call(&route, &world, Method::GetCapacity, request.encode_to_vec()).await;
            (code, began.elapsed())
        };
        let (code, took) = room(Some(place("edge-50"))).await;
        assert_eq!(code, Code::DEADLINE_EXCEEDED);
        assert!(took <= Duration::from_secs(6), "{took:?}");
        for number in 0..50 {
            let (code, took) = room(Some(place(&format!("edge-{number}")))).await;
            assert!(code == Code::OK && took <= Duration::from_millis(50), "edge-{number}: {code} {took:?}");
        }
        // All together: a sum without one of them would be a lie.
        let (code, took) = room(None).await;
        assert_eq!(code, Code::DEADLINE_EXCEEDED);
        assert!(took <= Duration::from_secs(6), "{took:?}");
        assert!(world.lock().most_open <= AT_ONCE, "{} at once", world.lock().most_open);
        route.left(&node("edge-50"));
        let (code, took) = room(Some(place("edge-50"))).await;
        assert_eq!((code, took), (Code::OK, Duration::ZERO), "it is away and has no room");
    })
    .await;
}

/// Only a driver, or a durable record of what a driver said, makes a deletion successful.
#[tokio::test(start_paused = true)]
async fn an_unknown_id_is_not_deleted_while_a_node_is_away() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    world.has("edge-1", "old");
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(delete(&route, &world, "old").await, Code::OK);
        assert!(world.lock().nodes["edge-1"].is_empty());
        world.has("edge-1", "older");
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        assert_eq!(delete(&route, &world, "older").await, Code::UNAVAILABLE);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_node_without_the_driver_holds_up_nobody_and_a_decommissioned_one_frees_its_names() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    world.lock().without_driver.insert("edge-2".to_owned());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(call(&route, &world, Method::ListVolumes, Vec::new()).await.1, Code::OK);
        assert_eq!(create(&route, &world, "pvc-1", "edge-1").await, Code::OK);
        assert_eq!(create(&route, &world, "pvc-2", "edge-2").await, Code::RESOURCE_EXHAUSTED);
        let connected = DecommissionError::Connected { node: node("edge-1") };
        assert_eq!(route.decommission(&node("edge-1")).await, Err(connected));
        let unknown = route.decommission(&node("edge-9")).await;
        assert!(matches!(unknown, Err(DecommissionError::Unknown { .. })), "{unknown:?}");
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        assert_eq!(create(&route, &world, "pvc-1", "edge-0").await, Code::UNAVAILABLE, "it is on edge-1");
        assert_eq!(call(&route, &world, Method::ListVolumes, Vec::new()).await.1, Code::UNAVAILABLE);
        assert_eq!(route.decommission(&node("edge-1")).await, Ok(Decommissioned { rows: 1, before: false }));
        assert_eq!(route.decommission(&node("edge-1")).await, Ok(Decommissioned { rows: 0, before: true }));
        assert_eq!(create(&route, &world, "pvc-1", "edge-0").await, Code::OK);
        assert_eq!(delete(&route, &world, "edge-1/pvc-1").await, Code::OK);
        assert_eq!(call(&route, &world, Method::ListVolumes, Vec::new()).await.1, Code::OK);
    })
    .await;
}

/// Over a restart too. A call that waits for the node when it is decommissioned does not reach it either.
#[tokio::test(start_paused = true)]
async fn a_decommissioned_node_that_returns_gets_no_calls_until_recommissioned() {
    let (world, disk) = (Arc::new(World::of(2)), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &*world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &*world, "pvc-1", "edge-1").await, Code::OK);
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        let reachability = Reachability::new(MINUTE);
        let session = |number| NodeSession { instance: 1, number };
        reachability.hub_connected();
        reachability.node_up(&node("edge-1"), session(1));
        reachability.synced();
        reachability.node_down(&node("edge-1"), session(1));
        let retry = RetryRelay::start(Arc::clone(&world), reachability.clone(), ClockTerms::default());
        let retry = retry.await.unwrap();
        let decommission = async {
            sleep(Duration::from_secs(1)).await;
            route.decommission(&node("edge-1")).await.unwrap();
            world.lock().offline.clear();
            world.take_calls();
            route.arrived(&node("edge-1"));
            reachability.node_up(&node("edge-1"), session(2));
            sleep(MINUTE).await;
        };
        let waiting = async {
            let began = Instant::now();
            (delete(&route, &retry, "edge-1/pvc-1").await, began.elapsed() < MINUTE / 2)
        };
        assert_eq!(tokio::join!(waiting, decommission).0, (Code::UNAVAILABLE, true));
        assert_eq!(create(&route, &*world, "pvc-1", "edge-1").await, Code::RESOURCE_EXHAUSTED);
        assert_eq!((route.node_counts(), route.decommissioned()), ((1, 1), vec![(node("edge-1"), true)]));
    })
    .await;
    drop(route);

    let route = open(&disk).await;
    while_running(&route, &*world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &*world, "pvc-1", "edge-1").await, Code::RESOURCE_EXHAUSTED);
        assert!(world.lock().calls.iter().all(|(name, _)| name != "edge-1"), "{:?}", world.lock().calls);
        assert_eq!(route.recommission(&node("edge-1")).await, Ok(true));
        assert_eq!(route.recommission(&node("edge-1")).await, Ok(false));
        sleep(MINUTE).await;
        assert_eq!(create(&route, &*world, "pvc-1", "edge-1").await, Code::OK);
        assert_eq!((route.node_counts(), route.decommissioned()), ((2, 2), vec![]));
    })
    .await;
    drop(route);
    assert_eq!(open(&disk).await.decommissioned(), []);
}

/// The node gets no calls from the moment of the command, wherever the disk fails: before it is known who it is, or while what it had
/// is released. The rest is done when the command is repeated, or at the next start.
#[tokio::test]
async fn a_full_disk_gives_a_decommissioned_node_no_calls_and_the_rest_is_done_later() {
    let named = [node("edge-0"), node("edge-1")];
    let driver = DriverName::new("csi-hostpath").unwrap();
    let open = async |store: FaultyStore<MemoryStore>| {
        let settings = TopologySettings::default();
        TopologyRouter::open(driver.clone(), named.clone(), store, settings).await.unwrap()
    };
    let volumes = ["vol-1", "vol-2"].map(|id| Subject::Volume(id.into()));
    let still = |route: &TopologyRouter| {
        volumes.iter().filter(|volume| route.placements.node_of(volume).is_some()).count()
    };
    for (writes, repeats) in [(0, true), (1, true), (1, false), (2, true), (2, false)] {
        let disk = MemoryStore::default();
        let (store, handle) = FaultyStore::new(disk.clone());
        let route = open(store).await;
        for volume in &volumes {
            route.placements.found(volume, &named[1]).await.unwrap();
        }
        handle.cut_after(writes);
        let failed = route.decommission(&named[1]).await.unwrap_err();
        assert!(failed.to_string().contains("repeat the command"), "{failed}");
        assert_eq!(route.decommissioned(), [(named[1].clone(), false)]);
        assert_eq!(still(&route), if writes == 2 { 1 } else { 2 });
        handle.cut_after(None);
        if repeats {
            let rows = still(&route);
            let repeated = route.decommission(&named[1]).await;
            assert_eq!(repeated, Ok(Decommissioned { rows, before: true }));
        }
        drop(route);

        let next = open(FaultyStore::new(disk.clone()).0).await;
        assert_eq!((next.decommissioned().len(), next.node_counts().0, still(&next)), (1, 1, 0), "{writes}");
        assert!(volumes.iter().all(|volume| next.placements.is_deleted(volume)));
        assert_eq!(next.recommission(&named[1]).await, Ok(true));
        assert!(!volumes.iter().any(|volume| next.placements.is_deleted(volume)), "it may have them");
        assert_eq!(next.node_counts().0, 2, "it was given by name");
    }

    let disk = MemoryStore::default();
    let (store, handle) = FaultyStore::new(disk.clone());
    let route = open(store).await;
    route.placements.found(&volumes[0], &named[1]).await.unwrap();
    handle.fail(StoreFault::Refused);
    route.decommission(&named[1]).await.unwrap_err();
    drop(route);
    let next = open(FaultyStore::new(disk).0).await;
    assert_eq!((next.decommissioned().len(), still(&next)), (0, 1), "nobody was told that it is");
}

#[tokio::test(start_paused = true)]
async fn block_metadata_comes_from_the_node_that_has_the_snapshot_which_is_known_from_then_on() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    let route = open(&disk).await;
    let allocated = async |id: &str| {
        let request = csi::GetMetadataAllocatedRequest { snapshot_id: id.to_owned(), ..Default::default() };
        parts(&route, &world, Method::GetMetadataAllocated, request.encode_to_vec()).await
    };
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        world.has("edge-1", "snapshot");
        let whole = (vec![Bytes::from_static(b"edge-1"); 2], Code::OK);
        assert_eq!(allocated("snapshot").await, whole);
        world.take_calls();
        assert_eq!(allocated("snapshot").await, whole);
        assert_eq!(world.take_calls()["GetMetadataAllocated"], 1);
        assert_eq!(allocated("none").await, (vec![], Code::NOT_FOUND));
        world.lock().offline.insert("edge-2".to_owned());
        assert_eq!(allocated("none").await, (vec![], Code::UNAVAILABLE), "edge-2 may have it");
        assert_eq!(allocated("snapshot").await, whole);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn open_streams_from_a_node_end_when_it_is_decommissioned() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    let route = open(&disk).await;
    let snapshot_id = "snapshot".to_owned();
    let request = csi::GetMetadataAllocatedRequest { snapshot_id, ..Default::default() }.encode_to_vec();
    let allocated = || parts(&route, &world, Method::GetMetadataAllocated, request.clone());
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
        world.has("edge-1", "snapshot");
        world.lock().hanging.insert("edge-1".to_owned());
        // The first one looks for the snapshot, the other one knows where it is.
        let later = async {
            sleep(Duration::from_secs(1)).await;
            allocated().await
        };
        let decommission = async {
            sleep(Duration::from_secs(2)).await;
            route.left(&node("edge-1"));
            route.decommission(&node("edge-1")).await.unwrap();
        };
        let cut = (vec![Bytes::from_static(b"edge-1")], Code::UNAVAILABLE);
        let ended = async { tokio::join!(allocated(), later, decommission) };
        let ended = tokio::time::timeout(MINUTE, ended).await.unwrap();
        assert_eq!(ended, (cut.clone(), cut, ()));
    })
    .await;
}

/// With a relay that holds calls, each question to a node that is away would take its time. Who is there is reported late.
#[tokio::test(start_paused = true)]
async fn nodes_that_are_away_hold_up_none_that_is_there_after_a_restart_with_calls_being_held() {
    let (world, disk) = (Arc::new(World::of(500)), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        tell_all(&route, &world);
        sleep(MINUTE).await;
    })
    .await;
    drop(route);
    // The last of them in the order of their names is the only one that is there.
    let names: BTreeSet<_> = world.lock().nodes.keys().cloned().collect();
    let last = names.last().unwrap().clone();
    world.lock().offline = names.into_iter().filter(|name| *name != last).collect();
    let reachability = Reachability::new(Duration::from_secs(5));
    reachability.hub_connected();
    let retry = RetryRelay::start(Arc::clone(&world), reachability.clone(), ClockTerms::default());
    let retry = retry.await.unwrap();
    let route = open(&disk).await;
    let presence = async {
        sleep(Duration::from_secs(1)).await;
        reachability.node_up(&node(&last), NodeSession { instance: 1, number: 1 });
        reachability.synced();
        route.arrived(&node(&last));
        route.current();
    };
    while_running(&route, &retry, async {
        let created = async { (create(&route, &retry, "pvc-1", &last).await, Instant::now()) };
        let began = Instant::now();
        let ((code, ended), ()) = tokio::join!(created, presence);
        assert_eq!((code, ended - began < 2 * Duration::from_secs(1)), (Code::OK, true));
    })
    .await;
}
