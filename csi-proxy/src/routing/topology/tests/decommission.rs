//! Decommissioned nodes, and nodes that reconnect.

use super::*;
use crate::routing::store::{FaultyStore, StoreFault};

#[tokio::test(start_paused = true)]
async fn decommissioned_node_frees_its_names() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    world.lock().without_driver.insert("edge-2".to_owned());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        report_all_up(&route, &world);
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
        assert_eq!(call(&route, &world, Method::ListVolumes, Vec::new()).await.1, Code::OK);
        assert_eq!(route.decommission(&node("edge-1")).await, Ok(Decommissioned { rows: 1, before: false }));
        assert_eq!(route.decommission(&node("edge-1")).await, Ok(Decommissioned { rows: 0, before: true }));
        assert_eq!(create(&route, &world, "pvc-1", "edge-0").await, Code::OK);
        assert_eq!(delete(&route, &world, "edge-1/pvc-1").await, Code::OK);
        assert_eq!(call(&route, &world, Method::ListVolumes, Vec::new()).await.1, Code::OK);
    })
    .await;
}

/// Also after a restart.
#[tokio::test(start_paused = true)]
async fn operator_repairs_a_damaged_placement() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        for name in ["pvc-1", "pvc-2"] {
            assert_eq!(create(&route, &world, name, "edge-2").await, Code::OK);
        }
    })
    .await;
    drop(route);
    disk.keys().iter().for_each(|key| disk.overwrite(key, b"junk"));
    let route = open(&disk).await;
    assert_eq!(route.damaged_names(), ["pvc-1".into(), "pvc-2".into()].into());
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &world, "pvc-1", "edge-1").await, Code::UNAVAILABLE);
        let unknown = route.repair("pvc-1", Some(&node("edge-9"))).await;
        assert!(matches!(unknown, Err(RepairError::NoSuchNode { .. })), "{unknown:?}");
        let other = route.repair("pvc-3", None).await;
        assert_eq!(other, Err(RepairError::NotDamaged { name: "pvc-3".into() }));
        route.repair("pvc-1", Some(&node("edge-2"))).await.unwrap();
        route.repair("pvc-2", None).await.unwrap();
    })
    .await;
    drop(route);
    let route = open(&disk).await;
    assert_eq!(route.damaged_names(), BTreeSet::new());
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        for name in ["pvc-1", "pvc-2"] {
            assert_eq!(create(&route, &world, name, "edge-1").await, Code::OK);
        }
        let on_edge_1 = world.lock().nodes["edge-1"].clone();
        assert_eq!(on_edge_1, ["edge-1/pvc-2".to_owned()].into());
    })
    .await;
}

/// Also after a restart. A call that waits for the node at that time does not reach it either.
#[tokio::test(start_paused = true)]
async fn reconnected_node_gets_no_calls_until_recommissioned() {
    let (world, disk) = (Arc::new(World::of(2)), MemoryStore::default());
    let route = open(&disk).await;
    while_running(&route, &*world, async {
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(create(&route, &*world, "pvc-1", "edge-1").await, Code::OK);
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        let reachability = Reachability::new(MINUTE);
        let hub = reachability.add_hub();
        let session = |number| NodeSession { instance: 1, number };
        hub.connected();
        hub.node_up(&node("edge-1"), session(1));
        hub.synced();
        hub.node_down(&node("edge-1"), session(1));
        let retry = RetryRelay::start(Arc::clone(&world), reachability.clone(), ClockTerms::default());
        let retry = retry.await.unwrap();
        let decommission = async {
            sleep(Duration::from_secs(1)).await;
            route.decommission(&node("edge-1")).await.unwrap();
            world.lock().offline.clear();
            world.take_calls();
            route.arrived(&node("edge-1"));
            hub.node_up(&node("edge-1"), session(2));
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
        report_all_up(&route, &world);
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

/// The node gets no calls from the moment of the command, wherever the disk fails: before its name is durable, or
/// while its rows are released. Repeating the command, or the next start, completes it.
#[tokio::test]
async fn decommission_survives_a_failing_store() {
    let named = [node("edge-0"), node("edge-1")];
    let driver = DriverName::new("csi-hostpath").unwrap();
    let open = async |store: FaultyStore<MemoryStore>| {
        let settings = Settings::default();
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
        assert!(volumes.iter().all(|volume| next.placements.read(|table| table.is_deleted(volume))));
        assert_eq!(next.recommission(&named[1]).await, Ok(true));
        assert!(
            !volumes.iter().any(|volume| next.placements.read(|table| table.is_deleted(volume))),
            "it may have them"
        );
        assert_eq!(next.node_counts().0, 2, "it is configured by name");
    }

    let disk = MemoryStore::default();
    let (store, handle) = FaultyStore::new(disk.clone());
    let route = open(store).await;
    route.placements.found(&volumes[0], &named[1]).await.unwrap();
    handle.fail(StoreFault::Refused);
    route.decommission(&named[1]).await.unwrap_err();
    drop(route);
    let next = open(FaultyStore::new(disk).0).await;
    assert_eq!(
        (next.decommissioned().len(), still(&next)),
        (0, 1),
        "it was never reported as decommissioned"
    );
}

#[tokio::test(start_paused = true)]
async fn decommission_ends_open_streams() {
    with_nodes(3, async |world, route| {
        let snapshot_id = "snapshot".to_owned();
        let request = csi::GetMetadataAllocatedRequest { snapshot_id, ..Default::default() }.encode_to_vec();
        let allocated = || parts(route, world, Method::GetMetadataAllocated, request.clone());
        world.has("edge-1", "snapshot");
        world.lock().hanging.insert("edge-1".to_owned());
        // The first call searches the snapshot, the other one knows its node.
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
