//! One endpoint in front of a driver on several nodes that may be offline.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a failing test panics")]

#[path = "../common/mod.rs"]
mod common;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use common::{connect, driver_name, in_time};
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proxy::advanced::routing::FaultyStore;
use csi_proxy::{
    Endpoint, MemoryStore, NodeId, OfflinePolicy, Router, Serving, SocketAddress, TopologyRouter,
};
use prost::Message as _;
use tempfile::TempDir;
use tonic::transport::Channel;
use tonic::{Code, Request};
use world::{LATER, World, place};

/// A proxy in front of the world, which may be started again.
struct Proxy {
    directory: TempDir,
    disk: MemoryStore,
    world: World,
    offline: OfflinePolicy,
    /// The number of writes after which the disk fails; `None` for never.
    writes: Option<u64>,
    serving: Option<Serving>,
}

impl Proxy {
    async fn start(world: &World) -> Self {
        Self::with(world, OfflinePolicy::Wait).await
    }

    async fn with(world: &World, offline: OfflinePolicy) -> Self {
        let (directory, disk) = (tempfile::tempdir().unwrap(), MemoryStore::default());
        let mut proxy = Self { directory, disk, world: world.clone(), offline, writes: None, serving: None };
        proxy.serve().await;
        proxy
    }

    async fn serve(&mut self) {
        let nodes: Vec<NodeId> =
            self.world.0.lock().unwrap().keys().map(|name| NodeId::new(name).unwrap()).collect();
        let (store, handle) = FaultyStore::new(self.disk.clone());
        handle.cut_after(self.writes);
        let route = TopologyRouter::builder(driver_name(), nodes).with_offline_policy(self.offline);
        let route = route.open(store).await.unwrap();
        let address = SocketAddress::new(self.socket().to_str().unwrap()).unwrap();
        let endpoint = Endpoint::new(driver_name(), Router::topology(route), self.world.clone());
        self.serving = Some(endpoint.serve(address).await.unwrap());
        // This call is answered after the first round over the nodes.
        let mut identity = IdentityClient::new(connect(self.socket()).await);
        let _ = in_time(identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {})).await;
    }

    async fn restart(&mut self) {
        self.serving.take().unwrap().shutdown(Duration::from_secs(5)).await;
        self.serve().await;
    }

    fn socket(&self) -> std::path::PathBuf {
        self.directory.path().join("csi.sock")
    }

    async fn controller(&self) -> ControllerClient<Channel> {
        ControllerClient::new(connect(self.socket()).await)
    }

    async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, tonic::Status> {
        let mut request = Request::new(request);
        request.set_timeout(Duration::from_secs(20));
        let response = self.controller().await.create_volume(request).await?;
        Ok(response.into_inner().volume.unwrap())
    }

    async fn delete(&self, id: &str) -> Result<(), tonic::Status> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller().await.delete_volume(request).await.map(drop)
    }
}

/// A request of external-provisioner with WaitForFirstConsumer and `--strict-topology`.
fn strict(name: &str, node: &str) -> csi::CreateVolumeRequest {
    on(name, &[node])
}

fn on(name: &str, nodes: &[&str]) -> csi::CreateVolumeRequest {
    let places: Vec<_> = nodes.iter().map(|node| place(node)).collect();
    let requirement = csi::TopologyRequirement { preferred: places.clone(), requisite: places };
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        accessibility_requirements: Some(requirement),
        ..Default::default()
    }
}

#[tokio::test]
async fn volume_is_created_on_the_node_of_its_pod() {
    let world = World::new(&["edge-1", "edge-2", "edge-3"]);
    world.with("edge-3", |node| node.reports_topology = true);
    let proxy = Proxy::start(&world).await;
    for node in ["edge-2", "edge-3"] {
        let volume = proxy.create(strict(&format!("pvc-{node}"), node)).await.unwrap();
        assert_eq!(volume.accessible_topology, [place(node)], "{node}");
        assert_eq!((world.volumes(node).len(), volume.capacity_bytes), (1, 7));
    }
    assert!(world.volumes("edge-1").is_empty());
}

