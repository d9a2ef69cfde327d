#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use super::*;
use crate::call::fault::tests::one_of_each;

const GRACE: Duration = Duration::from_secs(5);
const HERE: NodeSession = NodeSession { instance: 1, number: 1 };
const UP: NodeStatus = NodeStatus::Connected(HERE);
const AWAY: NodeStatus = NodeStatus::Away(Missing::Node);

fn lost() -> Fault {
    Fault::LinkLost { reason: "cut".to_owned() }
}

fn offline() -> Fault {
    Fault::NodeOffline { node: NodeId::new("edge-1").unwrap() }
}

/// The attempts of a call with a controlled clock.
struct World {
    attempts: Attempts,
    start: Instant,
    now: Instant,
}

impl World {
    fn new(caller_waits: Option<u64>) -> Self {
        let start = Instant::now();
        let end = caller_waits.map(|seconds| start + Duration::from_secs(seconds));
        let (id, node) = (CallId::from_bytes([7; 16]), NodeId::new("edge-1").unwrap());
        Self { attempts: Attempts::new(id, node, GRACE, end), start, now: start }
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        self.now = self.start + Duration::from_secs_f64(seconds);
        self
    }

    fn next(&mut self, status: NodeStatus) -> Next {
        self.attempts.next(status, self.now)
    }

    /// The second until which it waits.
    fn waits(&mut self, status: NodeStatus) -> f64 {
        match self.next(status) {
            Next::Wait { until, .. } => (until - self.start).as_secs_f64(),
            other => panic!("{other:?}"),
        }
    }

    fn fails(&mut self, fault: Fault) -> Result<(), Fault> {
        self.fails_as(fault, Repeat::SameInstance)
    }

    fn fails_as(&mut self, fault: Fault, repeat: Repeat) -> Result<(), Fault> {
        assert_eq!(self.next(UP), Next::Send(HERE), "at {:?}", self.now - self.start);
        self.attempts.failed(fault, HERE, || repeat, self.now)
    }

    fn reconnecting(&self, seconds: f64) -> NodeStatus {
        let until = self.start + Duration::from_secs_f64(seconds);
        NodeStatus::Reconnecting { until, missing: Missing::Node }
    }
}

#[test]
fn call_to_an_offline_node_fails_at_once() {
    assert_eq!(World::new(None).next(AWAY), Next::Fail(offline()));
    let hub = World::new(None).next(NodeStatus::Away(Missing::Hub));
    assert!(matches!(hub, Next::Fail(Fault::HubUnreachable { .. })), "{hub:?}");
}

#[test]
fn unsent_call_waits_for_the_grace_in_total() {
    let mut world = World::new(None);
    let long = world.reconnecting(100.0);
    assert!((world.waits(long.clone()) - 5.0).abs() < 1e-6);
    // The node returns after 3 s, and is lost before the call reaches it, for 10 s more.
    world.at(3.0).fails(offline()).unwrap();
    world.at(13.0);
    assert!((world.waits(long.clone()) - 15.0).abs() < 1e-6, "3 s of the grace are used up");
    world.at(15.0);
    assert_eq!(world.next(long), Next::Fail(offline()));
}

#[test]
fn unsent_call_waits_until_the_grace_of_the_node_ends() {
    let mut world = World::new(None);
    let soon = world.reconnecting(2.0);
    assert!((world.waits(soon) - 2.0).abs() < 1e-6);
    world.at(2.0);
    assert_eq!(world.next(AWAY), Next::Fail(offline()));
}

#[test]
fn wait_is_limited_by_the_caller() {
    let mut world = World::new(Some(4));
    let long = world.reconnecting(100.0);
    assert!((world.waits(long) - 4.0).abs() < 1e-6);
    let mut world = World::new(Some(4));
    world.fails(lost()).unwrap();
    assert!((world.waits(AWAY) - 4.0).abs() < 1e-6);
    assert_eq!(world.at(4.0).next(AWAY), Next::Fail(lost()));
}

#[test]
fn retries_refusal_within_the_grace() {
    let mut world = World::new(None);
    let mut sent = 0;
    while let Ok(()) = {
        let Next::Send(session) = world.next(UP) else { panic!("not sent") };
        sent += 1;
        world.attempts.failed(offline(), session, || Repeat::Never, world.now)
    } {
        match world.next(UP) {
            Next::Wait { until, .. } => world.now = until,
            Next::Fail(fault) => {
                assert_eq!(fault, offline());
                break;
            }
            Next::Send(_) => panic!("without a pause"),
        }
        if world.now - world.start >= GRACE {
            assert_eq!(world.next(UP), Next::Fail(offline()));
            break;
        }
    }
    assert!((5..20).contains(&sent), "{sent}");
    assert_eq!(world.now - world.start, GRACE);
}

