//! A route that discovers its nodes, up to a thousand of them.

use super::*;

#[tokio::test(start_paused = true)]
async fn node_selection_uses_the_time_of_the_caller() {
    let (world, disk) = (World::of(1), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        let began = Instant::now();
        // The topology of its node is unknown yet.
        assert_eq!(create(&route, &world, "pvc-1", "edge-0").await, Code::OK);
        let choosing = began.elapsed() - LATENCY;
        assert!(choosing >= 4 * LATENCY, "{choosing:?}");
        assert_eq!(world.lock().remaining, Some(MINUTE - choosing));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn refreshes_a_thousand_nodes_with_bounded_concurrency() {
    with_nodes(1000, async |world, route| {
        let mut calls = world.take_calls();
        let brief = calls.remove("Probe").unwrap();
        assert!((1000..1020).contains(&brief), "{brief}: one node more often");
        assert!(calls["ControllerGetCapabilities"] == 1000 && calls.len() == 5, "{calls:?}");
        assert!(world.lock().most_open <= MAX_CONCURRENT_ROUNDS, "{} at once", world.lock().most_open);
        assert_eq!(route.node_counts(), (1000, 1000));
        sleep(3 * MINUTE).await;
        let calls = world.take_calls();
        assert!(calls.values().all(|count| *count <= 20), "one node answers Probe: {calls:?}");

        assert_eq!(create(route, world, "pvc-1", "edge-777").await, Code::OK);
        assert_eq!(world.lock().nodes["edge-777"].len(), 1);
        assert_eq!(delete(route, world, "edge-777/pvc-1").await, Code::OK);
        let calls = world.take_calls();
        assert_eq!((calls["CreateVolume"], calls["DeleteVolume"]), (1, 1), "each went to the one node");
    })
    .await;
}

/// A volume is placed, but the info of its node was not stored: the restart came first.
#[tokio::test(start_paused = true)]
async fn creates_no_volume_without_a_topology() {
    let (world, disk) = (World::of(2), MemoryStore::default());
    with_disk(&world, &disk, async |route| {
        assert_eq!(create(route, &world, "pvc-1", "edge-1").await, Code::OK);
    })
    .await;
    disk.save(&node("edge-1"), None).await.unwrap();
    let route = open(&disk).await;
    report_all_up(&route, &world);
    world.take_calls();
    // The nodes are not refreshed.
    assert_eq!(created(&route, &world, "pvc-1", "edge-1").await, (vec![], Code::UNAVAILABLE));
    assert_eq!(world.take_calls().len(), 0, "nothing was sent");
    while_running(&route, &world, async {
        assert_eq!(created(&route, &world, "pvc-1", "edge-1").await, (vec![place("edge-1")], Code::OK));
    })
    .await;
    assert_eq!(route.rows(), 1);
}

#[tokio::test(start_paused = true)]
async fn offline_node_has_no_capacity() {
    with_nodes(3, async |world, route| {
        assert_eq!(capacity(route, world, "edge-1").await, 7);
        world.take_calls();
        route.left(&node("edge-1"));
        assert_eq!(capacity(route, world, "edge-1").await, 0);
        assert!(!world.take_calls().contains_key("GetCapacity"));
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!(create(route, world, "pvc-1", "edge-1").await, Code::UNAVAILABLE);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn hanging_node_delays_only_its_own_capacity() {
    with_nodes(100, async |world, route| {
        world.lock().hanging.insert("edge-50".to_owned());
        world.lock().most_open = 0;
        let room = async |topology: Option<csi::Topology>| {
            let request = csi::GetCapacityRequest { accessible_topology: topology, ..Default::default() };
            let began = Instant::now();
            let (_, code) = call(route, world, Method::GetCapacity, request.encode_to_vec()).await;
            (code, began.elapsed())
        };
        let (code, took) = room(Some(place("edge-50"))).await;
        assert_eq!(code, Code::DEADLINE_EXCEEDED);
        assert!(took <= Duration::from_secs(6), "{took:?}");
        for number in 0..50 {
            let (code, took) = room(Some(place(&format!("edge-{number}")))).await;
            assert!(code == Code::OK && took <= Duration::from_millis(50), "edge-{number}: {code} {took:?}");
        }
        // One node does not fail the sum of all.
        let (code, took) = room(None).await;
        assert_eq!(code, Code::OK);
        assert!(took <= Duration::from_secs(6), "{took:?}");
        assert!(world.lock().most_open <= MAX_CONCURRENT_ROUNDS, "{} at once", world.lock().most_open);
        route.left(&node("edge-50"));
        let (code, took) = room(Some(place("edge-50"))).await;
        assert_eq!((code, took), (Code::OK, Duration::ZERO), "it is offline and has no capacity");
    })
    .await;
}

/// A volume may be attached wherever its topology is. Only its node gets the secrets.
#[tokio::test(start_paused = true)]
async fn detaches_from_all_nodes_within_the_topology() {
    for (zone, expected) in [(None, 1), (Some("z".to_owned()), 3)] {
        let (world, disk) = (World::of(3), MemoryStore::default());
        let at = zone.clone().unwrap_or_else(|| "edge-1".to_owned());
        world.lock().zone = zone;
        let shared_topology_keys = vec!["node".to_owned()];
        let settings = Settings { shared_topology_keys, ..Settings::default() };
        let route = open_with(disk, settings).await;
        while_running(&route, &world, async {
            report_all_up(&route, &world);
            sleep(MINUTE).await;
            assert_eq!(create(&route, &world, "pvc-1", &at).await, Code::OK);
            let holder =
                world.lock().nodes.iter().find(|(_, volumes)| !volumes.is_empty()).unwrap().0.clone();
            let (volume_id, secrets) = (format!("{holder}/pvc-1"), secrets());
            let detach = csi::ControllerUnpublishVolumeRequest { volume_id, secrets, ..Default::default() };
            world.take_calls();
            let method = Method::ControllerUnpublishVolume;
            assert_eq!(call(&route, &world, method, detach.encode_to_vec()).await.1, Code::OK);
            assert_eq!(world.take_calls()["ControllerUnpublishVolume"], expected);
            assert_eq!(trusted(&world), [holder].into());
        })
        .await;
    }
}

/// Only a driver, or a durable record of its answer, makes a deletion successful.
#[tokio::test(start_paused = true)]
async fn unknown_id_is_not_deleted_while_a_node_is_offline() {
    with_nodes(3, async |world, route| {
        world.has("edge-1", "old");
        assert_eq!(delete(route, world, "old").await, Code::OK);
        assert!(world.lock().nodes["edge-1"].is_empty());
        world.has("edge-1", "older");
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        assert_eq!(delete(route, world, "older").await, Code::UNAVAILABLE);
    })
    .await;
}

/// After a lost table, before the hub has reported its nodes, another node may have the volume.
#[tokio::test(start_paused = true)]
async fn unknown_id_is_not_deleted_before_all_nodes_are_known() {
    let (world, disk) = (World::of(2), MemoryStore::default());
    world.has("edge-1", "old");
    let route = open(&disk).await;
    while_running(&route, &world, async {
        route.arrived(&node("edge-0"));
        sleep(MINUTE).await;
        assert_eq!(delete(&route, &world, "old").await, Code::UNAVAILABLE);
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(delete(&route, &world, "old").await, Code::OK);
        assert!(world.lock().nodes["edge-1"].is_empty());
    })
    .await;
}

/// The info of a node was discarded, and the node is offline since: it may have the volume.
#[tokio::test(start_paused = true)]
async fn unknown_id_may_be_on_a_node_without_info() {
    let (world, disk) = (World::of(2), MemoryStore::default());
    with_disk(&world, &disk, async |_| {}).await;
    disk.save(&node("edge-1"), None).await.unwrap();
    world.has("edge-1", "old");
    world.lock().offline.insert("edge-1".to_owned());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        route.arrived(&node("edge-0"));
        route.synced();
        sleep(MINUTE).await;
        assert_eq!(delete(&route, &world, "old").await, Code::UNAVAILABLE);
        route.decommission(&node("edge-1")).await.unwrap();
        assert_eq!(delete(&route, &world, "old").await, Code::OK);
    })
    .await;
}

/// A node whose group is deleted does not decide about the snapshots of another node.
#[tokio::test(start_paused = true)]
async fn group_deletion_spares_snapshots_of_other_nodes() {
    with_nodes(2, async |world, route| {
        let (group, own, other) = ("group", "own", "other");
        let at = [node("edge-0"), node("edge-1")];
        route.placements.found(&Subject::GroupSnapshot(group.into()), &at[0]).await.unwrap();
        route.placements.found(&Subject::Snapshot(own.into()), &at[0]).await.unwrap();
        route.placements.found(&Subject::Snapshot(other.into()), &at[1]).await.unwrap();
        let request = csi::DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: group.to_owned(),
            snapshot_ids: vec![own.to_owned(), other.to_owned()],
            ..Default::default()
        };
        let (_, code) = call(route, world, Method::DeleteVolumeGroupSnapshot, request.encode_to_vec()).await;
        assert_eq!(code, Code::OK);
        let is_deleted =
            |id: &str| route.placements.read(|table| table.is_deleted(&Subject::Snapshot(id.into())));
        assert_eq!((is_deleted(own), is_deleted(other)), (true, false));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn block_metadata_is_routed_to_the_snapshot() {
    with_nodes(3, async |world, route| {
        let allocated = async |id: &str| {
            let request =
                csi::GetMetadataAllocatedRequest { snapshot_id: id.to_owned(), ..Default::default() };
            parts(route, world, Method::GetMetadataAllocated, request.encode_to_vec()).await
        };
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

/// With a relay that queues calls, each call to an offline node takes its grace. Presence is reported late.
#[tokio::test(start_paused = true)]
async fn offline_nodes_delay_no_online_node_after_restart() {
    let (world, disk) = (Arc::new(World::of(500)), MemoryStore::default());
    with_disk(&world, &disk, async |_| {}).await;
    // The last node by name is the only one online.
    let names: BTreeSet<_> = world.lock().nodes.keys().cloned().collect();
    let last = names.last().unwrap().clone();
    world.lock().offline = names.into_iter().filter(|name| *name != last).collect();
    let reachability = Reachability::new(Duration::from_secs(5));
    let hub = reachability.add_hub();
    hub.connected();
    let retry = RetryRelay::start(Arc::clone(&world), reachability.clone(), ClockTerms::default());
    let retry = retry.await.unwrap();
    let route = open(&disk).await;
    let presence = async {
        sleep(Duration::from_secs(1)).await;
        hub.node_up(&node(&last), NodeSession { instance: 1, number: 1 });
        hub.synced();
        route.arrived(&node(&last));
        route.synced();
    };
    while_running(&route, &retry, async {
        let created = async { (create(&route, &retry, "pvc-1", &last).await, Instant::now()) };
        let began = Instant::now();
        let ((code, ended), ()) = tokio::join!(created, presence);
        assert_eq!((code, ended - began < 2 * Duration::from_secs(1)), (Code::OK, true));
    })
    .await;
}