#[tokio::test]
async fn added_topology_keeps_unknown_fields() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let body = common::framed(&strict("pvc-1", "edge-2").encode_to_vec());
    let seen = common::raw_call(&proxy.socket(), Method::CreateVolume.path(), &[], body).await.unwrap();
    assert!(seen.body.windows(LATER.len()).any(|window| window == LATER), "{seen:?}");
}

/// A provisioner whose flags changed sends other parameters for the same name. Only the driver may call that a conflict.
#[tokio::test]
async fn changed_request_of_a_created_name_is_forwarded() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::start(&world).await;
    let first = proxy.create(strict("pvc-1", "edge-2")).await.unwrap();
    let mut other = strict("pvc-1", "edge-1");
    other.parameters.insert("csi.storage.k8s.io/pvc/name".to_owned(), "data".to_owned());
    for sent in [2, 3] {
        assert_eq!(proxy.create(other.clone()).await.unwrap().volume_id, first.volume_id);
        assert_eq!(world.with("edge-2", |node| node.created), sent);
        proxy.restart().await;
    }
    assert!(world.volumes("edge-1").is_empty());
    other.parameters.insert("kind".to_owned(), "other".to_owned());
    assert_eq!(proxy.create(other).await.unwrap_err().code(), Code::AlreadyExists);
    proxy.delete(&first.volume_id).await.unwrap();
    assert!(world.volumes("edge-2").is_empty());
}

/// csi-spec: the placement is sticky by name, durable before it is dispatched.
#[tokio::test]
async fn retry_after_lost_answer_goes_to_the_same_node() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::start(&world).await;
    world.with("edge-2", |node| node.loses_next = true);
    let lost = proxy.create(on("pvc-1", &["edge-2", "edge-1"])).await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    proxy.restart().await;
    let volume = proxy.create(on("pvc-1", &["edge-1", "edge-2"])).await.unwrap();
    assert_eq!(volume.volume_id, "edge-2/pvc-1");
    assert!(world.volumes("edge-1").is_empty());
    proxy.restart().await;
    proxy.delete("edge-2/pvc-1").await.unwrap();
    assert!(world.volumes("edge-2").is_empty());
    let volume = proxy.create(on("pvc-1", &["edge-1", "edge-2"])).await.unwrap();
    assert_eq!(volume.volume_id, "edge-1/pvc-1", "after its end a name is free");
}

#[tokio::test]
async fn name_has_one_volume_after_a_crash_at_any_write() {
    for writes in 0..6 {
        let world = World::new(&["edge-1", "edge-2"]);
        world.with("edge-2", |node| node.loses_next = true);
        let mut proxy = Proxy::start(&world).await;
        proxy.writes = Some(writes);
        proxy.restart().await;
        // These calls succeed or fail depending on `writes`.
        let _ = proxy.create(on("pvc-1", &["edge-2", "edge-1"])).await;
        let _ = proxy.create(on("pvc-1", &["edge-2", "edge-1"])).await;
        let _ = proxy.delete("edge-2/pvc-1").await;
        let _ = proxy.create(on("pvc-1", &["edge-2", "edge-1"])).await;
        proxy.writes = None;
        proxy.restart().await;
        let volume = proxy.create(on("pvc-1", &["edge-1", "edge-2"])).await.unwrap();
        let all = || world.volumes("edge-1").len() + world.volumes("edge-2").len();
        assert_eq!(all(), 1, "{writes} writes");
        proxy.delete(&volume.volume_id).await.unwrap();
        // The deletion is remembered.
        assert_eq!((all(), proxy.disk.keys().len()), (0, 1), "{writes} writes");
    }
}

