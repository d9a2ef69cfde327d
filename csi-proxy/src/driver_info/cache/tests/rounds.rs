//! The rounds of one node.

use super::*;

#[test]
fn answers_name_and_probe_while_driver_is_offline() {
    let mut bench = Bench::one();
    bench.round(&Driver::off());
    let Some(Ok(info)) = bench.answer(Question::PluginInfo) else { panic!("must answer") };
    let info = csi::GetPluginInfoResponse::decode(info).unwrap();
    assert_eq!((&*info.name, &*info.vendor_version), ("vendor", "unknown"));
    assert!(!bench.is_ready());
    for question in [
        Question::PluginCapabilities,
        Question::ControllerCapabilities,
        Question::GroupControllerCapabilities,
        Question::NodeCapabilities,
    ] {
        assert_eq!(bench.answer(question), None, "{question:?}");
    }
}

#[test]
fn one_round_refreshes_everything() {
    use Question as Q;
    let mut bench = Bench::one();
    let asked = bench.round(&Driver::new());
    let expected =
        [Q::PluginInfo, Q::PluginCapabilities, Q::ControllerCapabilities, Q::NodeCapabilities, Q::Probe];
    assert_eq!(asked, expected);
    let Some(Ok(info)) = bench.answer(Q::PluginInfo) else { panic!("must answer") };
    assert_eq!(csi::GetPluginInfoResponse::decode(info).unwrap().name, "vendor");
    assert_eq!(bench.answer(Q::PluginCapabilities), Some(Ok(plugin(&[1, 2]).into())));
    assert_eq!(bench.answer(Q::ControllerCapabilities), Some(Ok(controller(&[1, 2]).into())));
    assert_eq!(bench.answer(Q::NodeCapabilities), Some(Ok(node_service(&[3]).into())));
    let group = bench.answer(Q::GroupControllerCapabilities);
    assert!(matches!(group, Some(Err(_))), "{group:?}");
    assert!(bench.is_ready(), "an absent `ready` counts as ready");
}

#[test]
fn refreshes_node_info_only_for_one_node() {
    use Question as Q;
    for services in [vec![1, 3], vec![]] {
        let mut bench = Bench::one_with(true);
        assert_eq!(bench.answer(Q::NodeInfo), None);
        let asked = bench.round(&Driver { version: "2", services, ..Driver::new() });
        assert_eq!(asked.iter().filter(|question| **question == Q::NodeInfo).count(), 1, "{asked:?}");
        assert_eq!(bench.answer(Q::NodeInfo), Some(Ok(node_info("n").into())));
        assert!(bench.is_ready() && bench.cache.status(bench.of.as_ref(), bench.time()).complete);
    }
}

#[test]
fn failed_rounds_back_off() {
    let mut bench = Bench::one();
    let pauses: Vec<_> = (0..7)
        .map(|_| {
            bench.round(&Driver::off());
            bench.pause().as_secs()
        })
        .collect();
    assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
    bench.round(&Driver::new());
    assert_eq!(bench.pause(), CONFIRM_INTERVAL);
    bench.round(&Driver::off());
    assert_eq!(bench.pause(), SECOND, "a good round resets the pause");
    for _ in 0..7 {
        bench.round(&Driver::off());
    }
    assert_eq!(bench.pause(), 10 * SECOND, "with everything known the driver is tried often");
}

#[test]
fn refreshes_capabilities_after_a_change_or_outage() {
    use Question as Q;
    let mut bench = Bench::one();
    let mut driver = Driver::new();
    bench.round(&driver);
    assert_eq!(bench.round(&driver), [Q::PluginInfo, Q::Probe]);
    driver.version = "2";
    assert_eq!(bench.round(&driver).len(), 5);
    driver.on = false;
    assert_eq!(bench.round(&driver), [Q::PluginInfo]);
    assert!(!bench.is_ready());
    assert!(matches!(bench.answer(Q::PluginCapabilities), Some(Ok(_))), "what is known stays");
    driver.on = true;
    assert_eq!(bench.round(&driver).len(), 5);
    assert!(bench.is_ready());
}

