//! Nodes that answer together.

use super::*;

#[test]
fn node_is_selectable_after_its_info() {
    let mut bench = Bench::two();
    bench.cache.observe(&key("edge-1"), &Outcome::ok(), bench.now);
    assert_eq!(bench.presence("edge-1"), Presence::Unknown);
    bench.due(&Driver::new());
    assert_eq!(bench.presence("edge-1"), Presence::Online);
    let observe =
        |bench: &mut Bench, fault: Fault| bench.cache.observe(&key("edge-1"), &fault.into(), bench.now);
    observe(&mut bench, Fault::HubUnreachable { reason: String::new() });
    assert_eq!(bench.presence("edge-1"), Presence::Online);
    observe(&mut bench, Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() });
    assert_eq!(bench.presence("edge-1"), Presence::Offline);
    bench.cache.observe(&key("edge-1"), &Outcome::ok(), bench.now);
    assert_eq!(bench.presence("edge-1"), Presence::Online);
}

#[test]
fn discovers_nodes_with_the_driver() {
    let mut bench = Bench::discovering();
    let of_driver = |bench: &Bench| {
        let nodes = bench.cache.entries().filter(|(_, entry)| entry.is_of_driver());
        nodes.map(|(node, _)| node.to_string()).collect::<Vec<_>>()
    };
    let mut known = Bench::discovering();
    known.cache.arrived(&key("edge-9"), known.now);
    known.round(&Driver::new());
    let (record, as_of) = known.cache.take_record(&key("edge-9"), false).unwrap();
    let (kept, _) = Info::decode(&record).unwrap();
    bench.cache.restore([(key("edge-9"), kept, as_of)], bench.now);
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.arrived(&key("edge-2"), bench.now);
    bench.cache.synced(bench.now);
    assert_eq!(of_driver(&bench), ["edge-1", "edge-2", "edge-9"]);
    assert_eq!(bench.presence("edge-9"), Presence::Offline);
    bench.due(&Driver::new());
    bench.due(&Driver::missing());
    assert_eq!(of_driver(&bench), ["edge-1", "edge-9"], "a node without the driver does not count");
    for name in ["edge-1", "edge-2"] {
        bench.cache.left(&key(name), bench.now);
    }
    assert_eq!(bench.cache.entries().count(), 2, "edge-2 is forgotten");
    assert!(!bench.cache.remove(&key("edge-9")));
    assert_eq!(of_driver(&bench), ["edge-1"]);
    assert_eq!(bench.cache.only(), None, "there may be others");
}

#[test]
fn backs_off_on_node_without_the_driver() {
    let mut bench = Bench::discovering();
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.synced(bench.now);
    let mut asked = Vec::new();
    for second in 0..3600_u32 {
        if !bench.due(&Driver::missing()).is_empty() {
            asked.push(second);
        }
        bench.now += SECOND;
    }
    assert_eq!(asked[..9], [0, 1, 3, 7, 15, 31, 63, 127, 255]);
    assert!(asked.len() < 25, "{asked:?}");
}

#[test]
fn configured_nodes_exclude_others() {
    let mut bench = Bench::two();
    bench.cache.arrived(&key("edge-3"), bench.now);
    bench.cache.arrived(&key("edge-1"), bench.now);
    let known: Vec<_> = bench.cache.entries().map(|(node, _)| node.clone()).collect();
    assert_eq!(known, [key("edge-1"), key("edge-2")]);
}

#[test]
fn connected_nodes_are_refreshed_rarely() {
    let mut bench = Bench::discovering();
    for number in 0..1000 {
        bench.cache.arrived(&key(&format!("edge-{number}")), bench.now);
    }
    bench.cache.synced(bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 1000);
    bench.now += LONG_INTERVAL;
    assert_eq!(bench.all_due(&Driver::new()), 0);
    assert!(bench.cache.probed(None));
    assert_eq!(bench.all_due(&Driver::new()), 1, "the one by which Probe is answered");
    bench.cache.arrived(&key("edge-7"), bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 1);
    bench.now += CONFIRM_INTERVAL;
    assert_eq!(bench.all_due(&Driver::new()), 1000);
}

