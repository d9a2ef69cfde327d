//! The controller part of the hostpath driver, which needs no privileges: names, sizes, sources, and recovery after a restart.

#![allow(clippy::unwrap_used, reason = "a fixture fails as its test does")]

mod hostpath_fixture;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use csi::controller_server::Controller;
use csi::group_controller_server::GroupController;
use csi_proto::csi::v1 as csi;
use edge_csi_common::state::StateError;
use hostpath_driver::driver::OpenError;
use hostpath_fixture::*;
use tonic::{Code, Request};

#[tokio::test]
async fn same_name_with_other_parameters_is_refused() {
    let f = Fixture::new();
    let first = f.create(volume_request("pvc", mount(""), MIB)).await.unwrap();
    assert_eq!(f.create(volume_request("pvc", mount(""), MIB)).await.unwrap(), first);
    assert_eq!(first.capacity_bytes, MIB);
    assert_eq!(first.accessible_topology[0].segments["topology.hostpath.csi.edge/node"], NODE);

    assert_eq!(code(f.create(volume_request("pvc", mount(""), 2 * MIB)).await), Code::AlreadyExists);
    assert_eq!(
        code(f.create(with_kind(volume_request("pvc", mount(""), MIB), "directory")).await),
        Code::AlreadyExists
    );
    assert_eq!(code(f.create(volume_request("pvc", block(), MIB)).await), Code::AlreadyExists);
    f.delete(&first.volume_id).await.unwrap();
    f.delete(&first.volume_id).await.unwrap();
    assert_ne!(f.create(volume_request("pvc", block(), 2 * MIB)).await.unwrap().volume_id, first.volume_id);
}