#[test]
fn begun_call_waits_30_s_for_its_instance() {
    let mut world = World::new(None);
    world.fails(lost()).unwrap();
    for status in [AWAY, world.reconnecting(2.0)] {
        assert!((world.waits(status.clone()) - 30.0).abs() < 1e-6, "{status:?}");
    }
    let again = NodeSession { number: 2, ..HERE };
    assert_eq!(world.at(29.9).next(NodeStatus::Connected(again)), Next::Send(again));
    assert_eq!(world.at(30.0).next(AWAY), Next::Fail(lost()));
}

#[test]
fn begun_call_is_not_sent_to_another_instance() {
    let other = NodeStatus::Connected(NodeSession { instance: 2, number: 1 });
    let mut world = World::new(None);
    world.fails(lost()).unwrap();
    assert_eq!(world.at(10.0).next(other.clone()), Next::Fail(lost()));
    let mut world = World::new(None);
    world.fails_as(lost(), Repeat::AnyInstance).unwrap();
    assert_eq!(world.at(10.0).next(other), Next::Send(NodeSession { instance: 2, number: 1 }));
}

#[test]
fn unsent_call_goes_to_any_instance() {
    let mut world = World::new(None);
    world.fails(offline()).unwrap();
    let other = NodeSession { instance: 2, number: 1 };
    assert_eq!(world.at(3.0).next(NodeStatus::Connected(other)), Next::Send(other));
}

#[test]
fn unrepeatable_call_is_retried_only_if_unsent() {
    for fault in one_of_each() {
        let sent_again = World::new(None).fails_as(fault.clone(), Repeat::Never);
        let expected = fault.is_transient() && fault.delivery() == Delivery::NotSent;
        assert_eq!(sent_again, if expected { Ok(()) } else { Err(fault.clone()) }, "{fault:?}");
    }
}

#[test]
fn final_fault_covers_all_attempts() {
    for fault in one_of_each() {
        let mut world = World::new(None);
        world.fails(lost()).unwrap();
        world.at(10.0);
        let end = match world.fails(fault.clone()) {
            Err(end) => end,
            Ok(()) => match world.at(60.0).next(AWAY) {
                Next::Fail(end) => end,
                other => panic!("{fault:?}: {other:?}"),
            },
        };
        assert_eq!(end.delivery(), Delivery::Unknown, "{fault:?}");
        let expected = if fault.delivery() == Delivery::Unknown { fault } else { lost() };
        assert_eq!(end, expected);
        assert_eq!(world.attempts.end_with(offline()).delivery(), Delivery::Unknown);
    }
}

#[test]
fn stops_after_32_attempts() {
    let mut world = World::new(None);
    for attempt in 1.. {
        match world.fails(lost()) {
            Ok(()) => {}
            Err(fault) => {
                assert_eq!((attempt, fault), (MAX_ATTEMPTS, lost()));
                break;
            }
        }
        let Next::Wait { until, .. } = world.next(UP) else { panic!("no pause") };
        world.now = until;
    }
    assert!(world.now - world.start > INSTANCE_WAIT, "the wait starts again with each loss");
}

#[test]
fn pauses_back_off_with_jitter() {
    let pauses = |id: u8| {
        let (id, node) = (CallId::from_bytes([id; 16]), NodeId::new("edge-1").unwrap());
        let mut attempts = Attempts::new(id, node, GRACE, None);
        let mut pause = || {
            attempts.failed += 1;
            attempts.pause()
        };
        [pause(), pause(), pause(), pause(), pause(), pause(), pause(), pause()]
    };
    let (one, other) = (pauses(1), pauses(2));
    for pauses in [one, other] {
        for (at, pause) in (0..).zip(pauses) {
            let longest = LONGEST_PAUSE.min(FIRST_PAUSE * 2_u32.pow(at));
            assert!(pause >= longest / 2 && pause <= longest, "{at}: {pause:?}");
        }
    }
    assert_ne!(one, other);
    assert_eq!(one, pauses(1), "the id is the seed");
}
