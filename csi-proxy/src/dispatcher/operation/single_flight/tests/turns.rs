//! Examples for the queue.

use std::time::Duration;

use super::super::*;
use super::*;

/// The effects of an event on waiters: which requests run, and which are refused.
#[derive(Debug, Default, PartialEq)]
struct Followed {
    begun: Vec<WaiterId>,
    refused: Vec<WaiterId>,
}

impl Bench {
    fn follows(&mut self, event: Event) -> Followed {
        let mut followed = Followed::default();
        for action in self.event(event) {
            match action {
                Action::Run { waiter, .. } => followed.begun.push(waiter),
                Action::Fail { waiter, fault: Fault::OperationPending { .. } } => {
                    followed.refused.push(waiter);
                }
                _ => {}
            }
        }
        followed
    }

    fn queues(&mut self, identity: &Identity) -> WaiterId {
        let (waiter, seen) = self.submit(identity);
        assert_eq!(seen, Seen::Queued { timeout: WAIT });
        waiter
    }

    fn queues_as(&mut self, identity: &Identity, fence: Fence) -> WaiterId {
        let (waiter, seen) = self.fenced(identity, fence);
        assert_eq!(seen, Seen::Queued { timeout: WAIT });
        waiter
    }

    fn ends(&mut self, operation: OperationId) -> Vec<WaiterId> {
        self.follows(Event::Answered { operation, answer: done() }).begun
    }

    /// The operation of a waiter.
    fn operation_of(&self, waiter: WaiterId) -> OperationId {
        self.core.waiters[&waiter]
    }

    fn later(&mut self, seconds: u64) {
        self.now += Duration::from_secs(seconds);
    }
}

fn attach(volume: &str, node: &str) -> Identity {
    let (volume_id, node_id) = (volume.to_owned(), node.to_owned());
    let request = csi::ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() };
    Identity::of(&driver(), Method::ControllerPublishVolume, &request.encode_to_vec()).unwrap().unwrap()
}

fn detach(volume: &str, node: &str) -> Identity {
    let (volume_id, node_id) = (volume.to_owned(), node.to_owned());
    let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
    Identity::of(&driver(), Method::ControllerUnpublishVolume, &request.encode_to_vec()).unwrap().unwrap()
}

fn snapshot(volume: &str) -> Identity {
    let (source_volume_id, name) = (volume.to_owned(), "s".to_owned());
    let request = csi::CreateSnapshotRequest { source_volume_id, name, ..Default::default() };
    Identity::of(&driver(), Method::CreateSnapshot, &request.encode_to_vec()).unwrap().unwrap()
}

#[test]
fn operations_on_a_volume_take_turns_in_their_order() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let detaches = bench.queues(&detach("v", "n1"));
    let attaches = bench.queues(&attach("v", "n2"));
    assert_eq!(bench.core.counts().waiting, 2);
    assert_eq!(bench.ends(operation), [detaches]);
    let operation = bench.operation_of(detaches);
    assert_eq!(bench.ends(operation), [attaches]);
}

#[test]
fn opposite_slow_operations_take_turns_and_neither_starves() {
    let mut bench = Bench::new();
    let both = [attach("v", "n"), detach("v", "n")];
    let (_, mut operation) = bench.run(&both[0]);
    for round in 0..6 {
        // The running one is requested again as soon as it has ended, and the other waits all the time.
        let next = bench.queues(&both[(round + 1) % 2]);
        bench.now += Duration::from_millis(1_500);
        assert_eq!(bench.ends(operation), [next], "round {round}");
        operation = bench.operation_of(next);
    }
}

#[test]
fn refuses_expired_waiter_and_runs_the_next() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let first = bench.queues(&detach("v", "n1"));
    bench.later(1);
    let second = bench.queues(&attach("v", "n2"));
    bench.later(1);
    assert_eq!(bench.follows(Event::Tick), Followed { refused: vec![first], ..Default::default() });
    assert_eq!(bench.ends(operation), [second]);
}