#[tokio::test]
async fn names_never_become_paths() {
    let f = Fixture::new();
    let longest = "n".repeat(128);
    let names = ["../../etc", "/abs", "a/b", "..", "ü\u{1F4BE}", "new\nline", "x.json", longest.as_str()];
    let mut ids = BTreeSet::new();
    for name in names {
        ids.insert(f.volume(name, mount(""), MIB).await);
        assert_eq!(code(f.snapshot(name, ids.last().unwrap()).await), Code::Ok);
    }
    assert_eq!(ids.len(), names.len());
    let folders: BTreeSet<String> = fs::read_dir(f.state().join("data"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("vol-"))
        .collect();
    assert_eq!(folders, ids);
    assert_eq!(code(f.create(volume_request(&"n".repeat(129), mount(""), MIB)).await), Code::InvalidArgument);
    assert_eq!(code(f.create(volume_request("", mount(""), MIB)).await), Code::InvalidArgument);
}

#[tokio::test]
async fn unknown_ids_return_the_codes_of_the_spec() {
    let f = Fixture::new();
    for id in ["vol-0", "../state", "/", "..", "ü", "a\0b", &"x".repeat(5000)] {
        assert_eq!(code(f.delete(id).await), Code::Ok, "{id:?}");
        assert_eq!(code(f.detach(id).await), Code::Ok, "{id:?}");
        assert_eq!(code(f.attach(id, NODE, false).await), Code::NotFound, "{id:?}");
        assert_eq!(code(f.snapshot("s", id).await), Code::NotFound, "{id:?}");
        assert_eq!(code(f.expand(id, MIB).await), Code::NotFound, "{id:?}");
        assert_eq!(
            code(f.create(from_volume(volume_request("v", mount(""), MIB), id)).await),
            Code::NotFound,
            "{id:?}"
        );
        assert_eq!(
            code(f.create(from_snapshot(volume_request("v", mount(""), MIB), id)).await),
            Code::NotFound,
            "{id:?}"
        );
        assert_eq!(code(f.bytes_at(id, "/x").await), Code::NotFound, "{id:?}");
    }
    assert_eq!(code(f.delete("").await), Code::InvalidArgument);
}

#[tokio::test]
async fn counts_and_releases_space() {
    let f = Fixture::with(|config| config.capacity = Some(10 << 20));
    let volume = f.volume("a", mount(""), 4 * MIB).await;
    f.snapshot("s", &volume).await.unwrap();
    assert_eq!(code(f.create(volume_request("b", mount(""), 3 * MIB)).await), Code::ResourceExhausted);
    assert_eq!(code(f.expand(&volume, 7 * MIB).await), Code::ResourceExhausted);
    assert_eq!(f.expand(&volume, 6 * MIB).await.unwrap().capacity_bytes, 6 * MIB);
    let capacity =
        answer(f.service.get_capacity(Request::new(csi::GetCapacityRequest::default())).await).unwrap();
    assert_eq!(capacity.available_capacity, 0);
    f.delete(&volume).await.unwrap();
    assert_eq!(code(f.create(volume_request("b", mount(""), 6 * MIB)).await), Code::Ok);
}

#[tokio::test]
async fn a_volume_for_another_node_is_refused() {
    let f = Fixture::new();
    let mut request = volume_request("a", mount(""), MIB);
    let topology = |node: &str| csi::Topology {
        segments: [("topology.hostpath.csi.edge/node".to_owned(), node.to_owned())].into(),
    };
    request.accessibility_requirements =
        Some(csi::TopologyRequirement { requisite: vec![topology("edge-2")], preferred: vec![] });
    assert_eq!(code(f.create(request.clone()).await), Code::ResourceExhausted);
    request.accessibility_requirements = Some(csi::TopologyRequirement {
        requisite: vec![topology("edge-2"), topology(NODE)],
        preferred: vec![],
    });
    assert_eq!(code(f.create(request).await), Code::Ok);
    let elsewhere =
        csi::GetCapacityRequest { accessible_topology: Some(topology("edge-2")), ..Default::default() };
    let capacity = answer(f.service.get_capacity(Request::new(elsewhere)).await).unwrap();
    assert_eq!(capacity.available_capacity, 0);
}

#[tokio::test]
async fn counts_attachments_and_keeps_used_volumes() {
    let f = Fixture::with(|config| config.attach_limit = 1);
    let (a, b) = (f.volume("a", mount(""), MIB).await, f.volume("b", mount(""), MIB).await);
    f.attach(&a, NODE, false).await.unwrap();
    f.attach(&a, NODE, false).await.unwrap();
    assert_eq!(code(f.attach(&a, NODE, true).await), Code::AlreadyExists);
    assert_eq!(code(f.attach(&b, NODE, false).await), Code::ResourceExhausted);
    assert_eq!(code(f.attach(&b, "edge-2", false).await), Code::NotFound);
    assert_eq!(code(f.delete(&a).await), Code::FailedPrecondition);
    let list =
        answer(f.service.list_volumes(Request::new(csi::ListVolumesRequest::default())).await).unwrap();
    let nodes: Vec<_> =
        list.entries.iter().map(|entry| entry.status.clone().unwrap().published_node_ids).collect();
    assert_eq!(nodes, [vec![NODE.to_owned()], vec![]]);
    f.detach(&a).await.unwrap();
    f.detach(&a).await.unwrap();
    f.attach(&b, NODE, false).await.unwrap();
    f.delete(&a).await.unwrap();
}

#[tokio::test]
async fn content_is_copied_from_a_snapshot_or_a_volume() {
    let f = Fixture::new();
    let source = f.volume("source", mount(""), 2 * MIB).await;
    let tree = |id: &str| f.state().join("data").join(id).join("tree");
    fs::write(tree(&source).join("file"), "first").unwrap();
    let snapshot = f.snapshot("s", &source).await.unwrap();
    assert!(snapshot.ready_to_use && snapshot.size_bytes == 2 * MIB && snapshot.creation_time.is_some());
    assert_eq!(f.snapshot("s", &source).await.unwrap(), snapshot);
    fs::write(tree(&source).join("file"), "second").unwrap();

    let restored =
        f.create(from_snapshot(volume_request("r", mount(""), MIB), &snapshot.snapshot_id)).await.unwrap();
    assert_eq!(restored.capacity_bytes, 2 * MIB, "not smaller than its source");
    assert!(restored.content_source.is_some());
    let cloned = f.create(from_volume(volume_request("c", mount(""), 3 * MIB), &source)).await.unwrap();
    f.delete(&source).await.unwrap();
    assert_eq!(fs::read_to_string(tree(&restored.volume_id).join("file")).unwrap(), "first");
    assert_eq!(fs::read_to_string(tree(&cloned.volume_id).join("file")).unwrap(), "second");

    assert_eq!(code(f.snapshot("s", &cloned.volume_id).await), Code::AlreadyExists);
    assert_eq!(code(f.create(volume_request("r", mount(""), MIB)).await), Code::AlreadyExists);
    let as_device = from_snapshot(volume_request("d", block(), 2 * MIB), &snapshot.snapshot_id);
    assert_eq!(code(f.create(as_device).await), Code::InvalidArgument);
}

#[tokio::test]
async fn a_group_is_cut_and_deleted_as_one() {
    let f = Fixture::new();
    let ids = vec![f.volume("a", mount(""), MIB).await, f.volume("b", block(), MIB).await];
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: ids.clone(),
        ..Default::default()
    };
    let create = |request: csi::CreateVolumeGroupSnapshotRequest| async {
        answer(f.service.create_volume_group_snapshot(Request::new(request)).await)
            .map(|made| made.group_snapshot.unwrap())
    };
    let group = create(request.clone()).await.unwrap();
    assert_eq!((group.snapshots.len(), create(request.clone()).await.unwrap()), (2, group.clone()));
    assert_eq!(
        code(
            create(csi::CreateVolumeGroupSnapshotRequest { source_volume_ids: ids[..1].into(), ..request })
                .await
        ),
        Code::AlreadyExists
    );

    let member = csi::DeleteSnapshotRequest {
        snapshot_id: group.snapshots[0].snapshot_id.clone(),
        ..Default::default()
    };
    assert_eq!(code(f.service.delete_snapshot(Request::new(member)).await), Code::InvalidArgument);
    let delete = |snapshot_ids: Vec<String>| csi::DeleteVolumeGroupSnapshotRequest {
        group_snapshot_id: group.group_snapshot_id.clone(),
        snapshot_ids,
        ..Default::default()
    };
    let wrong = f.service.delete_volume_group_snapshot(Request::new(delete(vec!["x".to_owned()]))).await;
    assert_eq!(code(wrong), Code::InvalidArgument);
    let members = group.snapshots.iter().map(|s| s.snapshot_id.clone()).collect();
    f.service.delete_volume_group_snapshot(Request::new(delete(members))).await.unwrap();
    f.service.delete_volume_group_snapshot(Request::new(delete(vec![]))).await.unwrap();
    let left =
        answer(f.service.list_snapshots(Request::new(csi::ListSnapshotsRequest::default())).await).unwrap();
    assert_eq!(left.entries, []);
}

