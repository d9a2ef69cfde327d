//! Nodes that lie.

use super::limits::{MAX_NODE_PAGE, MAX_TOKEN};
use super::list::NEXT_TOKEN;
use super::*;
use crate::call::protobuf::append_field;
use crate::driver_info::Question;

pub(super) fn expansion(id: &str) -> Vec<u8> {
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        secrets: secrets(),
        ..Default::default()
    };
    request.encode_to_vec()
}

pub(super) fn deletion(id: &str) -> Vec<u8> {
    csi::DeleteVolumeRequest { volume_id: id.to_owned(), secrets: secrets() }.encode_to_vec()
}

fn at(name: &str, method: Method) -> Vec<(String, Method)> {
    vec![(name.to_owned(), method)]
}

/// edge-1 has the volume and is offline; edge-2 reports the volume, too.
#[tokio::test(start_paused = true)]
async fn secrets_of_an_unknown_id_reach_no_liar() {
    with_nodes(3, async |world, route| {
        let expand = async || call(route, world, Method::ControllerExpandVolume, expansion("old")).await.1;
        let remove = async || call(route, world, Method::DeleteVolume, deletion("old")).await.1;
        let sent = || std::mem::take(&mut world.lock().secrets);
        for name in ["edge-1", "edge-2"] {
            world.has(name, "old");
        }
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!((expand().await, remove().await), (Code::UNAVAILABLE, Code::UNAVAILABLE));
        world.lock().offline.clear();
        assert_eq!((expand().await, remove().await), (Code::UNAVAILABLE, Code::UNAVAILABLE), "two have it");
        assert_eq!((sent(), route.rows()), (vec![], 0));
        world.lock().nodes.get_mut("edge-2").unwrap().clear();
        assert_eq!((expand().await, sent()), (Code::OK, at("edge-1", Method::ControllerExpandVolume)));
        // The record outlives the next lie.
        world.has("edge-2", "old");
        assert_eq!((expand().await, sent()), (Code::OK, at("edge-1", Method::ControllerExpandVolume)));
        assert_eq!((remove().await, sent()), (Code::OK, at("edge-1", Method::DeleteVolume)));
        let (_, absent) = call(route, world, Method::ControllerExpandVolume, expansion("none")).await;
        assert_eq!((absent, sent()), (Code::NOT_FOUND, vec![]));
    })
    .await;
}

/// A removal of an id that no node has is sent to all nodes, without its secrets.
#[tokio::test(start_paused = true)]
async fn removal_of_an_absent_id_has_no_secrets() {
    with_nodes(3, async |world, route| {
        assert_eq!(call(route, world, Method::DeleteVolume, deletion("none")).await.1, Code::OK);
        assert_eq!(world.take_calls()["DeleteVolume"], 3);
        let volume_id = "none".to_owned();
        let detach =
            csi::ControllerUnpublishVolumeRequest { volume_id, secrets: secrets(), ..Default::default() };
        let (_, code) = call(route, world, Method::ControllerUnpublishVolume, detach.encode_to_vec()).await;
        assert_eq!((code, world.take_calls()["ControllerUnpublishVolume"]), (Code::OK, 3));
        assert_eq!(world.lock().secrets, []);
    })
    .await;
}

/// Only the known node of the id in a list gets its secrets.
#[tokio::test(start_paused = true)]
async fn list_of_all_nodes_has_no_secrets() {
    with_nodes(3, async |world, route| {
        let snapshots = async |id: &str| {
            let (secrets, snapshot_id) = (secrets(), id.to_owned());
            let request = csi::ListSnapshotsRequest { secrets, snapshot_id, ..Default::default() };
            call(route, world, Method::ListSnapshots, request.encode_to_vec()).await.1
        };
        let health = csi::ControllerListVolumeHealthRequest { secrets: secrets(), ..Default::default() };
        let health = call(route, world, Method::ControllerListVolumeHealth, health.encode_to_vec());
        assert_eq!(
            (health.await.1, snapshots("").await, snapshots("snap").await),
            (Code::OK, Code::OK, Code::OK)
        );
        let calls = world.take_calls();
        assert_eq!((calls["ControllerListVolumeHealth"], calls["ListSnapshots"]), (3, 6));
        assert_eq!(trusted(world), BTreeSet::new());
        route.placements.found(&Subject::Snapshot("snap".into()), &node("edge-1")).await.unwrap();
        assert_eq!(snapshots("snap").await, Code::OK);
        assert_eq!(trusted(world), ["edge-1".to_owned()].into());
    })
    .await;
}

