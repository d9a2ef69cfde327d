//! The pure cores of peers and hub against each other: virtual time, random operations, faults. No runtime.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test fails and speaks by them"
)]

mod world;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use edge_transport::frame::{CallId, FEATURE_RESUME};
use edge_transport::session::{Delivery, Settings};
use edge_transport::{Epoch, PeerId, Reason};
use world::{Replay, Sim, name};

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EDGE_TRANSPORT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}

#[test]
fn with_links_that_come_and_go_each_call_gets_one_end_and_one_execution() {
    let mut finished = 0;
    for seed in seeds(300) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 4);
        for _ in 0..600 {
            sim.step(false);
        }
        sim.settle();
        sim.check_ended();
        for node in &sim.nodes {
            let distinct: HashSet<_> = node.executed.iter().collect();
            assert_eq!(distinct.len(), node.executed.len(), "a request was executed twice");
            finished += node.ends.values().filter(|ends| ends[0].is_ok()).count();
        }
    }
    assert!(finished > 300, "only {finished} calls finished well: the test shows nothing");
}

/// Anchors (f) 5 and 8, the session's part: whatever is lost with a link, a call whose peers live goes on when there is a link
/// again, is executed once, and its caller hears all that the service said, in order, once.
#[test]
fn calls_outlive_their_links_and_lose_no_word() {
    let (mut finished, mut resumed, mut resent, mut replayed) = (0, 0, 0, 0);
    let (mut undelivered, mut unknown) = (0, 0);
    for seed in seeds(400) {
        let _replay = Replay(seed);
        let mut sim = Sim::with_features(seed, 4, &[FEATURE_RESUME]);
        for _ in 0..800 {
            sim.step(false);
        }
        for _ in 0..3 {
            for index in 0..4 {
                sim.connect(index);
            }
            sim.settle();
        }
        // Peers say which answers they have.
        sim.advance(Duration::from_secs(1));
        sim.settle();
        // Calls to a peer that nobody knows, and whose refusal was lost, wait for it as long as they may.
        sim.advance(Settings::default().resume_window);
        sim.check_ended();
        let said: HashMap<(PeerId, CallId), (Vec<usize>, bool)> =
            sim.nodes.iter().flat_map(|node| node.said.clone()).collect();
        for (index, node) in sim.nodes.iter().enumerate() {
            let distinct: HashSet<_> = node.executed.iter().collect();
            assert_eq!(distinct.len(), node.executed.len(), "a request was executed twice");
            for (number, ends) in &node.ends {
                let said = said.get(&(name(index), CallId::new(Epoch::new(1), *number)));
                let heard = node.heard.get(number).cloned().unwrap_or_default();
                match &ends[0] {
                    Ok(()) => assert_eq!(said, Some(&(heard, true)), "call {number} of peer {index}"),
                    Err(reason) => assert!(
                        matches!(
                            reason,
                            Reason::PeerOffline | Reason::Deadline | Reason::Draining | Reason::Overloaded
                        ) || node.targets[number] == 4,
                        "call {number} of peer {index} ended with {reason}"
                    ),
                }
                finished += usize::from(ends[0].is_ok());
            }
            let stats = node.session.stats();
            resumed += stats.resumed;
            resent += stats.resent;
            replayed += stats.replayed;
        }
        for _ in 0..30 {
            sim.advance(Duration::from_secs(5));
            sim.settle();
        }
        for node in &sim.nodes {
            assert_eq!(node.session.kept_bytes(), 0, "answers are kept that nobody can ask for");
            for (serving, told) in &node.deliveries {
                let (source, id) = &node.answering[serving];
                let requester = (0..sim.nodes.len()).find(|index| name(*index) == *source).unwrap();
                let has_it = sim.nodes[requester].ends.get(&id.number).is_some_and(|ends| ends[0].is_ok());
                match told.unwrap() {
                    Delivery::Delivered => assert!(has_it, "call {id} of {source} counts as delivered"),
                    Delivery::Undelivered if has_it => unknown += 1,
                    Delivery::Undelivered => undelivered += 1,
                }
            }
        }
    }
    let counts = [finished, resumed as usize, resent as usize, replayed as usize, undelivered];
    assert!(counts.iter().all(|count| *count > 300), "{counts:?}: the test shows nothing");
    // The word that an answer has come is lost with its link now and then.
    assert!(unknown * 5 < finished, "{unknown} of {finished} answers came, and their peers never knew");
}

#[test]
fn frames_lost_twisted_or_doubled_never_panic_and_no_call_ends_twice() {
    for seed in seeds(600) {
        let _replay = Replay(seed);
        let features: &[&str] = if seed % 2 == 0 { &[] } else { &[FEATURE_RESUME] };
        let mut sim = Sim::with_features(seed ^ 0x5eed, 4, features);
        for _ in 0..600 {
            sim.step(true);
        }
        for index in 0..4 {
            sim.cut(index);
        }
        sim.advance(Settings::default().resume_window);
        sim.settle();
        sim.check_ended();
    }
}

#[test]
fn a_request_that_comes_twice_is_executed_once_even_after_it_was_answered() {
    let mut sim = Sim::new(1, 2);
    sim.connect(0);
    sim.connect(1);
    sim.settle();
    sim.call(0, 1, None);
    sim.deliver_up(0);
    let request = sim.nodes[1].wire.as_ref().unwrap().down.back().unwrap().clone();
    sim.settle();
    assert_eq!(sim.nodes[0].ends[&1], [Ok(())]);
    sim.nodes[1].wire.as_mut().unwrap().down.push_back(request);
    sim.settle();
    assert_eq!(sim.nodes[1].executed.len(), 1);
    assert_eq!(sim.nodes[1].session.stats().duplicates, 1);
}

#[test]
fn both_ends_ping_only_when_nothing_was_heard() {
    let mut sim = Sim::new(1, 1);
    sim.connect(0);
    sim.settle();
    sim.advance(Duration::from_secs(2));
    assert!(sim.nodes[0].wire.as_ref().unwrap().up.is_empty());
    sim.advance(Duration::from_secs(1));
    assert_eq!(sim.nodes[0].wire.as_ref().unwrap().up.len(), 1);
    for _ in 0..100 {
        sim.settle();
        sim.advance(Duration::from_secs(3));
    }
    sim.settle();
    assert!(sim.nodes[0].session.is_open());
    sim.nodes[0].wire.as_mut().unwrap().down.clear();
    for _ in 0..4 {
        sim.advance(Duration::from_secs(3));
    }
    assert!(!sim.nodes[0].session.is_open(), "silence of 12 s");
}

#[test]
fn every_lane_that_was_used_is_closed_however_its_call_ends() {
    for seed in seeds(100) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 3);
        for index in 0..3 {
            sim.connect(index);
        }
        for _ in 0..300 {
            let (index, other) = (sim.random.below(3), sim.random.below(3));
            match sim.random.below(5) {
                0 => sim.call(index, other, Some(Duration::from_millis(300))),
                1 => drop(sim.answer(index)),
                2 => sim.read(index),
                3 if sim.random.below(4) == 0 => sim.stop_waiting(index),
                3 if sim.random.below(9) == 0 => sim.advance(Duration::from_millis(200)),
                3 => drop(sim.deliver_up(index)),
                _ => drop(sim.deliver_down(index)),
            }
            sim.flush_hub();
        }
        sim.settle();
        sim.check_ended();
        assert!(sim.open_lanes.is_empty(), "{:?} are open", sim.open_lanes);
    }
}
