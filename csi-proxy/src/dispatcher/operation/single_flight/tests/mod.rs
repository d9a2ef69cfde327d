//! Examples for the core. A random walk against a simple model is in `model.rs`.

mod model;
mod turns;

use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::{DriverName, Method};
use prost::Message as _;

use super::*;
use crate::call::{CallNumber, GivenUp, Outcome};
use csi_proto::Code;

const WAIT: Duration = Duration::from_secs(2);

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn create(name: &str, parameter: &str) -> Identity {
    let parameters = [("p".to_owned(), parameter.to_owned())].into();
    let request = csi::CreateVolumeRequest { name: name.to_owned(), parameters, ..Default::default() };
    Identity::of(&driver(), Method::CreateVolume, &request.encode_to_vec()).unwrap().unwrap()
}

fn delete(id: &str) -> Identity {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    Identity::of(&driver(), Method::DeleteVolume, &request.encode_to_vec()).unwrap().unwrap()
}

fn group(volumes: &[&str]) -> Identity {
    let source_volume_ids = volumes.iter().map(|id| (*id).to_owned()).collect();
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids,
        ..Default::default()
    };
    Identity::of(&driver(), Method::CreateVolumeGroupSnapshot, &request.encode_to_vec()).unwrap().unwrap()
}

fn created(id: &str) -> Answer {
    let volume = csi::Volume { volume_id: id.to_owned(), ..Default::default() };
    let message = csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec();
    Answer::new(Some(message.into()), Outcome::ok()).unwrap()
}

fn done() -> Answer {
    Answer::new(Some(Bytes::new()), Outcome::ok()).unwrap()
}

fn failed(code: Code) -> Answer {
    Answer::new(None, Outcome::from_driver(code, "no")).unwrap()
}

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

/// The fence of a call of term 1.
fn fence(number: u64, lowest_open: u64, given_up: &[(u64, u64)]) -> Fence {
    let n = |number| CallNumber::new(number).unwrap();
    let ranges = given_up.iter().map(|(first, last)| n(*first)..=n(*last));
    Fence::new(term(1), n(number), n(lowest_open), GivenUp::new(ranges).unwrap()).unwrap()
}

fn id(call: u64) -> CallId {
    CallId::from_bytes(u128::from(call).to_be_bytes())
}

/// A core with a controlled clock.
struct Bench {
    core: Core,
    now: Instant,
    submitted: u64,
    /// Whether the next requests are remote.
    remote: bool,
}

