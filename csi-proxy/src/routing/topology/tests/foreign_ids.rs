//! A liar reports ids of another node as its own. The victim is edge-1, the liar edge-2.

use super::hostile::{deletion, expansion};
use super::*;

const CREATE: Method = Method::CreateVolume;

fn volume(volume_id: &str) -> csi::Volume {
    csi::Volume { volume_id: volume_id.to_owned(), ..Default::default() }
}

fn answer(volume: csi::Volume) -> Vec<u8> {
    csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec()
}

async fn expand(route: &TopologyRouter, world: &World, id: &str) -> Code {
    call(route, world, Method::ControllerExpandVolume, expansion(id)).await.1
}

fn node_of(route: &TopologyRouter, id: &str) -> Option<NodeId> {
    route.placements.node_of(&Subject::Volume(id.into()))
}

/// The calls that send the id `old` to the liar, or that search its node.
fn sending() -> Vec<(Method, Vec<u8>)> {
    let volume_id = "old".to_owned();
    let source = csi::volume_content_source::VolumeSource { volume_id: volume_id.clone() };
    let r#type = Some(csi::volume_content_source::Type::Volume(source));
    let clone = csi::CreateVolumeRequest {
        name: "clone".to_owned(),
        volume_content_source: Some(csi::VolumeContentSource { r#type }),
        accessibility_requirements: Some(csi::TopologyRequirement {
            requisite: vec![place("edge-2")],
            ..Default::default()
        }),
        ..Default::default()
    };
    let publish = csi::ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: "edge-2".to_owned(),
        volume_capability: Some(csi::VolumeCapability::default()),
        ..Default::default()
    };
    let delete = csi::DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() };
    let list = csi::ListSnapshotsRequest { source_volume_id: volume_id, ..Default::default() };
    vec![
        (Method::ControllerExpandVolume, expansion("old")),
        (Method::DeleteVolume, deletion("old")),
        (Method::DeleteVolume, delete.encode_to_vec()),
        (Method::CreateVolume, clone.encode_to_vec()),
        (Method::ControllerPublishVolume, publish.encode_to_vec()),
        (Method::ListSnapshots, list.encode_to_vec()),
    ]
}

#[tokio::test(start_paused = true)]
async fn liar_does_not_get_a_sent_id_by_creating_it() {
    for (method, body) in sending() {
        with_nodes(3, async |world, route| {
            world.has("edge-1", "old");
            world.lock().offline.insert("edge-1".to_owned());
            call(route, world, method, body).await;
            world.forge("edge-2", CREATE, answer(volume("old")));
            assert_eq!(create(route, world, "any", "edge-2").await, Code::UNAVAILABLE, "{method}");
            world.lock().offline.clear();
            sleep(MINUTE).await;
            assert_eq!(create(route, world, "any", "edge-2").await, Code::UNAVAILABLE, "{method}");
            assert_eq!(node_of(route, "old"), None);
            assert_eq!(
                (expand(route, world, "old").await, trusted(world)),
                (Code::OK, ["edge-1".to_owned()].into())
            );
            assert_eq!(create(route, world, "any", "edge-2").await, Code::UNAVAILABLE, "{method}");
            assert_eq!(node_of(route, "old"), Some(node("edge-1")));
        })
        .await;
    }
}

