//! Copies of volumes and snapshots whose nodes are not known.

use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};

use super::*;

fn volume(id: &str) -> Type {
    Type::Volume(VolumeSource { volume_id: id.to_owned() })
}

fn snapshot(id: &str) -> Type {
    Type::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })
}

/// A request that any of three nodes may serve.
fn copy_of(source: Type) -> csi::CreateVolumeRequest {
    let topologies: Vec<_> = ["edge-0", "edge-1", "edge-2"].map(place).into();
    let requirement = csi::TopologyRequirement { preferred: topologies.clone(), requisite: topologies };
    csi::CreateVolumeRequest {
        name: "copy".to_owned(),
        accessibility_requirements: Some(requirement),
        volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
        ..Default::default()
    }
}

async fn copied(route: &TopologyRouter, world: &World, request: &csi::CreateVolumeRequest) -> Code {
    call(route, world, Method::CreateVolume, request.encode_to_vec()).await.1
}

/// The node that has the source, and no other, gets the request with its secrets.
#[tokio::test(start_paused = true)]
async fn unknown_source_is_searched_and_copied_on_its_node() {
    with_nodes(3, async |world, route| {
        world.has("edge-2", "old");
        let request = csi::CreateVolumeRequest { secrets: secrets(), ..copy_of(volume("old")) };
        assert_eq!(copied(route, world, &request).await, Code::OK);
        assert!(world.lock().nodes["edge-2"].contains("edge-2/copy"));
        assert_eq!(trusted(world), ["edge-2".to_owned()].into());
        let calls = world.take_calls();
        assert_eq!((calls["ListVolumes"], calls["CreateVolume"]), (3, 1));
        // The retry needs no search: the name has its node.
        assert_eq!(copied(route, world, &request).await, Code::OK);
        assert_eq!(world.take_calls().get("ListVolumes"), None);
    })
    .await;
}

/// A final code only if every node denies the source, and nothing was sent for the name.
#[tokio::test(start_paused = true)]
async fn copy_waits_for_the_node_that_may_have_the_source() {
    with_nodes(3, async |world, route| {
        assert_eq!(copied(route, world, &copy_of(volume("none"))).await, Code::NOT_FOUND);
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!(copied(route, world, &copy_of(volume("none"))).await, Code::UNAVAILABLE);
        assert_eq!(world.take_calls().get("CreateVolume"), None);
        assert_eq!(create(route, world, "copy", "edge-0").await, Code::OK);
        world.lock().offline.clear();
        assert_eq!(copied(route, world, &copy_of(volume("none"))).await, Code::OK, "the driver answers");
    })
    .await;
}

/// The nodes have no question for a snapshot. A driver that can copy the snapshot gets no secrets by chance.
#[tokio::test(start_paused = true)]
async fn unanswerable_source_is_left_to_the_driver_without_secrets() {
    with_nodes(3, async |world, route| {
        let mut request = copy_of(snapshot("old"));
        request.secrets = secrets();
        assert_eq!(copied(route, world, &request).await, Code::UNAVAILABLE);
        assert_eq!(trusted(world), BTreeSet::new());
        request.secrets.clear();
        assert_eq!(copied(route, world, &request).await, Code::OK);
    })
    .await;
}