/// The result of a request.
#[derive(Debug, PartialEq)]
enum Seen {
    Runs(OperationId),
    Joins,
    Queued { timeout: Duration },
    Answered(Answer),
    Failed(Fault),
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::new(WAIT))
    }

    fn with(limits: Limits) -> Self {
        let mut core = Core::with_limits(limits);
        core.record_term(term(1));
        Self { core, now: Instant::now(), submitted: 0, remote: false }
    }

    /// Without a queue.
    fn without_queue() -> Self {
        Self::with(Limits::new(Duration::ZERO))
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.event(Event::Tick);
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        self.core.handle(self.now, event);
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    fn submit_as(
        &mut self,
        call: u64,
        identity: &Identity,
        fence: Option<Fence>,
        until: Option<Instant>,
    ) -> (WaiterId, Seen) {
        self.submitted += 1;
        let waiter = WaiterId::new(self.submitted);
        let (identity, remote) = (identity.clone(), self.remote);
        let submit = Event::Requested { waiter, call: id(call), identity, fence, remote, until };
        let mut seen = Seen::Joins;
        for action in self.event(submit) {
            match action {
                Action::Run { operation, waiter: runner } if runner == waiter => seen = Seen::Runs(operation),
                Action::Answer { answer, served, .. } => {
                    assert_eq!(served, Served::Replayed);
                    seen = Seen::Answered(answer);
                }
                Action::Fail { fault, waiter: failed } if failed == waiter => seen = Seen::Failed(fault),
                Action::Wait { deadline, .. } => {
                    seen = Seen::Queued { timeout: deadline.saturating_duration_since(self.now) };
                }
                other => panic!("{other:?}"),
            }
        }
        (waiter, seen)
    }

    /// Requests an operation with a new call.
    fn submit(&mut self, identity: &Identity) -> (WaiterId, Seen) {
        self.submit_as(1000 + self.submitted, identity, None, None)
    }

    /// Requests it with another copy of a call.
    fn again(&mut self, call: u64, identity: &Identity) -> Seen {
        self.submit_as(call, identity, None, None).1
    }

    /// A copy of the call with this fence; its number is its id.
    fn fenced(&mut self, identity: &Identity, fence: Fence) -> (WaiterId, Seen) {
        self.submit_as(fence.number().get(), identity, Some(fence), None)
    }

    fn run(&mut self, identity: &Identity) -> (WaiterId, OperationId) {
        match self.submit(identity) {
            (waiter, Seen::Runs(operation)) => (waiter, operation),
            (_, other) => panic!("{other:?}"),
        }
    }

    fn run_as(&mut self, call: u64, identity: &Identity) -> (WaiterId, OperationId) {
        match self.submit_as(call, identity, None, None) {
            (waiter, Seen::Runs(operation)) => (waiter, operation),
            (_, other) => panic!("{other:?}"),
        }
    }

    /// The waiters that get the answer besides the one that executed it.
    fn answered(&mut self, operation: OperationId, answer: Answer) -> Vec<WaiterId> {
        let actions = self.event(Event::Answered { operation, answer });
        let answers = actions.into_iter().filter_map(|action| match action {
            Action::Answer { waiter, served: Served::Joined, .. } => Some(waiter),
            _ => None,
        });
        answers.collect()
    }

    /// Completes an operation without waiters.
    fn keep(&mut self, identity: &Identity, answer: Answer) -> OperationId {
        let (waiter, operation) = self.run(identity);
        self.event(Event::Left { waiter });
        assert_eq!(self.answered(operation, answer), []);
        operation
    }

    fn is_run(&mut self, identity: &Identity) -> bool {
        matches!(self.submit(identity).1, Seen::Runs(_))
    }
}

fn pending(running: &str) -> Seen {
    Seen::Failed(Fault::OperationPending { driver: driver(), running: running.to_owned() })
}

fn stale(number: u64) -> Seen {
    Seen::Failed(stale_fault(number))
}

fn stale_fault(number: u64) -> Fault {
    Fault::StaleCall { driver: driver(), number: CallNumber::new(number).unwrap() }
}

fn already_begun() -> Seen {
    Seen::Failed(Fault::AlreadyBegun { driver: driver() })
}

fn driver_lost() -> Fault {
    Fault::DriverLost { driver: driver(), reason: "crashed".to_owned() }
}

// While it runs.

#[test]
fn equal_calls_join_the_running_operation() {
    let mut bench = Bench::new();
    let (first, operation) = bench.run(&delete("v"));
    let (second, seen) = bench.submit(&delete("v"));
    assert_eq!(seen, Seen::Joins);
    let (third, _) = bench.submit(&delete("v"));
    bench.event(Event::Left { waiter: first });
    assert_eq!(bench.answered(operation, done()), [second, third]);
    assert_eq!((bench.core.counts().waiters, bench.core.counts().running), (0, 0));
}

#[test]
fn another_operation_on_the_same_volume_is_pending() {
    let mut bench = Bench::without_queue();
    let (_, operation) = bench.run(&create("pvc", "a"));
    assert_eq!(bench.submit(&create("pvc", "b")).1, pending("CreateVolume"));
    assert!(bench.is_run(&create("other", "b")), "another volume");
    bench.answered(operation, created("v"));
    assert!(bench.is_run(&create("pvc", "b")));
}

#[test]
fn a_group_conflicts_with_each_of_its_volumes() {
    let group = group(&["v", "w"]);
    let mut bench = Bench::without_queue();
    let (_, deletion) = bench.run(&delete("w"));
    assert_eq!(bench.submit(&group).1, pending("DeleteVolume"));
    bench.answered(deletion, done());
    let (waiter, operation) = bench.run(&group);
    assert_eq!(bench.submit(&delete("w")).1, pending("CreateVolumeGroupSnapshot"));
    bench.event(Event::Left { waiter });
    let snapshot = csi::Snapshot { snapshot_id: "s".to_owned(), ..Default::default() };
    let made = csi::VolumeGroupSnapshot {
        group_snapshot_id: "gs".to_owned(),
        snapshots: vec![snapshot],
        ..Default::default()
    };
    let message = csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(made) }.encode_to_vec();
    bench.answered(operation, Answer::new(Some(message.into()), Outcome::ok()).unwrap());
    let request = csi::DeleteSnapshotRequest { snapshot_id: "s".to_owned(), ..Default::default() };
    bench.run(&Identity::of(&driver(), Method::DeleteSnapshot, &request.encode_to_vec()).unwrap().unwrap());
    assert!(bench.is_run(&group), "one of its snapshots is deleted");
}