#[test]
fn refuses_before_the_deadline_of_the_caller() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    for (remaining, waits) in [(10_000, 2_000), (2_500, 2_000), (1_200, 700), (501, 1)] {
        let until = bench.now + Duration::from_millis(remaining);
        let (waiter, seen) = bench.submit_as(remaining, &detach("v", "n"), None, Some(until));
        assert_eq!(seen, Seen::Queued { timeout: Duration::from_millis(waits) });
        bench.now += Duration::from_millis(waits - 1);
        assert_eq!(bench.follows(Event::Tick), Followed::default());
        bench.now += Duration::from_millis(1);
        assert_eq!(bench.follows(Event::Tick).refused, [waiter]);
    }
    let until = bench.now + Duration::from_millis(500);
    assert_eq!(bench.submit_as(9, &detach("v", "n"), None, Some(until)).1, pending("CreateSnapshot"));
    assert_eq!(bench.core.counts().waiting, 0);
}

#[test]
fn equal_call_joins_queued_operation() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let first = bench.queues(&detach("v", "n1"));
    let other = bench.queues(&attach("v", "n2"));
    bench.later(1);
    let again = bench.queues(&detach("v", "n1"));
    bench.later(1);
    // Both have given up; the later waiter keeps the position.
    assert_eq!(bench.follows(Event::Tick).refused, [first, other]);
    let late = bench.queues(&attach("v", "n2"));
    assert_eq!(bench.ends(operation), [again], "its own request is used");
    let operation = bench.operation_of(again);
    assert_eq!(bench.ends(operation), [late]);
}

#[test]
fn queued_equal_calls_share_one_execution() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let (first, second) = (bench.queues(&detach("v", "n")), bench.queues(&detach("v", "n")));
    assert_eq!(bench.ends(operation), [first]);
    let operation = bench.operation_of(second);
    assert_eq!(bench.answered(operation, done()), [second]);
}

#[test]
fn operation_without_callers_never_begins() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let (first, again) = (bench.queues(&detach("v", "n1")), bench.queues(&detach("v", "n1")));
    assert_eq!(bench.follows(Event::Left { waiter: first }), Followed::default());
    assert_eq!(bench.follows(Event::Left { waiter: again }), Followed::default());
    assert_eq!(bench.ends(operation), []);
    assert_eq!(bench.core.counts().running, 0);
}

#[test]
fn queue_is_bounded_per_volume_and_in_total() {
    let mut bench = Bench::with(Limits { queued: 3, queued_per_subject: 2, ..Limits::new(WAIT) });
    for volume in ["v", "w", "x"] {
        bench.run(&snapshot(volume));
    }
    bench.queues(&detach("v", "1"));
    bench.queues(&detach("v", "2"));
    assert_eq!(bench.submit(&detach("v", "3")).1, pending("CreateSnapshot"));
    bench.queues(&detach("v", "2"));
    bench.queues(&detach("w", "1"));
    assert_eq!(bench.submit(&detach("x", "1")).1, pending("CreateSnapshot"));
}

#[test]
fn queued_call_counts_as_a_waiter() {
    let mut bench = Bench::with(Limits { waiters: 2, ..Limits::new(WAIT) });
    bench.run(&snapshot("v"));
    bench.queues(&detach("v", "n"));
    assert!(matches!(bench.submit(&detach("v", "n")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
}

#[test]
fn group_waits_for_all_its_volumes() {
    let mut bench = Bench::new();
    let (_, on_v) = bench.run(&snapshot("v"));
    let (_, on_w) = bench.run(&snapshot("w"));
    let both = bench.queues(&group(&["v", "w"]));
    let behind = bench.queues(&detach("w", "n"));
    assert_eq!(bench.ends(on_w), [], "the group has to wait for the other volume");
    let apart = bench.queues(&attach("w", "n"));
    assert_eq!(bench.ends(on_v), [both]);
    let operation = bench.operation_of(both);
    assert_eq!(bench.ends(operation), [behind]);
    let operation = bench.operation_of(behind);
    assert_eq!(bench.ends(operation), [apart]);
}

#[test]
fn expired_group_unblocks_its_volumes() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    let both = bench.queues(&group(&["v", "w"]));
    bench.later(1);
    let behind = bench.queues(&detach("w", "n"));
    bench.later(1);
    assert_eq!(bench.follows(Event::Tick), Followed { begun: vec![behind], refused: vec![both] });
}

#[test]
fn begun_operation_invalidates_kept_result() {
    let mut bench = Bench::new();
    let (waiter, operation) = bench.run(&detach("v", "n"));
    bench.event(Event::Left { waiter });
    let attaches = bench.queues(&attach("v", "n"));
    assert_eq!(bench.ends(operation), [attaches]);
    assert_eq!(bench.core.counts().kept, 0);
    bench.queues(&detach("v", "n"));
}

#[test]
fn queue_continues_after_a_lost_driver() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let detaches = bench.queues(&detach("v", "n"));
    assert_eq!(bench.follows(Event::Lost { operation, fault: driver_lost() }).begun, [detaches]);
}

#[test]
fn drain_fails_queued_calls() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    let waiter = bench.queues(&detach("v", "n"));
    let fault = Fault::Draining { what: "the dispatcher".to_owned() };
    let actions = bench.event(Event::RejectQueued { fault: fault.clone() });
    assert_eq!(actions, [Action::Fail { waiter, fault }]);
    assert_eq!(bench.core.counts().waiting, 0);
}

