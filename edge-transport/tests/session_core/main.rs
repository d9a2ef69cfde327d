//! Simulates the pure cores of peers and hub: virtual time, random operations, faults, no runtime.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a failing test panics and prints its seed"
)]

mod world;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use edge_transport::Reason;
use world::{CallKey, Replay, Sim};

fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("EDGE_TRANSPORT_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..count).collect(),
    }
}

/// Links are lost and processes restart, which the hub may detect late: each call gets one end with a correct reason.
#[test]
fn calls_end_once_and_start_at_most_once() {
    let mut counts = HashMap::<String, usize>::new();
    for seed in seeds(400) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 4);
        for _ in 0..700 {
            sim.step(false);
        }
        sim.settle();
        for index in 0..4 {
            sim.connect(index);
        }
        sim.settle();
        sim.check_ended();
        let mut executed = HashSet::<CallKey>::new();
        for call in sim.nodes.iter().flat_map(|node| &node.executed) {
            assert!(executed.insert(*call), "call {call:?} started twice");
        }
        let sent: HashMap<_, _> = sim.nodes.iter().flat_map(|node| node.sent.clone()).collect();
        for (index, node) in sim.nodes.iter().enumerate() {
            for (number, ends) in &node.ends {
                let call = (index, *number);
                let received = node.received.get(number).cloned().unwrap_or_default();
                match &ends[0] {
                    Ok(()) => assert_eq!(sent.get(&call), Some(&(received, true)), "call {call:?}"),
                    Err(
                        Reason::PeerOffline | Reason::WrongSession | Reason::Draining | Reason::Overloaded,
                    ) if executed.contains(&call) && ends[0] != Err(Reason::Overloaded) => {
                        panic!("call {call:?} started, and ended with {ends:?}")
                    }
                    Err(Reason::Protocol) => panic!("call {call:?} violated the protocol"),
                    Err(_) => {}
                }
                let end = ends[0].map_or_else(|reason| reason.to_string(), |()| "OK".to_owned());
                *counts.entry(end).or_default() += 1;
            }
            let stats = node.session.stats();
            assert_eq!((stats.duplicates, stats.wrong_source, stats.protocol_ends), (0, 0, 0));
        }
    }
    for end in ["OK", "LINK_LOST", "PEER_OFFLINE", "WRONG_SESSION", "DEADLINE"] {
        assert!(
            counts.get(end).is_some_and(|count| *count > 300),
            "{end}: {counts:?}; expected more than 300 of each"
        );
    }
}

#[test]
fn faulty_frames_never_panic_and_calls_end_once() {
    for seed in seeds(600) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed ^ 0x5eed, 4);
        for _ in 0..600 {
            sim.step(true);
        }
        for index in 0..4 {
            sim.cut(index);
        }
        sim.settle();
        sim.check_ended();
    }
}

/// Two peers with calls of the first to the second, whose requests are in flight from the hub.
fn calls(number: usize) -> Sim {
    let mut sim = Sim::new(1, 2);
    sim.connect(0);
    sim.connect(1);
    sim.settle();
    for _ in 0..number {
        sim.call(0, 1, None);
    }
    while sim.deliver_up(0) {}
    sim
}

#[test]
fn duplicate_requests_start_once() {
    let mut sim = calls(1);
    let request = sim.nodes[1].wire.as_ref().unwrap().down.back().unwrap().clone();
    sim.nodes[1].wire.as_mut().unwrap().down.push_back(request.clone());
    sim.deliver_down(1);
    sim.deliver_down(1);
    assert_eq!(sim.nodes[1].session.stats().duplicates, 1, "the service is still running");
    sim.settle();
    assert_eq!(sim.nodes[0].ends[&1], [Ok(())]);
    sim.nodes[1].wire.as_mut().unwrap().down.push_back(request);
    sim.settle();
    assert_eq!(sim.nodes[1].executed, [(0, 1)]);
    assert_eq!(sim.nodes[1].session.stats().duplicates, 2);
}

#[test]
fn remembers_early_cancels_until_the_link_ends() {
    let mut sim = calls(3);
    sim.cancel(0);
    sim.deliver_up(0);
    let down = &mut sim.nodes[1].wire.as_mut().unwrap().down;
    let cancel = down.pop_back().unwrap();
    down.push_front(cancel);
    sim.settle();
    assert_eq!(sim.nodes[1].executed, [(0, 2), (0, 3)]);
    // The next link has separate numbers.
    sim.cut(1);
    sim.connect(1);
    sim.settle();
    sim.call(0, 1, None);
    sim.settle();
    assert_eq!(sim.nodes[1].executed, [(0, 2), (0, 3), (0, 4)]);
}

#[test]
fn end_of_link_ends_and_cancels_its_calls() {
    for (lost, abandoned) in [(0, 1), (1, 1)] {
        let mut sim = calls(2);
        sim.call(1, 1, None);
        while sim.deliver_up(1) || sim.deliver_down(1) {}
        assert_eq!(sim.nodes[1].running.len(), 3);
        sim.cut(lost);
        while sim.deliver_down(0) || sim.deliver_down(1) {}
        assert_eq!(sim.nodes[0].ends[&1], [Err(Reason::LinkLost)]);
        assert_eq!(sim.nodes[0].ends[&2], [Err(Reason::LinkLost)]);
        assert_eq!(sim.nodes[abandoned].abandoned.len(), if lost == 1 { 3 } else { 2 });
        assert_eq!(sim.nodes[1].session.open_inbound(), 3, "the services continue");
        sim.settle();
        assert_eq!(sim.nodes[1].session.open_inbound(), 0);
    }
}

#[test]
fn target_refuses_requests_for_another_session() {
    let mut sim = calls(0);
    let mut request = edge_transport::Request::new(world::service(), "0 1");
    let mut to = sim.nodes[1].id;
    for (number, expected) in [(2, vec![]), (1, vec![(0, 1)])] {
        to.number = number;
        request.to_session = Some(to);
        let part = edge_transport::advanced::frame::Part::Request(request.clone());
        let frame =
            edge_transport::advanced::frame::Frame::call(Some(world::name(0)), None, 10 + number, part);
        let frame = edge_transport::advanced::frame::encode(frame, edge_transport::link::Lane::Control);
        let bytes = [frame.head, frame.body].concat().into();
        sim.nodes[1].wire.as_mut().unwrap().down.push_back(bytes);
        sim.deliver_down(1);
        assert_eq!(sim.nodes[1].executed, expected, "for session {number}");
    }
}

#[test]
fn both_ends_ping_only_when_idle() {
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
    assert!(!sim.nodes[0].session.is_open(), "no frame for 12 s");
}

#[test]
fn every_used_lane_is_closed() {
    for seed in seeds(100) {
        let _replay = Replay(seed);
        let mut sim = Sim::new(seed, 3);
        for index in 0..3 {
            sim.connect(index);
        }
        for _ in 0..300 {
            let (index, other) = (sim.random.usize(..3), sim.random.usize(..3));
            match sim.random.usize(..5) {
                0 => sim.call(index, other, Some(Duration::from_millis(300))),
                1 => drop(sim.answer(index)),
                2 => sim.read(index),
                3 if sim.random.usize(..4) == 0 => sim.cancel(index),
                3 if sim.random.usize(..9) == 0 => sim.advance(Duration::from_millis(200)),
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