#[test]
fn the_same_volume_at_another_driver_is_another_volume() {
    let mut bench = Bench::new();
    bench.run(&delete("v"));
    let other = DriverName::new("other").unwrap();
    let request =
        csi::DeleteVolumeRequest { volume_id: "v".to_owned(), ..Default::default() }.encode_to_vec();
    assert!(bench.is_run(&Identity::of(&other, Method::DeleteVolume, &request).unwrap().unwrap()));
}

#[test]
fn waiters_are_bounded() {
    let mut bench = Bench::with(Limits { waiters: 2, ..Limits::new(WAIT) });
    bench.run(&delete("v"));
    assert_eq!(bench.submit(&delete("v")).1, Seen::Joins);
    assert!(matches!(bench.submit(&delete("v")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
    assert!(matches!(bench.submit(&delete("w")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
}

/// Nothing is kept of an operation whose driver was lost: the next equal call executes it again, and a copy of its
/// call only if the driver did not receive it.
#[test]
fn operation_with_lost_driver_runs_again() {
    let missing = Fault::DriverSocketMissing { driver: driver(), path: "/x".to_owned() };
    for (fault, copy_runs) in [(driver_lost(), false), (missing, true)] {
        let mut bench = Bench::new();
        let (_, operation) = bench.run_as(1, &delete("v"));
        let (joined, _) = bench.submit(&delete("v"));
        let actions = bench.event(Event::Lost { operation, fault: fault.clone() });
        assert_eq!(actions, [Action::Fail { waiter: joined, fault }]);
        assert_eq!(bench.core.counts(), Counts::default());
        let copy = bench.again(1, &delete("v"));
        assert_eq!((matches!(copy, Seen::Runs(_)), copy == already_begun()), (copy_runs, !copy_runs));
        assert!(copy_runs || bench.is_run(&delete("v")));
    }
}

/// The copy may be late, or the bus may have lost the answer and deliver the call again.
#[test]
fn a_call_begins_once_though_its_result_is_invalid() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run_as(1, &create("pvc", "a"));
    bench.answered(operation, created("v"));
    let (_, deletion) = bench.run_as(2, &delete("v"));
    bench.answered(deletion, done());
    bench.pass(Duration::from_secs(59));
    assert_eq!(bench.again(1, &create("pvc", "a")), already_begun());
    assert!(bench.is_run(&create("pvc", "a")), "a new call runs");
    assert_eq!(bench.again(1, &create("pvc", "a")), Seen::Joins, "equal calls join");
}

/// Its answer was lost, so that it may not claim that nothing was sent.
#[test]
fn a_fenced_copy_of_a_begun_call_is_not_stale() {
    let mut bench = Bench::new();
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(1, 1, &[])) else { panic!("it runs") };
    bench.answered(operation, done());
    let (_, Seen::Runs(_)) = bench.fenced(&group(&["v"]), fence(2, 1, &[])) else { panic!("it runs") };
    assert_eq!(bench.fenced(&delete("v"), fence(1, 1, &[])).1, already_begun());
    assert_eq!(bench.submit_as(9, &delete("v"), Some(fence(1, 1, &[])), None).1, stale(1), "another call");
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&delete("v"), fence(1, 1, &[])).1, stale(1), "by its number");
}

#[test]
fn a_call_that_claimed_a_result_begins_never() {
    let mut bench = Bench::new();
    bench.keep(&delete("v"), done());
    bench.pass(Duration::from_secs(300));
    assert_eq!(bench.again(7, &delete("v")), Seen::Answered(done()));
    bench.keep(&create("v", "a"), created("v"));
    assert_eq!(bench.again(7, &delete("v")), already_begun());
}

// Results.

#[test]
fn replays_result_to_copies_of_its_calls() {
    for answer in [done(), failed(Code::NOT_FOUND), failed(Code::ABORTED)] {
        let mut bench = Bench::new();
        let (_, operation) = bench.run_as(1, &delete("v"));
        let (left, seen) = bench.submit_as(2, &delete("v"), None, None);
        assert_eq!(seen, Seen::Joins);
        bench.event(Event::Left { waiter: left });
        bench.answered(operation, answer.clone());
        bench.pass(Duration::from_secs(59));
        for call in [1, 2, 1] {
            assert_eq!(bench.again(call, &delete("v")), Seen::Answered(answer.clone()), "call {call}");
        }
        bench.pass(Duration::from_secs(1));
        assert_eq!(bench.core.counts(), Counts::default());
        assert!(matches!(bench.again(1, &delete("v")), Seen::Runs(_)), "for 60 s");
    }
}

#[test]
fn equal_call_runs_again_after_delivery() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run_as(1, &delete("v"));
    bench.answered(operation, done());
    assert!(bench.is_run(&delete("v")));
    assert_eq!(
        bench.again(1, &delete("v")),
        Seen::Joins,
        "the result is invalid, and the same operation runs"
    );
}

/// Its number has begun, so it can get nothing else.
#[test]
fn late_copy_gets_result_of_the_next_run() {
    let mut bench = Bench::new();
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(1, 1, &[])) else { panic!("it runs") };
    bench.answered(operation, done());
    let (_, Seen::Runs(again)) = bench.fenced(&delete("v"), fence(2, 1, &[])) else { panic!("it runs") };
    bench.answered(again, failed(Code::NOT_FOUND));
    let (_, seen) = bench.fenced(&delete("v"), fence(1, 1, &[]));
    assert_eq!(seen, Seen::Answered(failed(Code::NOT_FOUND)));
}