// The fence, when an operation leaves the queue.

#[test]
fn call_given_up_while_queued_does_not_begin() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let given_up = bench.queues_as(&detach("v", "n1"), fence(4, 1, &[]));
    let closed = bench.queues_as(&attach("v", "n2"), fence(2, 1, &[]));
    let open = bench.queues_as(&detach("v", "n3"), fence(5, 3, &[(4, 4)]));
    let actions = bench.event(Event::Answered { operation, answer: done() });
    let refused = |waiter, number| {
        let Seen::Failed(fault) = stale(number) else { unreachable!() };
        Action::Fail { waiter, fault }
    };
    let operation = bench.operation_of(open);
    let expected = [refused(given_up, 4), refused(closed, 2), Action::Run { operation, waiter: open }];
    assert_eq!(actions, expected);
}

#[test]
fn call_of_a_replaced_proxy_does_not_begin() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let waiter = bench.queues_as(&detach("v", "n"), fence(1, 1, &[]));
    bench.core.record_term(term(2));
    let fault = Fault::StaleTerm { driver: driver(), found: term(1), current: term(2) };
    let actions = bench.event(Event::Answered { operation, answer: done() });
    assert_eq!(actions, [Action::Fail { waiter, fault }]);
    assert_eq!(bench.core.counts().running, 0);
}

#[test]
fn uses_request_of_an_open_call() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    bench.queues_as(&detach("v", "n"), fence(1, 1, &[]));
    let open = bench.queues_as(&detach("v", "n"), fence(3, 2, &[]));
    assert_eq!(bench.ends(operation), [open]);
    let operation = bench.operation_of(open);
    bench.event(Event::Lost { operation, fault: driver_lost() });
    assert_eq!(bench.fenced(&detach("v", "n"), fence(3, 2, &[])).1, already_begun());
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&detach("v", "n"), fence(3, 2, &[])).1, stale(3), "it has begun");
}

#[test]
fn given_up_group_unblocks_its_volumes() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    bench.queues_as(&group(&["v", "w"]), fence(1, 1, &[]));
    let behind = bench.queues_as(&detach("w", "n"), fence(2, 2, &[]));
    assert_eq!(bench.ends(operation), [behind]);
}

// Local and remote calls.

/// As many remote calls on a volume as a caller likes to make.
fn fill(bench: &mut Bench, volume: &str) -> Vec<WaiterId> {
    bench.remote = true;
    let node = |number| detach(volume, &format!("remote-{number}"));
    let queued = (0..)
        .map(|number| bench.submit(&node(number)))
        .take_while(|(_, seen)| *seen != pending("CreateSnapshot"));
    let queued = queued.map(|(waiter, _)| waiter).collect();
    bench.remote = false;
    queued
}

#[test]
fn remote_calls_leave_half_of_each_queue_to_local_ones() {
    let mut bench = Bench::with(Limits { queued: 6, queued_per_subject: 4, ..Limits::new(WAIT) });
    for volume in ["v", "w", "x"] {
        bench.run(&snapshot(volume));
    }
    assert_eq!(fill(&mut bench, "v").len(), 2, "half of a volume's places");
    assert_eq!(fill(&mut bench, "w").len(), 1, "half of all places");
    assert_eq!(fill(&mut bench, "x").len(), 0);
    for node in ["1", "2"] {
        bench.queues(&detach("v", node));
    }
    assert_eq!(bench.submit(&detach("v", "3")).1, pending("CreateSnapshot"), "all places of the volume");
    bench.queues(&detach("x", "1"));
    assert_eq!(bench.submit(&detach("x", "2")).1, pending("CreateSnapshot"), "all places");
}

