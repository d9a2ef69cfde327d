//! What an operator is notified of, and how often.

use super::*;

#[test]
fn reports_driver_that_is_not_ready() {
    let mut bench = Bench::one();
    bench.round(&Driver { ready: Some(false), ..Driver::new() });
    assert!(!bench.is_ready());
    assert_eq!(bench.pause(), SECOND);
}

#[test]
fn reports_name_mismatch_once() {
    let mut bench = Bench::one();
    for _ in 0..3 {
        bench.round(&Driver::new());
    }
    assert_eq!(bench.notices, [Notice::NameMismatch { found: "other".to_owned() }, Notice::Reached]);
}

/// An answer that takes long to decode is refused, and its node counts as offline; the last good answers stay.
#[test]
fn too_large_answer_is_refused() {
    let mut bench = Bench::two();
    let good = Driver::new();
    bench.all_due(&good);
    let capabilities = bench.answer(Question::ControllerCapabilities);
    bench.notices.clear();
    let repeated = Driver { rpcs: vec![1; MAX_RECORD], ..Driver::new() };
    for (seconds, notices) in [(0, 1), (9, 1), (1, 2)] {
        bench.now += seconds * SECOND;
        bench.cache.refresh(Some(&key("edge-1")), bench.now);
        for node in bench.cache.take_due(2, bench.now).0 {
            let is_large = node == key("edge-1");
            let round = bench.play(&node, if is_large { &repeated } else { &good });
            assert!(!is_large || round.last() == Some(&Question::ControllerCapabilities), "{round:?}");
        }
        assert_eq!(
            (bench.presence("edge-1"), bench.presence("edge-2")),
            (Presence::Offline, Presence::Online)
        );
        assert_eq!(bench.notices.len(), notices, "{:?}", bench.notices);
    }
    let found = controller(&repeated.rpcs).len();
    let notice = Notice::TooLarge { question: Question::ControllerCapabilities, found, max: MAX_RECORD };
    assert_eq!(bench.notices[0], notice);
    assert_eq!(bench.answer(Question::ControllerCapabilities), capabilities);
}

#[test]
fn reports_each_outage_once() {
    let mut bench = Bench::one();
    for (driver, stale) in [(Driver::off(), true), (Driver::new(), false), (Driver::off(), true)] {
        bench.notices.clear();
        (0..3).for_each(|_| drop(bench.round(&driver)));
        let away = bench.notices.iter().filter(|notices| matches!(notices, Notice::Unreachable(_))).count();
        assert_eq!(away, usize::from(!driver.on));
        assert_eq!(
            (bench.cache.report_stale(Some(&own())), bench.cache.report_stale(Some(&own()))),
            (stale, false)
        );
    }
}

#[test]
fn reports_changed_topology_once() {
    let mut bench = Bench::two();
    bench.all_due(&Driver::new());
    for (node_id, expected) in [("n", 0), ("elsewhere", 2), ("elsewhere", 0)] {
        bench.notices.clear();
        bench.now += MEDIUM_INTERVAL;
        assert_eq!(bench.all_due(&Driver { node_id, ..Driver::new() }), 2);
        let moved = bench.notices.iter().filter(|notices| matches!(notices, Notice::Moved { .. })).count();
        assert_eq!(moved, expected, "{node_id}");
    }
}

/// A node that changes what it reports in every round.
#[test]
fn one_node_causes_few_notices() {
    let mut bench = Bench::discovering();
    bench.cache.require_admission();
    bench.cache.arrived(&own(), bench.now);
    let (mut rounds, mut refusals) = (0, 0);
    for second in 0..=20 {
        rounds += 1;
        let node_id = ["a", "b"][second % 2];
        let driver = Driver { node_id, name: node_id, ..Driver::new() };
        bench.cache.refresh(Some(&own()), bench.now);
        assert_eq!(bench.all_due(&driver), 1);
        let reported = bench.cache.to_admit(&own()).unwrap();
        let conflict = ClaimConflict::TooLarge { size: second };
        refusals += usize::from(bench.cache.admit(&own(), &reported, Some(conflict), bench.now));
        bench.now += SECOND;
    }
    let count = |wanted: fn(&Notice) -> bool| bench.notices.iter().filter(|notice| wanted(notice)).count();
    let names = count(|notice| matches!(notice, Notice::NameMismatch { .. }));
    let moves = count(|notice| matches!(notice, Notice::Moved { .. }));
    assert_eq!((rounds, names, moves, refusals), (21, 3, 2, 3));
}