/// The refusal may be lost with a link, and the call is sent again.
#[test]
fn unsent_call_may_begin_again() {
    let reason = String::new;
    let refused = || Fault::DriverRefused { driver: driver(), reason: reason() };
    let lost = || Fault::DriverLost { driver: driver(), reason: reason() };
    for (fault, again) in [(refused(), true), (lost(), false)] {
        let mut bench = Bench::new();
        let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(1, 1, &[])) else {
            panic!("it runs")
        };
        assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, Seen::Joins);
        bench.event(Event::Lost { operation, fault: fault.clone() });
        let (_, seen) = bench.fenced(&delete("v"), fence(1, 1, &[]));
        assert_eq!(matches!(seen, Seen::Runs(_)), again, "{fault}: {seen:?}");
        let (_, seen) = bench.fenced(&delete("v"), fence(2, 1, &[]));
        assert_eq!(matches!(seen, Seen::Joins), again, "{fault}: {seen:?}");
    }
}

/// The driver has executed it for an earlier copy.
#[test]
fn begun_number_stays_begun_after_an_unsent_run() {
    let mut bench = Bench::new();
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(1, 1, &[])) else { panic!("it runs") };
    bench.answered(operation, done());
    let (_, Seen::Runs(again)) = bench.fenced(&delete("v"), fence(2, 1, &[])) else { panic!("it runs") };
    assert_eq!(bench.fenced(&delete("v"), fence(1, 1, &[])).1, Seen::Joins);
    let fault = Fault::DriverRefused { driver: driver(), reason: String::new() };
    bench.event(Event::Lost { operation: again, fault });
    let (_, seen) = bench.fenced(&delete("v"), fence(1, 1, &[]));
    assert_eq!(seen, already_begun());
}

#[test]
fn unclaimed_result_is_returned_once() {
    for answer in [done(), failed(Code::NOT_FOUND), failed(Code::INTERNAL), failed(Code::new(99))] {
        let mut bench = Bench::new();
        bench.keep(&delete("v"), answer.clone());
        bench.pass(Duration::from_secs(599));
        assert_eq!(bench.again(7, &delete("v")), Seen::Answered(answer.clone()));
        bench.pass(Duration::from_secs(59));
        assert_eq!(bench.again(7, &delete("v")), Seen::Answered(answer), "a copy of the call that got it");
        assert!(bench.is_run(&delete("v")), "another one does not");
    }
}

#[test]
fn unclaimed_result_is_kept_for_10_minutes() {
    let mut bench = Bench::new();
    bench.keep(&delete("v"), done());
    bench.pass(Duration::from_secs(600));
    assert_eq!((bench.core.counts().kept, bench.core.counts().bytes), (0, 0));
    assert!(bench.is_run(&delete("v")));
}