#[tokio::test]
async fn volume_of_offline_node_waits_or_moves() {
    let world = World::new(&["edge-1", "edge-2"]);
    let waits = Proxy::start(&world).await;
    let moves = Proxy::with(&world, OfflinePolicy::Move).await;
    world.with("edge-2", |node| node.offline = true);
    for (proxy, code) in [(&waits, Code::Unavailable), (&moves, Code::ResourceExhausted)] {
        // The first call is sent if the proxy does not know yet that the node is offline.
        let _ = proxy.create(strict("pvc-0", "edge-2")).await;
        assert_eq!(proxy.create(strict("pvc-1", "edge-2")).await.unwrap_err().code(), code);
    }
    assert!(moves.create(on("pvc-1", &["edge-2", "edge-1"])).await.is_ok());
    world.with("edge-2", |node| node.offline = false);
    let back = async {
        while waits.create(strict("pvc-1", "edge-2")).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    in_time(back).await;
}

#[tokio::test]
async fn impossible_volume_gets_the_code_of_the_spec() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let code = async |request| proxy.create(request).await.unwrap_err().code();
    assert_eq!(code(csi::CreateVolumeRequest::default()).await, Code::InvalidArgument);
    let anywhere = csi::CreateVolumeRequest { name: "pvc-1".to_owned(), ..Default::default() };
    assert_eq!(code(anywhere).await, Code::InvalidArgument);
    assert_eq!(code(strict("pvc-1", "edge-9")).await, Code::ResourceExhausted);
    proxy.create(strict("pvc-1", "edge-1")).await.unwrap();
    // The driver knows whether another request of that name is compatible.
    let mut other = strict("pvc-1", "edge-1");
    other.parameters.insert("kind".to_owned(), "other".to_owned());
    assert_eq!(code(other).await, Code::AlreadyExists);
    let mut refused = strict("pvc-2", "edge-1");
    refused.parameters.insert("refuse".to_owned(), "yes".to_owned());
    assert_eq!(code(refused).await, Code::InvalidArgument);
    assert_eq!(proxy.create(strict("pvc-2", "edge-2")).await.unwrap().volume_id, "edge-2/pvc-2");
    let mut no_id = proxy.controller().await;
    let no_id = no_id.delete_volume(csi::DeleteVolumeRequest::default()).await.unwrap_err();
    assert_eq!(no_id.code(), Code::InvalidArgument);
}

#[tokio::test]
async fn unknown_volume_is_deleted_if_every_node_agrees() {
    let world = World::new(&["edge-1", "edge-2"]);
    for node in ["edge-1", "edge-2"] {
        world.with(node, |node| node.cannot_list = true);
    }
    let mut proxy = Proxy::start(&world).await;
    proxy.create(strict("pvc-1", "edge-1")).await.unwrap();
    // The table is lost.
    proxy.disk = MemoryStore::default();
    proxy.restart().await;
    world.with("edge-2", |node| node.offline = true);
    assert_eq!(proxy.delete("edge-1/pvc-1").await.unwrap_err().code(), Code::Unavailable);
    world.with("edge-2", |node| node.offline = false);
    proxy.delete("edge-1/pvc-1").await.unwrap();
    assert!(world.volumes("edge-1").is_empty());
}

#[tokio::test]
async fn unknown_id_is_searched_and_recorded() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::start(&world).await;
    proxy.create(strict("pvc-1", "edge-2")).await.unwrap();
    proxy.disk = MemoryStore::default();
    proxy.restart().await;
    let mut controller = proxy.controller().await;
    let mut found = async |id: &str| {
        let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        controller.controller_get_volume(request).await.map(drop).map_err(|status| status.code())
    };
    assert_eq!(found("edge-2/pvc-1").await, Ok(()));
    assert_eq!(found("edge-2/pvc-9").await, Err(Code::NotFound));
    world.with("edge-1", |node| node.offline = true);
    assert_eq!(found("edge-2/pvc-1").await, Ok(()), "where it is is known now");
    assert_eq!(found("edge-2/pvc-9").await, Err(Code::Unavailable), "it may be on the node that is away");
}