/// The node that has the id may connect later.
#[tokio::test(start_paused = true)]
async fn list_of_an_unknown_id_has_no_secrets_for_the_first_node() {
    with_nodes(1, async |world, route| {
        let request = csi::ListSnapshotsRequest {
            secrets: secrets(),
            snapshot_id: "snap".to_owned(),
            ..Default::default()
        };
        assert_eq!(call(route, world, Method::ListSnapshots, request.encode_to_vec()).await.1, Code::OK);
        assert_eq!(trusted(world), BTreeSet::new());
    })
    .await;
}

/// A liar does not become the node of a volume of an offline node. A reader gets its answer meanwhile.
#[tokio::test(start_paused = true)]
async fn liar_takes_no_id_of_an_offline_node() {
    with_nodes(3, async |world, route| {
        let read = async || {
            let request = csi::ControllerGetVolumeRequest { volume_id: "old".to_owned() };
            call(route, world, Method::ControllerGetVolume, request.encode_to_vec()).await.1
        };
        for name in ["edge-1", "edge-2"] {
            world.has(name, "old");
        }
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!((read().await, route.rows()), (Code::OK, 0));
        world.lock().offline.clear();
        world.lock().nodes.get_mut("edge-2").unwrap().clear();
        assert_eq!((read().await, route.rows()), (Code::OK, 1));
        assert_eq!(route.placements.node_of(&Subject::Volume("old".into())), Some(node("edge-1")));
    })
    .await;
}

/// The nodes are asked at the same time, a bounded number at once, and a node that hangs only delays until the timeout.
#[tokio::test(start_paused = true)]
async fn search_is_concurrent_and_bounded() {
    with_nodes(500, async |world, route| {
        world.has("edge-499", "old");
        world.lock().most_open = 0;
        let began = Instant::now();
        assert_eq!(call(route, world, Method::ControllerExpandVolume, expansion("old")).await.1, Code::OK);
        assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        // One more is the background probe.
        let most = world.lock().most_open;
        assert!(most <= MAX_CONCURRENT_ROUNDS + 1, "{most} at once");
    })
    .await;
}

async fn publish(route: &TopologyRouter, world: &World, node_id: &str) -> Code {
    let request = csi::ControllerPublishVolumeRequest {
        volume_id: "static".to_owned(),
        node_id: node_id.to_owned(),
        volume_capability: Some(csi::VolumeCapability::default()),
        secrets: secrets(),
        ..Default::default()
    };
    call(route, world, Method::ControllerPublishVolume, request.encode_to_vec()).await.1
}

async fn create_secret(route: &TopologyRouter, world: &World, name: &str, at: &str) -> Code {
    let requirement = csi::TopologyRequirement { preferred: vec![place(at)], requisite: vec![place(at)] };
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        accessibility_requirements: Some(requirement),
        secrets: secrets(),
        ..Default::default()
    };
    call(route, world, Method::CreateVolume, request.encode_to_vec()).await.1
}

/// edge-2 reports the `node_id` and the topology of edge-1, also first after a restart.
#[tokio::test(start_paused = true)]
async fn liar_gets_no_volume_and_no_publish_of_another_node() {
    let (world, disk) = (World::of(3), MemoryStore::default());
    let victim = node("edge-1");
    for round in 0..3 {
        let route = open(&disk).await;
        while_running(&route, &world, async {
            if round > 0 {
                // The liar comes first.
                world.lock().lies.insert("edge-2".to_owned(), "edge-1".to_owned());
                route.arrived(&node("edge-2"));
                sleep(MINUTE).await;
            }
            report_all_up(&route, &world);
            sleep(MINUTE).await;
            for number in 0..8 {
                let name = format!("pvc-{round}-{number}");
                assert_eq!(create_secret(&route, &world, &name, "edge-1").await, Code::OK);
            }
            assert_eq!(publish(&route, &world, "edge-1").await, Code::OK);
            assert_eq!(trusted(&world), ["edge-1".to_owned()].into(), "round {round}");
            if round == 0 {
                assert_eq!((create(&route, &world, "own", "edge-2").await, route.claim_conflicts()), (Code::OK, vec![]));
                return;
            }
            let conflicts = route.claim_conflicts();
            assert_eq!(conflicts.len(), 1, "{conflicts:?}");
            assert!(matches!(&conflicts[0], (liar, ClaimConflict::NodeId { owner, .. }) if *liar == node("edge-2") && *owner == victim));
            // Nothing is sent to it, also for what it has.
            assert_eq!(delete(&route, &world, "edge-2/own").await, Code::UNAVAILABLE);
            assert_eq!(create(&route, &world, "more", "edge-2").await, Code::RESOURCE_EXHAUSTED);
            world.lock().lies.clear();
            route.arrived(&node("edge-2"));
            sleep(MINUTE).await;
            assert_eq!(route.claim_conflicts(), []);
            assert_eq!(create(&route, &world, "own", "edge-2").await, Code::OK);
        })
        .await;
        drop(route);
        // Only the claims remain: the answers of the victim are not known at the next start.
        disk.save(&victim, None).await.unwrap();
    }
}