#[test]
fn expired_caller_does_not_count_as_waiting() {
    let mut bench = Bench::new();
    let until = bench.now + Duration::from_secs(10);
    let (_, seen) = bench.submit_as(1, &delete("v"), None, Some(until));
    let Seen::Runs(operation) = seen else { panic!("{seen:?}") };
    bench.pass(Duration::from_secs(40));
    bench.answered(operation, done());
    assert_eq!(bench.submit(&delete("v")).1, Seen::Answered(done()));
}

#[test]
fn retryable_codes_are_not_kept() {
    for code in [Code::CANCELLED, Code::DEADLINE_EXCEEDED, Code::UNAVAILABLE, Code::ABORTED] {
        let mut bench = Bench::new();
        bench.keep(&delete("v"), failed(code));
        assert!(bench.is_run(&delete("v")), "{code}");
    }
}

/// Neither for the next equal call nor for another copy of the same call, which does not begin again.
#[test]
fn results_of_node_calls_are_never_kept() {
    let stage = |path: &str| {
        let (volume_id, staging_target_path) = ("v".to_owned(), path.to_owned());
        let request = csi::NodeStageVolumeRequest { volume_id, staging_target_path, ..Default::default() };
        Identity::of(&driver(), Method::NodeStageVolume, &request.encode_to_vec()).unwrap().unwrap()
    };
    let mut bench = Bench::without_queue();
    let (_, operation) = bench.run_as(1, &stage("/s"));
    assert_eq!(bench.submit(&stage("/s")).1, Seen::Joins, "while it runs it is joined as any other");
    assert_eq!(bench.submit(&stage("/other")).1, pending("NodeStageVolume"));
    bench.answered(operation, done());
    assert_eq!(bench.core.counts(), Counts::default());
    assert_eq!(bench.again(1, &stage("/s")), already_begun());
    let (waiter, operation) = bench.run(&stage("/s"));
    bench.event(Event::Left { waiter });
    bench.answered(operation, done());
    assert_eq!(bench.again(1, &stage("/s")), already_begun());
    assert!(bench.is_run(&stage("/s")));
}

#[test]
fn another_operation_invalidates_a_result() {
    let mut bench = Bench::new();
    bench.keep(&create("pvc", "a"), created("v"));
    let (_, operation) = bench.run(&create("pvc", "b"));
    bench.event(Event::Lost { operation, fault: Fault::Deadline { waited: Duration::ZERO } });
    assert!(bench.is_run(&create("pvc", "a")), "even if that has no result");

    let mut bench = Bench::new();
    let (_, operation) = bench.run_as(1, &create("pvc", "a"));
    bench.answered(operation, created("v"));
    bench.run(&delete("another"));
    assert_eq!(bench.again(1, &create("pvc", "a")), Seen::Answered(created("v")));
    bench.run(&delete("v"));
    assert_eq!(bench.again(1, &create("pvc", "a")), already_begun(), "the volume may be deleted");
    assert!(bench.is_run(&create("pvc", "a")));
}

#[test]
fn create_invalidates_result_of_the_deletion() {
    let mut bench = Bench::new();
    bench.keep(&delete("v"), done());
    let (_, operation) = bench.run(&create("pvc", "a"));
    bench.answered(operation, created("v"));
    assert!(bench.is_run(&delete("v")));
}

#[test]
fn result_is_not_kept_if_its_volume_may_be_deleted() {
    for ended in [false, true] {
        let mut bench = Bench::new();
        let (_, operation) = bench.run_as(1, &create("pvc", "a"));
        let (_, deletion) = bench.run(&delete("v"));
        if ended {
            bench.answered(deletion, done());
        }
        bench.answered(operation, created("v"));
        assert_eq!(bench.again(1, &create("pvc", "a")), already_begun(), "{ended}");
        assert!(bench.is_run(&create("pvc", "a")), "{ended}");
        bench.keep(&create("other", "a"), created("w"));
        assert!(matches!(bench.submit(&create("other", "a")).1, Seen::Answered(_)));
    }
}