#[tokio::test]
async fn duplicate_id_of_two_nodes_is_rejected() {
    let world = World::new(&["edge-1", "edge-2"]);
    for node in ["edge-1", "edge-2"] {
        world.with(node, |node| node.plain_ids = true);
    }
    let proxy = Proxy::start(&world).await;
    proxy.create(strict("pvc-1", "edge-1")).await.unwrap();
    let refused = proxy.create(strict("pvc-2", "edge-2")).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("edge-1") && refused.message().contains("edge-2"), "{refused}");
    proxy.delete("1").await.unwrap();
    assert_eq!((world.volumes("edge-1").len(), world.volumes("edge-2").len()), (0, 1));
    assert_eq!(proxy.create(strict("pvc-2", "edge-2")).await.unwrap().volume_id, "1");
}

#[tokio::test]
async fn a_copy_is_made_where_its_snapshot_is() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let volume = proxy.create(strict("pvc-1", "edge-2")).await.unwrap();
    let request = csi::CreateSnapshotRequest {
        source_volume_id: volume.volume_id,
        name: "snap-1".to_owned(),
        ..Default::default()
    };
    let snapshot =
        proxy.controller().await.create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
    assert_eq!(snapshot.snapshot_id, "edge-2-snap-1");
    let source = csi::volume_content_source::SnapshotSource { snapshot_id: snapshot.snapshot_id };
    let source =
        csi::VolumeContentSource { r#type: Some(csi::volume_content_source::Type::Snapshot(source)) };
    let copy = |name: &str, nodes: &[&str]| csi::CreateVolumeRequest {
        volume_content_source: Some(source.clone()),
        ..on(name, nodes)
    };
    let made = proxy.create(copy("pvc-2", &["edge-1", "edge-2"])).await.unwrap();
    assert_eq!(made.volume_id, "edge-2/pvc-2");
    let refused = proxy.create(copy("pvc-3", &["edge-1"])).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn volume_is_attached_by_node_id() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let volume_id = proxy.create(strict("pvc-1", "edge-2")).await.unwrap().volume_id;
    let mut controller = proxy.controller().await;
    let mut publish = async |node_id: &str| {
        let (volume_id, node_id) = (volume_id.clone(), node_id.to_owned());
        let volume_capability = Some(csi::VolumeCapability::default());
        let request = csi::ControllerPublishVolumeRequest {
            volume_id,
            node_id,
            volume_capability,
            ..Default::default()
        };
        controller.controller_publish_volume(request).await.map(drop).map_err(|status| status.code())
    };
    assert_eq!(publish("id-of-edge-1").await, Err(Code::FailedPrecondition));
    assert_eq!(publish("id-of-edge-9").await, Err(Code::NotFound));
    assert_eq!(publish("id-of-edge-2").await, Ok(()));
    let attached = |node: &str| world.with(node, |node| node.attached.len());
    assert_eq!((attached("edge-1"), attached("edge-2")), (0, 1));
    // Without a node_id it is detached from all nodes.
    let request = csi::ControllerUnpublishVolumeRequest { volume_id, ..Default::default() };
    proxy.controller().await.controller_unpublish_volume(request).await.unwrap();
    assert_eq!(attached("edge-2"), 0);
}