#[test]
fn probe_is_ready_while_one_node_is_ready() {
    let mut bench = Bench::discovering();
    for name in ["edge-1", "edge-2", "edge-3"] {
        bench.cache.arrived(&key(name), bench.now);
    }
    bench.cache.synced(bench.now);
    assert!(!bench.is_ready());
    bench.all_due(&Driver::new());
    bench.now += 5 * SECOND;
    bench.cache.left(&key("edge-1"), bench.now);
    assert!(bench.is_ready());
    let (due, _) = bench.cache.take_due(9, bench.now);
    assert_eq!(due, [key("edge-2")]);
    bench.play(&due[0], &Driver { ready: Some(false), ..Driver::new() });
    let (due, _) = bench.cache.take_due(9, bench.now);
    assert_eq!(due, [key("edge-3")]);
    bench.play(&due[0], &Driver { ready: Some(false), ..Driver::new() });
    assert!(!bench.is_ready());
}

#[test]
fn nodes_answer_with_common_capabilities() {
    use Question as Q;
    let mut bench = Bench::two();
    assert_eq!(bench.answer(Q::ControllerCapabilities), None);
    bench.due(&Driver { rpcs: vec![1, 2, 5], version: "2", ..Driver::new() });
    bench.due(&Driver { rpcs: vec![1, 5], ..Driver::new() });
    assert_eq!(bench.answer(Q::ControllerCapabilities), Some(Ok(controller(&[1, 5]).into())));
    assert_eq!(bench.answer(Q::NodeCapabilities), Some(Ok(node_service(&[3]).into())));
    assert_eq!(bench.answer(Q::PluginCapabilities), Some(Ok(plugin(&[1, 2]).into())), "each has a place");
    for none in [Q::GroupControllerCapabilities, Q::NodeInfo] {
        assert!(matches!(bench.answer(none), Some(Err(_))), "{none:?}");
    }
    let Some(Ok(info)) = bench.answer(Q::PluginInfo) else { panic!("must answer") };
    assert_eq!(csi::GetPluginInfoResponse::decode(info).unwrap().vendor_version, "1, 2");
}

#[test]
fn uses_topology_key_for_node_without_topology() {
    let place = |topology_key: Option<&str>, node_id: &'static str| {
        let topology_key = topology_key.map(ToOwned::to_owned);
        let mut bench = Bench::new(Mode::Together { topology_key, discovers: true });
        bench.cache.arrived(&key("edge-1"), bench.now);
        let driver = Driver { node_id, ..Driver::new() };
        let (due, _) = bench.cache.take_due(1, bench.now);
        let mut next = Some(Question::PluginInfo);
        while let Some(question) = next {
            let answer = match (question, node_id) {
                (Question::NodeInfo, "") => Ok(Bytes::new()),
                _ => driver.answer(question),
            };
            next = bench.cache.answered(&due[0], question, answer, bench.now, bench.time()).0;
        }
        bench.cache.entry(&key("edge-1")).unwrap().topology().cloned()
    };
    assert_eq!(place(Some("a/b"), ""), Some(csi::Topology::from_iter([("a/b", "edge-1")])));
    assert_eq!(place(Some("a/b"), "n"), Some(csi::Topology::from_iter([("node", "n")])));
    assert_eq!(place(None, ""), Some(csi::Topology::default()));
}