#[tokio::test]
async fn restart_keeps_records_and_removes_unfinished_ones() {
    let f = Fixture::new();
    let (kept, half_made, half_deleted) = (
        f.volume("kept", block(), MIB).await,
        f.volume("making", mount(""), MIB).await,
        f.volume("going", block(), MIB).await,
    );
    let snapshot = f.snapshot("s", &kept).await.unwrap().snapshot_id;
    let half_cut = f.snapshot("cutting", &kept).await.unwrap().snapshot_id;
    set_phase(&f.state().join("volumes"), &half_made, "creating");
    set_phase(&f.state().join("volumes"), &half_deleted, "deleting");
    set_phase(&f.state().join("snapshots"), &half_cut, "creating");
    // The size was recorded, and the image had not grown yet.
    let image = f.state().join("data").join(&kept).join("disk.img");
    fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(4096).unwrap();

    let f = f.restart();
    assert_eq!(fs::metadata(&image).unwrap().len(), MIB as u64);
    let mut left: Vec<_> =
        fs::read_dir(f.state().join("data")).unwrap().map(|e| e.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [snapshot.as_str(), kept.as_str()]);
    assert_eq!(f.create(volume_request("kept", block(), MIB)).await.unwrap().volume_id, kept);
    assert_ne!(f.volume("making", mount(""), MIB).await, half_made);
}

#[tokio::test]
async fn keeps_the_record_of_a_volume_without_data() {
    let f = Fixture::new();
    let (lost, well) = (f.volume("a", mount(""), MIB).await, f.volume("b", mount(""), MIB).await);
    fs::remove_dir_all(f.state().join("data").join(&lost)).unwrap();
    let f = f.restart();
    let list = f
        .service
        .controller_list_volume_health(Request::new(csi::ControllerListVolumeHealthRequest::default()));
    let abnormal = answer(list.await).unwrap().entries;
    assert_eq!(abnormal.iter().map(|health| health.volume_id.as_str()).collect::<Vec<_>>(), [lost.as_str()]);
    let one = csi::ControllerGetVolumeHealthRequest { volume_id: well, ..Default::default() };
    let health = answer(f.service.controller_get_volume_health(Request::new(one)).await)
        .unwrap()
        .volume_health
        .unwrap();
    assert_eq!(health.health_statuses, []);
    f.delete(&lost).await.unwrap();
}

#[tokio::test]
async fn serves_other_volumes_if_one_cannot_be_recovered() {
    let f = Fixture::new();
    let (stuck, well) = (f.volume("a", block(), MIB).await, f.volume("b", mount(""), MIB).await);
    // A size that no filesystem supports.
    let path = f.state().join("volumes").join(format!("{stuck}.json"));
    let record = fs::read_to_string(&path).unwrap();
    let changed = record.replace(&MIB.to_string(), &i64::MAX.to_string());
    assert_ne!(record, changed);
    fs::write(&path, changed).unwrap();
    let f = f.restart();
    f.delete(&well).await.unwrap();
    f.delete(&stuck).await.unwrap();
}

#[tokio::test]
async fn a_state_directory_has_one_driver() {
    let f = Fixture::new();
    assert!(matches!(open(&f.state()), Err(OpenError::State(StateError::InUse { .. }))));
}

#[tokio::test]
async fn modifies_named_parameters_only() {
    let f = Fixture::with(|config| config.mutable_parameters = ["iops".to_owned()].into());
    let volume_id = f.volume("a", mount(""), MIB).await;
    let modify = |keys: &[&str]| csi::ControllerModifyVolumeRequest {
        volume_id: volume_id.clone(),
        mutable_parameters: keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect(),
        ..Default::default()
    };
    assert_eq!(
        code(f.service.controller_modify_volume(Request::new(modify(&["iops", "x"]))).await),
        Code::InvalidArgument
    );
    let record = f.state().join("volumes").join(format!("{volume_id}.json"));
    assert!(!fs::read_to_string(&record).unwrap().contains("iops"), "nothing was applied");
    f.service.controller_modify_volume(Request::new(modify(&["iops"]))).await.unwrap();
    assert!(fs::read_to_string(&record).unwrap().contains("iops"));
}

fn set_phase(folder: &Path, id: &str, phase: &str) {
    let path = folder.join(format!("{id}.json"));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("\"ready\""), "{text}");
    fs::write(&path, text.replace("\"ready\"", &format!("\"{phase}\""))).unwrap();
}