#[tokio::test]
async fn list_of_volumes_covers_offline_nodes() {
    let world = World::new(&["edge-1", "edge-2", "edge-3"]);
    let proxy = Proxy::start(&world).await;
    let mut expected = BTreeSet::new();
    for (number, node) in ["edge-1", "edge-1", "edge-1", "edge-3"].iter().enumerate() {
        expected.insert(proxy.create(strict(&format!("pvc-{number}"), node)).await.unwrap().volume_id);
    }
    let list = async |max_entries: i32, starting_token: String| {
        let request = csi::ListVolumesRequest { max_entries, starting_token };
        proxy.controller().await.list_volumes(request).await.map(tonic::Response::into_inner)
    };
    for max in [0, 1, 2, 9] {
        let (mut found, mut token, mut pages) = (BTreeSet::new(), String::new(), 0);
        loop {
            let page = list(max, token).await.unwrap();
            assert!(max == 0 || page.entries.len() <= usize::try_from(max).unwrap());
            found.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            (token, pages) = (page.next_token, pages + 1);
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, expected, "{max} at most");
        assert!(pages <= 4 && (max == 1 || pages < 4), "{pages} pages of {max}");
    }
    assert_eq!(list(0, "junk".to_owned()).await.unwrap_err().code(), Code::Aborted);
    for node in ["edge-1", "edge-2"] {
        world.with(node, |node| node.offline = true);
    }
    for max in [0, 1, 2] {
        let (mut found, mut token) = (BTreeSet::new(), String::new());
        loop {
            let page = list(max, token).await.unwrap();
            assert!(max == 0 || page.entries.len() <= usize::try_from(max).unwrap());
            for volume in page.entries.into_iter().map(|entry| entry.volume.unwrap()) {
                let recorded = volume.volume_id.starts_with("edge-1/");
                assert_eq!(volume.accessible_topology, recorded.then(|| place("edge-1")).as_slice());
                found.insert(volume.volume_id);
            }
            token = page.next_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(found, expected, "{max} at most");
    }
}

#[tokio::test]
async fn capacity_covers_online_nodes_in_the_topology() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let capacity = async |topology: Option<csi::Topology>| {
        let request = csi::GetCapacityRequest { accessible_topology: topology, ..Default::default() };
        let response = proxy.controller().await.get_capacity(request).await.unwrap().into_inner();
        (response.available_capacity, response.maximum_volume_size)
    };
    assert_eq!(capacity(Some(place("edge-1"))).await, (100, None), "as the driver says it");
    assert_eq!(capacity(None).await, (200, Some(100)));
    assert_eq!(capacity(Some(place("edge-9"))).await, (0, None));
    world.with("edge-1", |node| node.offline = true);
    assert_eq!(capacity(Some(place("edge-1"))).await, (0, None));
    assert_eq!(capacity(None).await, (100, None));
    // Node selection uses the reported capacity.
    let mut large = strict("pvc-1", "edge-2");
    large.capacity_range = Some(csi::CapacityRange { required_bytes: 101, limit_bytes: 0 });
    assert_eq!(proxy.create(large).await.unwrap_err().code(), Code::ResourceExhausted);
}

/// An answer of many tiny fields would delay the calls of all nodes while it is decoded.
#[tokio::test]
async fn large_answer_is_refused_before_it_is_decoded() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let capacity = async |bytes: usize| {
        world.with("edge-1", |node| node.capacity_bytes = bytes);
        let request =
            csi::GetCapacityRequest { accessible_topology: Some(place("edge-1")), ..Default::default() };
        proxy.controller().await.get_capacity(request).await
    };
    assert_eq!(capacity(256 * 1024).await.unwrap().into_inner().available_capacity, 0);
    let refused = capacity(256 * 1024 + 2).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("expected at most 262144"), "{refused:?}");
}

#[tokio::test]
async fn node_info_survives_a_restart() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::with(&world, OfflinePolicy::Move).await;
    proxy.create(strict("pvc-1", "edge-2")).await.unwrap();
    world.with("edge-2", |node| node.offline = true);
    proxy.restart().await;
    let elsewhere = proxy.create(strict("pvc-2", "edge-9")).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::ResourceExhausted, "it is known that edge-2 is not there");
    let request = csi::ControllerGetCapabilitiesRequest {};
    let rpcs = proxy.controller().await.controller_get_capabilities(request).await.unwrap().into_inner();
    assert!(!rpcs.has(Rpc::ExpandVolume), "edge-2 cannot do it: {rpcs:?}");
}