#[test]
fn refreshes_absent_nodes_once() {
    let mut bench = Bench::two();
    bench.all_due(&Driver::off());
    assert_eq!(bench.cache.refresh_absent(|_, _| true, bench.now), [], "refreshed just before");
    bench.now += SECOND;
    let asked = bench.cache.refresh_absent(|_, _| true, bench.now);
    assert_eq!(asked, [key("edge-1"), key("edge-2")]);
    assert!(bench.cache.any_in_round(&asked, bench.now));
    bench.all_due(&Driver::new());
    assert!(!bench.cache.any_in_round(&asked, bench.now));
    // With presence, offline nodes are not refreshed.
    bench.now += SECOND;
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.left(&key("edge-2"), bench.now);
    bench.cache.synced(bench.now);
    let fault = Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() };
    bench.all_due(&Driver { fault, ..Driver::off() });
    bench.now += SECOND;
    assert_eq!(bench.cache.refresh_absent(|_, _| true, bench.now), [key("edge-1")]);
}

/// After a start with many nodes, a call waits for its own node and not for all of them.
#[test]
fn refreshes_first_the_node_that_a_call_waits_for() {
    let mut bench = Bench::discovering();
    let names: Vec<_> = (1..=9).map(|number| key(&format!("edge-{number}"))).collect();
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    bench.cache.synced(bench.now);
    let asked = bench.cache.refresh_absent(|node, _| *node == names[7], bench.now);
    assert_eq!(asked, names[7..8]);
    assert_eq!(bench.cache.take_due(2, bench.now).0, [names[7].clone(), names[0].clone()]);
}

/// A CreateVolume without a node waits for a round that has just begun.
#[test]
fn waits_for_a_running_round() {
    let mut bench = Bench::discovering();
    bench.cache.arrived(&key("edge-1"), bench.now);
    bench.cache.synced(bench.now);
    let (due, _) = bench.cache.take_due(1, bench.now);
    let asked = bench.cache.refresh_absent(|_, _| true, bench.now);
    assert_eq!(asked, [key("edge-1")]);
    assert!(bench.cache.any_in_round(&asked, bench.now));
    bench.play(&due[0], &Driver::new());
    assert_eq!((bench.cache.any_in_round(&asked, bench.now), bench.pause()), (false, CONFIRM_INTERVAL));
}

/// On an empty state the first node to answer does not decide alone.
#[test]
fn most_connected_nodes_decide_about_capabilities() {
    let mut bench = Bench::discovering();
    let names = ["edge-1", "edge-2", "edge-3", "edge-4"].map(key);
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    let _ = bench.cache.take_due(4, bench.now);
    let known = names.each_ref().map(|name| {
        bench.play(name, &Driver::new());
        bench.cache.is_representative()
    });
    assert_eq!(known, [false, false, true, true]);
    // A node whose round has failed, and one that is not connected, is not awaited.
    let mut bench = Bench::discovering();
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    let _ = bench.cache.take_due(4, bench.now);
    bench.play(&names[0], &Driver::new());
    bench.play(&names[1], &Driver::off());
    assert!(!bench.cache.is_representative());
    bench.cache.left(&names[2], bench.now);
    bench.play(&names[3], &Driver::off());
    assert!(bench.cache.is_representative());
}

#[test]
fn failing_nodes_leave_rounds_to_the_others() {
    let mut bench = Bench::discovering();
    let names: Vec<_> = (0..40).map(|number| key(&format!("bad-{number:02}"))).collect();
    names.iter().for_each(|name| drop(bench.cache.arrived(name, bench.now)));
    bench.cache.synced(bench.now);
    bench.all_due(&Driver::off());
    bench.now += 10 * SECOND;
    let begun = bench.cache.take_due(16, bench.now).0;
    assert_eq!(begun.len(), MAX_FAILING_ROUNDS);
    // They hang. A node with a later name still gets its round.
    bench.cache.arrived(&key("good"), bench.now);
    let (due, _) = bench.cache.take_due(16 - begun.len(), bench.now);
    assert_eq!(due, [key("good")]);
    // The end of a failing round makes room for the next one.
    let failed = Err(Outcome::from(Fault::Cancelled));
    bench.cache.answered(&begun[0], Question::PluginInfo, failed, bench.now, bench.time());
    let (due, _) = bench.cache.take_due(16, bench.now);
    assert!(due.len() == 1 && !begun.contains(&due[0]), "{due:?}");
}