#[test]
fn kept_results_are_bounded_in_number_and_bytes() {
    let mut bench = Bench::with(Limits { kept: 3, ..Limits::new(WAIT) });
    for id in ["a", "b", "c", "d"] {
        bench.keep(&delete(id), done());
        bench.pass(Duration::from_secs(1));
    }
    assert_eq!(bench.core.counts().kept, 3);
    assert!(bench.is_run(&delete("a")), "the oldest went first");

    let large = || Answer::new(Some(vec![0; 3000].into()), Outcome::ok()).unwrap();
    let mut bench = Bench::with(Limits { kept_bytes: 8000, ..Limits::new(WAIT) });
    for id in ["a", "b", "c"] {
        bench.keep(&delete(id), large());
    }
    assert!(bench.core.counts().kept == 2 && bench.core.counts().bytes <= 8000);
    bench.keep(&delete("d"), Answer::new(Some(vec![0; 9000].into()), Outcome::ok()).unwrap());
    assert_eq!(bench.core.counts().kept, 2, "an oversized result evicts nothing");
}

#[test]
fn calls_of_a_result_are_bounded() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run_as(0, &delete("v"));
    for call in 1..=128 {
        bench.submit_as(call, &delete("v"), None, None);
    }
    bench.answered(operation, done());
    assert_eq!(bench.again(1, &delete("v")), Seen::Answered(done()));
    assert_eq!(bench.again(0, &delete("v")), already_begun(), "the oldest gets no replay");
}

// The fence.

#[test]
fn a_number_begins_once() {
    let mut bench = Bench::new();
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(5, 1, &[])) else { panic!() };
    assert_eq!(bench.fenced(&delete("v"), fence(5, 1, &[])).1, Seen::Joins, "while it runs");
    bench.answered(operation, done());
    assert_eq!(bench.fenced(&delete("v"), fence(5, 1, &[])).1, Seen::Answered(done()), "while it is kept");
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&delete("v"), fence(5, 1, &[])).1, stale(5), "afterwards");
    assert!(matches!(bench.fenced(&delete("v"), fence(6, 1, &[])).1, Seen::Runs(_)), "another call");
}

#[test]
fn number_stays_begun_after_eviction() {
    let mut bench = Bench::with(Limits { kept: 1, ..Limits::new(WAIT) });
    let (_, Seen::Runs(operation)) = bench.fenced(&create("pvc", "a"), fence(1, 1, &[])) else { panic!() };
    bench.answered(operation, created("v"));
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(2, 1, &[])) else { panic!() };
    assert_eq!(bench.fenced(&create("pvc", "a"), fence(1, 1, &[])).1, already_begun(), "invalidated");
    bench.answered(operation, done());
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("w"), fence(3, 1, &[])) else { panic!() };
    bench.answered(operation, done());
    assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, already_begun(), "evicted");
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&create("pvc", "a"), fence(1, 1, &[])).1, stale(1), "by its number");
    assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, stale(2), "by its number");
}

/// It has shared an execution, whichever call began that.
#[test]
fn joined_call_never_begins() {
    let mut bench = Bench::new();
    let (_, Seen::Runs(operation)) = bench.fenced(&delete("v"), fence(1, 1, &[])) else { panic!() };
    assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, Seen::Joins);
    bench.event(Event::Lost { operation, fault: driver_lost() });
    assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, already_begun());
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&delete("v"), fence(2, 1, &[])).1, stale(2));
    bench.keep(&delete("v"), done());
    assert_eq!(bench.fenced(&delete("v"), fence(3, 1, &[])).1, Seen::Answered(done()));
    bench.pass(Duration::from_secs(60));
    assert_eq!(bench.fenced(&delete("v"), fence(3, 1, &[])).1, stale(3));
}

#[test]
fn given_up_call_does_not_begin() {
    let mut bench = Bench::new();
    assert!(matches!(bench.fenced(&delete("v"), fence(9, 3, &[(5, 6)])).1, Seen::Runs(_)));
    for number in [1, 2, 5, 6] {
        assert_eq!(bench.fenced(&create("pvc", "a"), fence(number, 1, &[])).1, stale(number));
    }
    assert!(matches!(bench.fenced(&create("pvc", "a"), fence(4, 1, &[])).1, Seen::Runs(_)), "it is open");
}