#[tokio::test]
async fn sidecars_get_common_capabilities_of_all_nodes() {
    let world = World::new(&["edge-1", "edge-2"]);
    let proxy = Proxy::start(&world).await;
    let channel = connect(proxy.socket()).await;
    let mut identity = IdentityClient::new(channel.clone());
    let plugin =
        identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await.unwrap().into_inner();
    assert!(plugin.has_service(Service::VolumeAccessibilityConstraints));
    let request = csi::ControllerGetCapabilitiesRequest {};
    let rpcs =
        ControllerClient::new(channel).controller_get_capabilities(request).await.unwrap().into_inner();
    assert!(rpcs.has(Rpc::ListVolumes) && !rpcs.has(Rpc::ExpandVolume), "{rpcs:?}");
}

/// After a long outage the retry interval is long. A node that is connected again is refreshed at once.
#[tokio::test(start_paused = true)]
async fn probe_is_ready_once_a_node_is_online() {
    let world = World::new(&["edge-1", "edge-2"]);
    let directory = tempfile::tempdir().unwrap();
    let nodes = ["edge-1", "edge-2"].map(|name| NodeId::new(name).unwrap());
    let route = TopologyRouter::builder(driver_name(), nodes.clone()).open(MemoryStore::default()).await;
    let route = Arc::new(route.unwrap());
    let address = SocketAddress::new(directory.path().join("csi.sock").to_str().unwrap()).unwrap();
    let endpoint = Endpoint::new(driver_name(), Router::topology(Arc::clone(&route)), world.clone());
    let view = endpoint.startup();
    let _serving = endpoint.serve(address).await.unwrap();
    let ready = async |expected| {
        in_time(async {
            while view.status().ready != expected {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
    };
    ready(true).await;
    for node in &nodes {
        world.with(node.as_str(), |node| node.offline = true);
        route.left(node);
    }
    route.synced();
    ready(false).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    for round in 0..3 {
        world.with("edge-2", |node| node.offline = false);
        route.arrived(&nodes[1]);
        let back = tokio::time::Instant::now();
        ready(true).await;
        assert!(back.elapsed() < Duration::from_millis(100), "round {round}: after {:?}", back.elapsed());
        world.with("edge-2", |node| node.offline = true);
        route.left(&nodes[1]);
        ready(false).await;
        tokio::time::sleep(Duration::from_secs(300)).await;
    }
}

/// A sidecar that did not receive the success retries until it does.
#[tokio::test]
async fn repeated_deletion_succeeds_while_nodes_are_offline() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::start(&world).await;
    proxy.create(strict("pvc-1", "edge-1")).await.unwrap();
    proxy.delete("edge-1/pvc-1").await.unwrap();
    for node in ["edge-1", "edge-2"] {
        world.with(node, |node| node.offline = true);
    }
    proxy.delete("edge-1/pvc-1").await.unwrap();
    proxy.restart().await;
    proxy.delete("edge-1/pvc-1").await.unwrap();
    assert_eq!(proxy.delete("edge-1/pvc-2").await.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test]
async fn damaged_placement_blocks_its_name_only() {
    let world = World::new(&["edge-1", "edge-2"]);
    let mut proxy = Proxy::start(&world).await;
    for name in ["pvc-1", "pvc-2"] {
        proxy.create(strict(name, "edge-2")).await.unwrap();
    }
    proxy.disk.overwrite(&proxy.disk.keys()[0], b"junk");
    proxy.restart().await;
    let barred = proxy.create(strict("pvc-1", "edge-1")).await.unwrap_err();
    assert_eq!(barred.code(), Code::Unavailable, "{barred}");
    assert!(barred.message().contains("damaged"), "{barred}");
    assert_eq!(proxy.create(strict("pvc-2", "edge-1")).await.unwrap().volume_id, "edge-2/pvc-2");
    proxy.delete("edge-2/pvc-1").await.unwrap();
    assert_eq!(world.volumes("edge-2"), ["pvc-2"]);
    // The row stays as it is, across deletions and restarts.
    for _ in 0..2 {
        assert_eq!(proxy.create(strict("pvc-1", "edge-2")).await.unwrap_err().code(), Code::Unavailable);
        proxy.restart().await;
    }
    assert_eq!(world.volumes("edge-2"), ["pvc-2"]);
}