/// An id that was named before it was created, as by a driver whose ids are names.
#[tokio::test(start_paused = true)]
async fn sent_id_that_no_other_node_has_is_recorded() {
    with_nodes(3, async |world, route| {
        assert_eq!(expand(route, world, "edge-2/new").await, Code::NOT_FOUND);
        assert_eq!(create(route, world, "new", "edge-2").await, Code::OK);
        assert_eq!(node_of(route, "edge-2/new"), Some(node("edge-2")));
        world.take_calls();
        assert_eq!(create(route, world, "other", "edge-2").await, Code::OK);
        assert_eq!(world.take_calls().keys().collect::<Vec<_>>(), [&"CreateVolume"], "others cost no search");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn liar_does_not_get_a_listed_id_by_creating_it() {
    with_nodes(3, async |world, route| {
        world.has("edge-1", "old");
        assert_eq!(call(route, world, Method::ListVolumes, vec![]).await.1, Code::OK);
        world.forge("edge-2", CREATE, answer(volume("old")));
        assert_eq!(create(route, world, "any", "edge-2").await, Code::UNAVAILABLE);
        assert_eq!(node_of(route, "old"), None);
        // A repeated CreateVolume returns the volume that its own node lists.
        world.forge("edge-1", CREATE, answer(volume("old")));
        assert_eq!(create(route, world, "again", "edge-1").await, Code::OK);
        assert_eq!(node_of(route, "old"), Some(node("edge-1")));
    })
    .await;
}

/// The liar knows an id that no call has named and no node has listed since the proxy started.
#[tokio::test(start_paused = true)]
async fn stolen_id_gets_no_calls_once_its_owner_lists_it() {
    with_nodes(3, async |world, route| {
        let remove = async || call(route, world, Method::DeleteVolume, deletion("old")).await.1;
        world.has("edge-1", "old");
        world.forge("edge-2", CREATE, answer(volume("old")));
        assert_eq!(create(route, world, "any", "edge-2").await, Code::OK);
        assert_eq!(call(route, world, Method::ListVolumes, vec![]).await.1, Code::OK);
        assert_eq!(route.disputed_ids(), [(node("edge-1"), 1)]);
        assert_eq!(
            (expand(route, world, "old").await, remove().await),
            (Code::UNAVAILABLE, Code::UNAVAILABLE)
        );
        assert_eq!(trusted(world), BTreeSet::new());
        assert!(world.lock().nodes["edge-1"].contains("old"));
        // Once the other node denies the id, the record counts.
        world.lock().nodes.get_mut("edge-1").unwrap().clear();
        assert_eq!((expand(route, world, "old").await, remove().await), (Code::OK, Code::OK));
        assert_eq!(trusted(world), ["edge-2".to_owned()].into());
    })
    .await;
}

/// The liar answers a question about an id with another one.
#[tokio::test(start_paused = true)]
async fn answer_with_another_id_is_not_used() {
    let world = World::of(3);
    for name in ["edge-0", "edge-1", "edge-2"] {
        let rpcs = [Rpc::CreateDeleteVolume, Rpc::ListVolumes, Rpc::GetVolume];
        let rpcs = rpcs.into_iter().collect::<csi::ControllerGetCapabilitiesResponse>();
        world.forge(name, Method::ControllerGetCapabilities, rpcs.encode_to_vec());
    }
    let route = open(&MemoryStore::default()).await;
    let read = async |volume_id: &str| {
        let request = csi::ControllerGetVolumeRequest { volume_id: volume_id.to_owned() };
        let (message, code) =
            call(&route, &world, Method::ControllerGetVolume, request.encode_to_vec()).await;
        (
            message.map(|message| csi::ControllerGetVolumeResponse::decode(message).unwrap().volume.unwrap()),
            code,
        )
    };
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        world.has("edge-1", "old");
        assert_eq!(create(&route, &world, "own", "edge-2").await, Code::OK);
        world.forge("edge-2", Method::ControllerGetVolume, answer(volume("edge-2/other")));
        // The liar neither has the id nor denies it.
        assert_eq!(read("old").await, (Some(volume("old")), Code::OK));
        assert_eq!(expand(&route, &world, "old").await, Code::UNAVAILABLE);
        assert_eq!(read("edge-2/own").await, (None, Code::UNAVAILABLE));
        world.forge("edge-2", Method::ControllerGetVolume, answer(volume("edge-2/own")));
        assert_eq!(read("edge-2/own").await.1, Code::OK);
    })
    .await;
}

fn snapshot(snapshot_id: &str) -> csi::Snapshot {
    csi::Snapshot { snapshot_id: snapshot_id.to_owned(), ..Default::default() }
}

fn listed_snapshots(ids: &[&str]) -> Vec<u8> {
    let entry = |id: &&str| csi::list_snapshots_response::Entry { snapshot: Some(snapshot(id)) };
    csi::ListSnapshotsResponse { entries: ids.iter().map(entry).collect(), ..Default::default() }
        .encode_to_vec()
}

/// Nodes whose drivers list snapshots: edge-1 has `old`.
fn world_of_snapshots() -> World {
    let world = World::of(3);
    for name in ["edge-0", "edge-1", "edge-2"] {
        let rpcs = [Rpc::CreateDeleteVolume, Rpc::ListVolumes, Rpc::ListSnapshots, Rpc::CreateDeleteSnapshot];
        let rpcs = rpcs.into_iter().collect::<csi::ControllerGetCapabilitiesResponse>();
        world.forge(name, Method::ControllerGetCapabilities, rpcs.encode_to_vec());
        world.forge(name, Method::ListSnapshots, Vec::new());
    }
    world.forge("edge-1", Method::ListSnapshots, listed_snapshots(&["old"]));
    world
}

#[tokio::test(start_paused = true)]
async fn liar_gets_no_snapshot_and_no_group_of_another_node() {
    let (world, disk) = (world_of_snapshots(), MemoryStore::default());
    let route = open(&disk).await;
    let take = async || {
        let request = csi::CreateSnapshotRequest {
            source_volume_id: "edge-2/source".to_owned(),
            name: "any".to_owned(),
            secrets: secrets(),
            ..Default::default()
        };
        call(&route, &world, Method::CreateSnapshot, request.encode_to_vec()).await.1
    };
    let take_group = async || {
        let request = csi::CreateVolumeGroupSnapshotRequest {
            source_volume_ids: vec!["edge-2/source".to_owned()],
            name: "any".to_owned(),
            ..Default::default()
        };
        call(&route, &world, Method::CreateVolumeGroupSnapshot, request.encode_to_vec()).await.1
    };
    let deletion = |snapshot_id: &str| {
        let snapshot_id = snapshot_id.to_owned();
        csi::DeleteSnapshotRequest { snapshot_id, secrets: secrets() }.encode_to_vec()
    };
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &world, "source", "edge-2").await, Code::OK);
        // The drivers do not support deletions, so the snapshot stays and its id is sent.
        world.lock().offline.insert("edge-0".to_owned());
        assert_eq!(call(&route, &world, Method::DeleteSnapshot, deletion("old")).await.1, Code::UNAVAILABLE);
        world.lock().offline.clear();
        sleep(MINUTE).await;
        let taken = csi::CreateSnapshotResponse { snapshot: Some(snapshot("old")) }.encode_to_vec();
        world.forge("edge-2", Method::CreateSnapshot, taken.clone());
        assert_eq!(take().await, Code::UNAVAILABLE);
        let group = csi::VolumeGroupSnapshot {
            group_snapshot_id: "group".to_owned(),
            snapshots: vec![snapshot("own"), snapshot("old")],
            ..Default::default()
        };
        let group = csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) }.encode_to_vec();
        world.forge("edge-2", Method::CreateVolumeGroupSnapshot, group);
        assert_eq!(take_group().await, Code::UNAVAILABLE);
        // Protobuf merges several groups into one with the snapshots of all.
        let group = |group_snapshot_id: &str, id: &str| {
            let group_snapshot_id = group_snapshot_id.to_owned();
            let snapshots = vec![snapshot(id)];
            let group = csi::VolumeGroupSnapshot { group_snapshot_id, snapshots, ..Default::default() };
            csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(group) }.encode_to_vec()
        };
        let merged = [group("", "old"), group("group", "own")].concat();
        world.forge("edge-2", Method::CreateVolumeGroupSnapshot, merged);
        assert_eq!(take_group().await, Code::UNAVAILABLE);
        // Protobuf merges several snapshots into one.
        let other = csi::CreateSnapshotResponse {
            snapshot: Some(csi::Snapshot { size_bytes: 7, ..Default::default() }),
        };
        world.forge("edge-2", Method::CreateSnapshot, [taken, other.encode_to_vec()].concat());
        assert_eq!(take().await, Code::UNAVAILABLE);
        assert_eq!(route.rows(), 1, "only the source");
        let own = csi::CreateSnapshotResponse { snapshot: Some(snapshot("own")) }.encode_to_vec();
        world.forge("edge-2", Method::CreateSnapshot, own);
        assert_eq!((take().await, route.rows()), (Code::OK, 2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn answer_without_one_usable_id_is_not_passed_on() {
    with_nodes(3, async |world, route| {
        let size = csi::Volume { capacity_bytes: 5, ..Default::default() };
        for wrong in [
            [answer(volume("own")), answer(size)].concat(),
            answer(volume("")),
            answer(volume("a\u{1b}[31m")),
            answer(volume(&"x".repeat(5000))),
            Vec::new(),
        ] {
            world.forge("edge-2", CREATE, wrong.clone());
            assert_eq!(create(route, world, "any", "edge-2").await, Code::UNAVAILABLE, "{wrong:?}");
        }
    })
    .await;
}

/// A list of one snapshot does not depend on the nodes that do not have it.
#[tokio::test(start_paused = true)]
async fn failing_node_hides_no_snapshot_of_another() {
    let (world, disk) = (world_of_snapshots(), MemoryStore::default());
    let route = open(&disk).await;
    let list = async |id: &str| {
        let request = csi::ListSnapshotsRequest { snapshot_id: id.to_owned(), ..Default::default() };
        let (page, code) = call(&route, &world, Method::ListSnapshots, request.encode_to_vec()).await;
        (csi::ListSnapshotsResponse::decode(page.unwrap_or_default()).unwrap().entries.len(), code)
    };
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        let next = csi::ListSnapshotsResponse { next_token: "next".to_owned(), ..Default::default() };
        world.forge("edge-0", Method::ListSnapshots, next.encode_to_vec());
        assert_eq!(list("old").await, (1, Code::OK), "a node announces another page");
        world.lock().without_driver.insert("edge-0".to_owned());
        assert_eq!(list("old").await, (1, Code::OK));
        world.forge("edge-1", Method::ListSnapshots, Vec::new());
        assert_eq!(list("old").await, (0, Code::UNAVAILABLE), "the failing node may have it");
    })
    .await;
}