/// A node is installed anew under another name.
#[tokio::test(start_paused = true)]
async fn decommission_releases_the_claim_of_a_node() {
    let (world, disk) = (World::of(2), MemoryStore::default());
    with_disk(&world, &disk, async |route| {
        world.lock().nodes.insert("new".to_owned(), BTreeSet::new());
        world.lock().lies.insert("new".to_owned(), "edge-1".to_owned());
        world.lock().offline.insert("edge-1".to_owned());
        route.left(&node("edge-1"));
        route.arrived(&node("new"));
        sleep(MINUTE).await;
        assert_eq!(route.claim_conflicts().len(), 1);
        assert_eq!(create(route, &world, "pvc-1", "edge-1").await, Code::UNAVAILABLE);
        route.decommission(&node("edge-1")).await.unwrap();
        assert_eq!(route.claim_conflicts(), []);
        assert_eq!(create(route, &world, "pvc-1", "edge-1").await, Code::OK);
        assert_eq!(world.lock().nodes["new"].len(), 1);
    })
    .await;
    // The old owner is back, and is the newcomer now.
    world.lock().offline.clear();
    let route = open(&disk).await;
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        route.recommission(&node("edge-1")).await.unwrap();
        sleep(MINUTE).await;
        let conflicts = route.claim_conflicts();
        assert!(conflicts.len() == 1 && conflicts[0].0 == node("edge-1"), "{conflicts:?}");
    })
    .await;
}

/// With a topology key a liar cannot even be the first. Shared keys may have the same value on several nodes.
#[tokio::test(start_paused = true)]
async fn topology_key_leaves_no_segment_to_a_liar() {
    for (shared, quarantined) in [(vec![], 1), (vec!["node".to_owned()], 0)] {
        let (world, disk) = (World::of(2), MemoryStore::default());
        world.lock().lies.insert("edge-0".to_owned(), "edge-9".to_owned());
        let mut settings = Settings::default();
        match shared.is_empty() {
            true => settings.topology_key = Some("node".to_owned()),
            false => settings.shared_topology_keys = shared,
        }
        let route = open_with(disk.clone(), settings).await;
        while_running(&route, &world, async {
            report_all_up(&route, &world);
            sleep(MINUTE).await;
            let conflicts = route.claim_conflicts();
            assert_eq!(conflicts.len(), quarantined, "{conflicts:?}");
        })
        .await;
    }
}

/// Without a durable record a node takes no part.
#[tokio::test(start_paused = true)]
async fn node_takes_part_once_its_claim_is_durable() {
    use crate::routing::store::FaultyStore;
    let world = World::of(1);
    let (store, handle) = FaultyStore::new(MemoryStore::default());
    let route = open_with(store, Settings::default()).await;
    while_running(&route, &world, async {
        handle.cut_after(0);
        report_all_up(&route, &world);
        sleep(MINUTE).await;
        assert_eq!(publish(&route, &world, "edge-0").await, Code::UNAVAILABLE);
        assert_eq!(trusted(&world), BTreeSet::new());
        handle.cut_after(None);
        route.arrived(&node("edge-0"));
        sleep(MINUTE).await;
        assert_eq!(publish(&route, &world, "edge-0").await, Code::OK);
    })
    .await;
}