#[test]
fn remote_calls_leave_half_of_the_waiters_to_local_ones() {
    let mut bench = Bench::with(Limits { waiters: 4, ..Limits::new(WAIT) });
    bench.remote = true;
    bench.run(&snapshot("v"));
    assert_eq!(bench.submit(&snapshot("v")).1, Seen::Joins);
    assert!(matches!(bench.submit(&snapshot("v")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
    bench.remote = false;
    bench.run(&snapshot("w"));
    assert_eq!(bench.submit(&snapshot("w")).1, Seen::Joins);
    assert!(matches!(bench.submit(&snapshot("w")).1, Seen::Failed(Fault::Overloaded { max: 4, .. })));
}

#[test]
fn local_calls_leave_the_queue_before_remote_ones() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let remote = fill(&mut bench, "v");
    let local = [bench.queues(&attach("v", "1")), bench.queues(&attach("v", "2"))];
    assert_eq!(bench.ends(operation), [local[0]]);
    assert_eq!(bench.ends(bench.operation_of(local[0])), [local[1]]);
    assert_eq!(bench.ends(bench.operation_of(local[1])), [remote[0]]);
    assert_eq!(bench.ends(bench.operation_of(remote[0])), [remote[1]]);
}

/// A remote group that waits for another volume does not keep a local call of this volume waiting.
#[test]
fn queued_remote_call_does_not_block_a_local_one() {
    let mut bench = Bench::new();
    let (_, on_v) = bench.run(&snapshot("v"));
    bench.remote = true;
    let both = bench.queues(&group(&["v", "w"]));
    bench.queues(&detach("w", "n"));
    bench.remote = false;
    let (_, on_w) = bench.run(&attach("w", "n"));
    assert_eq!(bench.ends(on_v), [], "the group waits for the local call");
    assert_eq!(bench.ends(on_w), [both]);
}

#[test]
fn queued_call_moves_up_with_a_local_one_and_uses_its_request() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let remote = fill(&mut bench, "v");
    let local = bench.queues(&detach("v", "remote-2"));
    assert_eq!(bench.ends(operation), [local]);
    assert_eq!(bench.answered(bench.operation_of(local), done()), [remote[2]], "one execution");
}

#[test]
fn beginning_local_call_takes_equal_queued_ones_along() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    bench.remote = true;
    bench.queues(&group(&["v", "w"]));
    let remote = bench.queues(&detach("w", "n"));
    bench.remote = false;
    let (_, operation) = bench.run(&detach("w", "n"));
    assert_eq!(bench.answered(operation, done()), [remote]);
}

/// Each of 200 queued operations on 700 volumes waits for each running one. The end of one concerns one volume of each.
#[test]
fn an_end_visits_the_keys_of_its_operation_only() {
    const QUEUED: usize = 200;
    let names = |what: &str, count: usize| (0..count).map(|at| format!("{what}-{at}")).collect::<Vec<_>>();
    let identity = |names: &[String]| group(&names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut bench = Bench::new();
    let held: Vec<_> = ["a", "b", "c"].map(|what| names(what, QUEUED)).into();
    let operations: Vec<_> = held.iter().map(|names| bench.run(&identity(names)).1).collect();
    for at in 0..QUEUED {
        let mut volumes = names(&format!("own-{at}"), 700);
        volumes.extend(held.iter().map(|names| names[at].clone()));
        bench.queues(&identity(&volumes));
    }
    let mut visits = |operation| {
        let before = queue::VISITS.get();
        let begun = bench.ends(operation).len();
        (begun, queue::VISITS.get() - before)
    };
    for operation in &operations[..2] {
        let (begun, visits) = visits(*operation);
        assert!(begun == 0 && visits <= 4 * QUEUED, "{visits} visits");
    }
    let (begun, visits) = visits(operations[2]);
    assert!(begun == QUEUED && visits <= 4 * QUEUED * 703, "{visits} visits");
}