#[test]
fn refused_call_may_begin_later() {
    let mut bench = Bench::without_queue();
    let (_, Seen::Runs(operation)) = bench.fenced(&create("pvc", "a"), fence(1, 1, &[])) else { panic!() };
    assert_eq!(bench.fenced(&create("pvc", "b"), fence(2, 1, &[])).1, pending("CreateVolume"));
    bench.answered(operation, created("v"));
    assert!(matches!(bench.fenced(&create("pvc", "b"), fence(2, 1, &[])).1, Seen::Runs(_)));
}

#[test]
fn term_must_be_recorded_first() {
    let mut bench = Bench::new();
    let (first, of_term_2) = (CallNumber::FIRST, |number| {
        let number = CallNumber::new(number).unwrap();
        Fence::new(term(2), number, CallNumber::FIRST, GivenUp::default()).unwrap()
    });
    let (_, seen) = bench.fenced(&delete("v"), of_term_2(1));
    assert!(matches!(seen, Seen::Failed(Fault::TermNotRecorded { .. })), "{seen:?}");
    assert!(
        matches!(bench.fenced(&delete("v"), fence(1, 1, &[])).1, Seen::Runs(_)),
        "the old term is still valid"
    );
    bench.core.record_term(term(2));
    let expected = Fault::StaleTerm { driver: driver(), found: term(1), current: term(2) };
    assert_eq!(bench.fenced(&delete("w"), fence(2, 1, &[])).1, Seen::Failed(expected));
    assert!(
        matches!(bench.fenced(&delete("w"), of_term_2(first.get())).1, Seen::Runs(_)),
        "numbers start again"
    );
    assert_eq!(
        bench.fenced(&delete("v"), of_term_2(2)).1,
        Seen::Joins,
        "joins the operation of an earlier proxy"
    );
}

#[test]
fn a_local_call_is_not_fenced() {
    let mut bench = Bench::new();
    bench.fenced(&delete("v"), fence(9, 9, &[]));
    assert!(bench.is_run(&delete("w")));
    let other = DriverName::new("never-fenced").unwrap();
    let request = csi::DeleteVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    assert!(
        bench.is_run(&Identity::of(&other, Method::DeleteVolume, &request.encode_to_vec()).unwrap().unwrap())
    );
}

#[test]
fn fences_calls_without_identity() {
    let mut bench = Bench::new();
    let (now, mut call) = (bench.now, 0);
    let mut admit = |number, lowest, repeatable| {
        call += 1;
        bench.core.admit(now, &driver(), id(call), Some(&fence(number, lowest, &[])), repeatable)
    };
    let stale = |number| Err(stale_fault(number));
    assert_eq!((admit(1, 1, true), admit(1, 1, true)), (Ok(()), Ok(())));
    assert_eq!((admit(2, 1, false), admit(2, 1, false)), (Ok(()), stale(2)));
    assert_eq!((admit(5, 4, true), admit(3, 1, true)), (Ok(()), stale(3)), "given up");
    bench.core.record_term(term(2));
    let found = bench.core.admit(now, &driver(), id(99), Some(&fence(9, 1, &[])), true);
    assert_eq!(found, Err(Fault::StaleTerm { driver: driver(), found: term(1), current: term(2) }));
}

#[test]
fn a_call_without_identity_begins_once() {
    for fence in [None, Some(fence(1, 1, &[]))] {
        let mut bench = Bench::new();
        let begun = Err(Fault::AlreadyBegun { driver: driver() });
        let admit = |bench: &mut Bench, seconds, repeatable| {
            let now = bench.now + Duration::from_secs(seconds);
            bench.core.admit(now, &driver(), id(1), fence.as_ref(), repeatable)
        };
        assert_eq!(admit(&mut bench, 0, false), Ok(()));
        assert_eq!(admit(&mut bench, 0, false), begun);
        bench.core.ended(bench.now, id(1));
        assert_eq!((admit(&mut bench, 59, false), admit(&mut bench, 59, true)), (begun, Ok(())));
        assert_eq!(admit(&mut bench, 60, false), if fence.is_some() { Err(stale_fault(1)) } else { Ok(()) });
    }
}

#[test]
fn unsent_call_without_identity_may_begin_again() {
    let mut bench = Bench::new();
    for _ in 0..2 {
        assert_eq!(bench.core.admit(bench.now, &driver(), id(1), None, false), Ok(()));
        bench.core.retracted(&id(1));
    }
}