/// Lists all volumes, page by page, and returns their ids and the number of pages.
async fn list(route: &TopologyRouter, world: &World, max_entries: i32) -> (BTreeSet<String>, usize) {
    let (mut found, mut starting_token, mut pages) = (BTreeSet::new(), String::new(), 0);
    loop {
        let request = csi::ListVolumesRequest { max_entries, starting_token };
        let (page, code) = call(route, world, Method::ListVolumes, request.encode_to_vec()).await;
        assert_eq!(code, Code::OK);
        let page = page.unwrap();
        assert!(page.len() < 4_000_000, "{} bytes; clients of gRPC accept 4,194,304", page.len());
        let page = csi::ListVolumesResponse::decode(page).unwrap();
        found.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        (starting_token, pages) = (page.next_token, pages + 1);
        if starting_token.is_empty() {
            return (found, pages);
        }
    }
}

/// Whatever a node lists, the volumes of the others are listed, and its recorded volumes too.
#[tokio::test(start_paused = true)]
async fn wrong_list_of_a_node_hides_no_volume_of_another() {
    with_nodes(3, async |world, route| {
        let mut expected = BTreeSet::new();
        for number in 0..3 {
            let (name, at) = (format!("pvc-{number}"), format!("edge-{number}"));
            assert_eq!(create(route, world, &name, &at).await, Code::OK);
            expected.insert(format!("{at}/{name}"));
        }
        for wrong in [WrongList::TooLong, WrongList::Fails, WrongList::Hangs] {
            world.lock().lists.insert("edge-1".to_owned(), wrong);
            let began = Instant::now();
            assert_eq!(list(route, world, 10).await.0, expected, "{wrong:?}");
            assert!(began.elapsed() < Duration::from_secs(20), "{wrong:?}: {:?}", began.elapsed());
        }
        world.lock().lists.insert("edge-1".to_owned(), WrongList::Endless);
        let (found, pages) = list(route, world, 0).await;
        assert_eq!(found, expected);
        assert!(pages <= 1_203, "{pages}");
        world.lock().lists.insert("edge-1".to_owned(), WrongList::Slow);
        let began = Instant::now();
        world.take_calls();
        let (found, pages) = list(route, world, 0).await;
        assert_eq!(found, expected);
        assert!(began.elapsed() < Duration::from_secs(75), "{pages} pages, {:?}", began.elapsed());
        // The other nodes are not called for each of its pages.
        assert!(world.take_calls()["ListVolumes"] <= pages + 3, "{pages} pages");
    })
    .await;
}

/// The first honest node fills nearly the part of a page after which no other node follows, the second one a page of its own.
#[tokio::test(start_paused = true)]
async fn page_of_a_list_is_less_than_a_client_accepts() {
    let (world, long) = (World::of(3), "x".repeat(8000));
    let info = csi::NodeGetInfoResponse {
        node_id: "edge-1".to_owned(),
        accessible_topology: Some(place(&long)),
        ..Default::default()
    };
    world.forge("edge-1", Method::NodeGetInfo, info.encode_to_vec());
    let mut honest = BTreeSet::new();
    for (name, count) in [("edge-0", 260), ("edge-2", 520)] {
        for number in 0..count {
            let id = format!("{name}{number:03994}");
            world.has(name, &id);
            honest.insert(id);
        }
    }
    // Its long topology replaces the short one in each entry.
    let entries = |count: usize| {
        let volume = |number| csi::Volume {
            volume_id: format!("liar-{number}"),
            accessible_topology: vec![place("b")],
            ..Default::default()
        };
        let entry =
            |number| csi::list_volumes_response::Entry { volume: Some(volume(number)), ..Default::default() };
        let entries = (0..count).map(entry).collect();
        csi::ListVolumesResponse { entries, ..Default::default() }.encode_to_vec()
    };
    let filled =
        |page: &[u8], number| append_field(page, number, &vec![b'x'; MAX_NODE_PAGE - 8 - page.len()]);
    let token = |bytes| append_field(&entries(1), NEXT_TOKEN, "t".repeat(bytes).as_bytes());
    let (listed, recorded) = ("liar-0", "edge-1/pvc");
    let pages = [
        ("long token", filled(&entries(255), NEXT_TOKEN), Some(recorded)),
        ("long token", token(MAX_TOKEN + 1), Some(recorded)),
        ("longest token", token(MAX_TOKEN), Some(listed)),
        ("large entries", entries(255).into(), Some(listed)),
        ("too large entries", entries(300).into(), Some(recorded)),
        ("unknown field after entries", filled(&entries(255), 99), Some(recorded)),
        ("unknown field", filled(&[], 99), None),
    ];
    with_disk(&world, &MemoryStore::default(), async |route| {
        assert_eq!(create(route, &world, "pvc", &long).await, Code::OK);
        for (what, page, of_liar) in &pages {
            world.forge("edge-1", Method::ListVolumes, page.clone());
            for max_entries in [0, 1000] {
                let (found, _) = list(route, &world, max_entries).await;
                let hidden = honest.difference(&found).count();
                assert_eq!(hidden, 0, "{what}, {max_entries}");
                assert!(of_liar.is_none_or(|id| found.contains(id)), "{what}, {max_entries}");
            }
        }
    })
    .await;
}