#[test]
fn refresh_begins_a_round_at_once() {
    let mut bench = Bench::one();
    bench.round(&Driver::new());
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    assert_eq!(bench.due(&Driver::new()).len(), 5, "everything is asked");
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    let (due, _) = bench.cache.take_due(1, bench.now);
    bench.cache.refresh(bench.of.as_ref(), bench.now);
    assert_eq!(bench.due(&Driver::new()), [], "one at a time");
    bench.play(&due[0], &Driver::new());
    assert_eq!(bench.due(&Driver::new()).len(), 5);
    assert_eq!(bench.due(&Driver::new()), []);
}

/// All nodes are refreshed before presence is known.
#[test]
fn refresh_of_all_nodes_covers_unknown_presence() {
    let mut bench = Bench::two();
    assert_eq!(bench.all_due(&Driver::new()), 2);
    bench.cache.refresh(None, bench.now);
    assert_eq!(bench.all_due(&Driver::new()), 2);
    for name in ["edge-1", "edge-2"] {
        assert_eq!(bench.cache.arrived(&key(name), bench.now), None);
    }
    bench.cache.synced(bench.now);
    bench.now += SECOND;
    bench.due(&Driver::new());
    let fault = Fault::DriverNotRegistered { driver: DriverName::new("vendor").unwrap() };
    bench.due(&Driver { fault, ..Driver::off() });
    bench.cache.refresh(None, bench.now);
    assert_eq!(bench.cache.take_due(2, bench.now).0, [key("edge-2")]);
}

#[test]
fn online_node_is_refreshed_unless_ready() {
    let mut bench = Bench::one();
    for _ in 0..6 {
        bench.round(&Driver::off());
    }
    bench.now += SECOND;
    assert_eq!(bench.pause(), 29 * SECOND);
    bench.cache.arrived(&own(), bench.now);
    assert_eq!(bench.due(&Driver::new()).len(), 5);
    assert!(bench.is_ready());
    bench.now += 5 * SECOND;
    bench.cache.arrived(&own(), bench.now);
    assert_eq!(bench.pause(), CONFIRM_INTERVAL - 5 * SECOND);
}

/// Nothing is sent to a ready node for an hour, unless a caller wants to know whether it still is.
#[test]
fn probe_of_a_ready_node_begins_a_round_after_10_s() {
    let mut bench = Bench::one();
    assert!(!bench.cache.probed(bench.of.as_ref()), "the first round is due anyway");
    bench.round(&Driver::new());
    bench.now += 3 * SECOND;
    assert!(bench.cache.probed(bench.of.as_ref()));
    assert!(!bench.cache.probed(bench.of.as_ref()), "once is enough");
    assert_eq!(bench.pause(), 7 * SECOND);
    bench.round(&Driver::new());
    assert_eq!(bench.pause(), CONFIRM_INTERVAL);
    bench.now += 1000 * SECOND;
    assert!(bench.cache.probed(bench.of.as_ref()));
    assert_eq!(bench.due(&Driver::off()).len(), 1);
    assert!(!bench.is_ready());
    assert!(!bench.cache.probed(bench.of.as_ref()), "a driver that is not ready has its own schedule");
}

#[test]
fn flapping_node_begins_one_round_a_second() {
    let mut bench = Bench::one();
    bench.round(&Driver::off());
    bench.now += SECOND / 2;
    let (mut open, mut rounds) = (None, 0);
    for step in 0..10_000_u32 {
        bench.now += SECOND / 1000;
        bench.cache.arrived(&own(), bench.now);
        if step % 100 == 0
            && let Some(key) = open.take()
        {
            bench.play(&key, &Driver::off());
        }
        for key in bench.cache.take_due(9, bench.now).0 {
            assert!(open.replace(key).is_none(), "a second round at step {step}");
            rounds += 1;
        }
    }
    assert!((9..=11).contains(&rounds), "{rounds} rounds in 10 s");
}

#[test]
fn online_node_repeats_a_failed_round() {
    let mut bench = Bench::one();
    let (due, _) = bench.cache.take_due(1, bench.now);
    bench.now += 5 * SECOND;
    bench.cache.arrived(&own(), bench.now);
    bench.play(&due[0], &Driver::off());
    assert_eq!(bench.pause(), Duration::ZERO);
}