/// A node that connects again and again and answers nothing could be anywhere.
#[tokio::test(start_paused = true)]
async fn silent_node_fails_no_volume_in_other_topologies() {
    let world = World::of(3);
    world.lock().silent.insert("edge-2".to_owned());
    with_disk(&world, &MemoryStore::default(), async |route| {
        for _ in 0..3 {
            // Its first round begins.
            route.left(&node("edge-2"));
            sleep(MINUTE).await;
            route.arrived(&node("edge-2"));
            let began = Instant::now();
            assert_eq!(create(route, &world, "pvc-0", "edge-0").await, Code::OK);
            assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
            assert_eq!(create(route, &world, "pvc-9", "edge-9").await, Code::RESOURCE_EXHAUSTED);
            assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
        }
    })
    .await;
}

/// A node that was reached before a restart, and is silent after it, may have a topology unless its name excludes that.
#[tokio::test(start_paused = true)]
async fn silent_node_is_awaited_where_it_may_be() {
    for (topology_key, elsewhere) in
        [(None, Code::UNAVAILABLE), (Some("node".to_owned()), Code::RESOURCE_EXHAUSTED)]
    {
        let (world, disk) = (World::of(2), MemoryStore::default());
        with_disk(&world, &disk, async |_| {}).await;
        disk.save(&node("edge-1"), None).await.unwrap();
        world.lock().silent.insert("edge-1".to_owned());
        let route = open_with(disk, Settings { topology_key, ..Settings::default() }).await;
        while_running(&route, &world, async {
            report_all_up(&route, &world);
            sleep(MINUTE).await;
            assert_eq!(create(&route, &world, "pvc-1", "edge-1").await, Code::UNAVAILABLE);
            assert_eq!(create(&route, &world, "pvc-9", "edge-9").await, elsewhere);
        })
        .await;
    }
}

/// The first node to answer, on an empty state, reports no controller service.
#[tokio::test(start_paused = true)]
async fn first_node_does_not_decide_about_capabilities() {
    let world = World::of(3);
    world.forge("edge-0", Method::GetPluginCapabilities, Vec::new());
    let route = open(&MemoryStore::default()).await;
    while_running(&route, &world, async {
        report_all_up(&route, &world);
        let answer = route.driver_info.answer(None, Question::PluginCapabilities, MINUTE);
        let (message, _) = answer.await.read_unary().await;
        let known = csi::GetPluginCapabilitiesResponse::decode(message.unwrap()).unwrap();
        assert!(known.has_service(Service::ControllerService), "{known:?}");
    })
    .await;
}

/// A node that lists the volume of another node could report it as attached elsewhere.
#[tokio::test(start_paused = true)]
async fn list_has_only_the_own_volumes_of_a_node() {
    with_nodes(2, async |world, route| {
        assert_eq!(create(route, world, "pvc-1", "edge-1").await, Code::OK);
        world.has("edge-0", "edge-1/pvc-1");
        let (page, _) = call(route, world, Method::ListVolumes, Vec::new()).await;
        let page = csi::ListVolumesResponse::decode(page.unwrap()).unwrap();
        assert_eq!(page.entries.len(), 1, "{page:?}");
        world.lock().offline.insert("edge-1".to_owned());
        assert_eq!(list(route, world, 0).await.0, ["edge-1/pvc-1".to_owned()].into());
    })
    .await;
}

/// A node answers the search for an id with large pages that never end. Few of them are read.
#[tokio::test(start_paused = true)]
async fn search_reads_few_large_pages() {
    with_nodes(2, async |world, route| {
        let page = append_field(&[0x7a, 0].repeat(1 << 20), NEXT_TOKEN, b"next");
        world.forge("edge-0", Method::ListVolumes, page);
        world.take_calls();
        assert_eq!(
            call(route, world, Method::ControllerExpandVolume, expansion("none")).await.1,
            Code::UNAVAILABLE
        );
        assert_eq!(world.take_calls()["ListVolumes"], 4 + 1, "8 MiB of edge-0, and one page of edge-1");
    })
    .await;
}
