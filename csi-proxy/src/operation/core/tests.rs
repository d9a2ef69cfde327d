//! The core by example. Its random walk against a simple model is in `model.rs`.

mod line;
mod model;

use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::{DriverName, Method};
use prost::Message as _;

use super::super::subject::Subject;
use super::*;
use crate::code::Code;
use crate::outcome::Outcome;

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn create(name: &str, parameter: &str) -> Identity {
    let parameters = [("p".to_owned(), parameter.to_owned())].into();
    let request = csi::CreateVolumeRequest { name: name.to_owned(), parameters, ..Default::default() };
    Identity::of(&driver(), Method::CreateVolume, &request.encode_to_vec()).unwrap()
}

fn delete(id: &str) -> Identity {
    let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
    Identity::of(&driver(), Method::DeleteVolume, &request.encode_to_vec()).unwrap()
}

fn group(volumes: &[&str]) -> Identity {
    let source_volume_ids = volumes.iter().map(|id| (*id).to_owned()).collect();
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids,
        ..Default::default()
    };
    Identity::of(&driver(), Method::CreateVolumeGroupSnapshot, &request.encode_to_vec()).unwrap()
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

/// A core, its time, and what came out of it.
struct Bench {
    core: Core,
    now: Instant,
    asked: u64,
}

/// What became of a question.
#[derive(Debug, PartialEq)]
enum Seen {
    Runs(OperationId),
    Waits,
    InLine { first: bool, patience: Duration },
    Answered(Answer, Way),
    Failed(Fault),
}

impl Bench {
    fn new() -> Self {
        Self::with(Limits::default())
    }

    fn with(limits: Limits) -> Self {
        Self { core: Core::new(limits), now: Instant::now(), asked: 0 }
    }

    /// Nobody waits for a turn.
    fn impatient() -> Self {
        Self::with(Limits { wait: Duration::ZERO, ..Limits::default() })
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
    }

    fn event(&mut self, event: Event) -> Vec<Action> {
        self.core.handle(self.now, event);
        std::iter::from_fn(|| self.core.poll_action()).collect()
    }

    fn ask_until(&mut self, identity: &Identity, until: Option<Instant>) -> (AskerId, Seen) {
        self.asked += 1;
        let asker = AskerId::new(self.asked);
        let actions = self.event(Event::Ask { asker, identity: identity.clone(), until });
        let mut seen = Seen::Waits;
        for action in actions {
            match action {
                Action::Run { operation, .. } => seen = Seen::Runs(operation),
                Action::Answer { answer, way, .. } => seen = Seen::Answered(answer, way),
                Action::Fail { fault, .. } => seen = Seen::Failed(fault),
                Action::Wait { first, gives_up, .. } => {
                    seen = Seen::InLine { first, patience: gives_up.saturating_duration_since(self.now) };
                }
                Action::Record(_) | Action::Settle { .. } | Action::LetGo { .. } => {}
            }
        }
        (asker, seen)
    }

    fn ask(&mut self, identity: &Identity) -> (AskerId, Seen) {
        self.ask_until(identity, None)
    }

    fn run(&mut self, identity: &Identity) -> (AskerId, OperationId) {
        match self.ask(identity) {
            (asker, Seen::Runs(operation)) => (asker, operation),
            (_, other) => panic!("{other:?}"),
        }
    }

    /// Who is answered with what, in order.
    fn answered(&mut self, operation: OperationId, answer: Answer) -> Vec<(AskerId, Way)> {
        let actions = self.event(Event::Answered { operation, answer });
        let answers = actions.into_iter().filter_map(|action| match action {
            Action::Answer { asker, way, .. } => Some((asker, way)),
            _ => None,
        });
        answers.collect()
    }

    /// An operation that ended with nobody waiting.
    fn keep(&mut self, identity: &Identity, answer: Answer) -> OperationId {
        let (asker, operation) = self.run(identity);
        self.event(Event::Left { asker });
        assert_eq!(self.answered(operation, answer), []);
        operation
    }

    fn is_run(&mut self, identity: &Identity) -> bool {
        matches!(self.ask(identity).1, Seen::Runs(_))
    }
}

fn pending(running: &str) -> Seen {
    Seen::Failed(Fault::OperationPending { driver: driver(), running: running.to_owned() })
}

#[test]
fn all_who_ask_while_it_runs_get_the_one_answer() {
    let mut bench = Bench::new();
    let (first, operation) = bench.run(&delete("v"));
    let (second, seen) = bench.ask(&delete("v"));
    assert_eq!(seen, Seen::Waits);
    let (third, _) = bench.ask(&delete("v"));
    bench.event(Event::Left { asker: first });
    assert_eq!(bench.answered(operation, done()), [(second, Way::Ran), (third, Way::Joined)]);
    bench.event(Event::Taken { asker: third });
    assert!(bench.is_run(&delete("v")), "it was handed out");
    bench.event(Event::Taken { asker: second });
    assert_eq!(bench.core.counts().askers, 1);
}

#[test]
fn an_answer_that_nobody_waited_for_is_handed_out_once() {
    for answer in [done(), failed(Code::NOT_FOUND), failed(Code::INTERNAL), failed(Code::new(99))] {
        let mut bench = Bench::new();
        bench.keep(&delete("v"), answer.clone());
        let (asker, seen) = bench.ask(&delete("v"));
        assert_eq!(seen, Seen::Answered(answer, Way::Late));
        bench.event(Event::Taken { asker });
        assert!(bench.is_run(&delete("v")));
        assert_eq!((bench.core.counts().kept, bench.core.counts().bytes), (0, 0));
    }
}

#[test]
fn an_answer_about_mounts_is_not_kept_since_a_reboot_makes_it_wrong() {
    let stage = |path: &str| {
        let (volume_id, staging_target_path) = ("v".to_owned(), path.to_owned());
        let request = csi::NodeStageVolumeRequest { volume_id, staging_target_path, ..Default::default() };
        Identity::of(&driver(), Method::NodeStageVolume, &request.encode_to_vec()).unwrap()
    };
    let mut bench = Bench::impatient();
    let (first, operation) = bench.run(&stage("/s"));
    let (second, seen) = bench.ask(&stage("/s"));
    assert_eq!(seen, Seen::Waits, "while it runs it is joined as any other");
    assert_eq!(bench.ask(&stage("/other")).1, pending("NodeStageVolume"));
    assert_eq!(bench.answered(operation, done()), [(first, Way::Ran), (second, Way::Joined)]);
    bench.event(Event::Left { asker: first });
    assert_eq!(bench.core.counts().kept, 0);
    assert!(bench.is_run(&stage("/s")));
}

#[test]
fn an_answer_that_was_given_but_not_delivered_is_there_for_the_next() {
    let mut bench = Bench::new();
    let (asker, operation) = bench.run(&delete("v"));
    assert_eq!(bench.answered(operation, done()), [(asker, Way::Ran)]);
    bench.event(Event::Left { asker });
    let (asker, seen) = bench.ask(&delete("v"));
    assert_eq!(seen, Seen::Answered(done(), Way::Late));
    bench.event(Event::Left { asker });
    assert_eq!(bench.ask(&delete("v")).1, Seen::Answered(done(), Way::Late));
}

#[test]
fn a_caller_whose_time_was_over_has_not_got_the_answer() {
    let mut bench = Bench::new();
    let until = bench.now + Duration::from_secs(10);
    let (asker, Seen::Runs(operation)) = bench.ask_until(&delete("v"), Some(until)) else { panic!() };
    bench.pass(Duration::from_secs(40));
    bench.answered(operation, done());
    bench.event(Event::Taken { asker });
    assert_eq!(bench.ask(&delete("v")).1, Seen::Answered(done(), Way::Late));
}

#[test]
fn while_an_answer_is_on_its_way_who_asks_again_gets_the_same_and_the_driver_is_not_asked() {
    let mut bench = Bench::new();
    let (first, operation) = bench.run(&delete("v"));
    bench.answered(operation, done());
    bench.event(Event::Sent { asker: first });
    let (second, seen) = bench.ask(&delete("v"));
    assert_eq!(seen, Seen::Answered(done(), Way::Late));
    bench.event(Event::Sent { asker: second });
    // The first was lost on its way; the second decides by itself.
    bench.event(Event::Left { asker: first });
    let (third, seen) = bench.ask(&delete("v"));
    assert_eq!(seen, Seen::Answered(done(), Way::Late));
    bench.event(Event::Sent { asker: third });
    bench.event(Event::Taken { asker: second });
    assert_eq!(bench.core.counts(), Counts::default(), "one delivery is enough");
    bench.event(Event::Left { asker: third });
    assert!(bench.is_run(&delete("v")), "what was delivered is not given again");
}

#[test]
fn an_answer_that_got_lost_on_its_way_waits_again() {
    let mut bench = Bench::new();
    let (asker, operation) = bench.run(&delete("v"));
    bench.answered(operation, done());
    bench.event(Event::Sent { asker });
    assert_eq!((bench.core.counts().kept, bench.core.counts().sent), (0, 1));
    bench.event(Event::Left { asker });
    assert_eq!((bench.core.counts().kept, bench.core.counts().sent), (1, 0));
    let (asker, seen) = bench.ask(&delete("v"));
    assert_eq!(seen, Seen::Answered(done(), Way::Late));
    bench.event(Event::Taken { asker });
    assert!(bench.is_run(&delete("v")));
}

#[test]
fn an_answer_on_its_way_is_void_as_any_other() {
    let mut bench = Bench::new();
    let (asker, operation) = bench.run(&create("pvc", "a"));
    bench.answered(operation, created("v"));
    bench.event(Event::Sent { asker });
    bench.run(&delete("v"));
    assert_eq!(bench.event(Event::Left { asker }).len(), 0, "it does not come back");
    assert!(bench.is_run(&create("pvc", "a")));
}

#[test]
fn no_journal_holds_an_answer_that_may_have_come() {
    let puts = |actions: Vec<Action>| {
        let recorded = actions.into_iter().filter_map(|action| match action {
            Action::Record(Entry::Put { stage: Stage::Finished(_), .. }) => Some(true),
            Action::Record(Entry::Remove { .. }) => Some(false),
            _ => None,
        });
        recorded.collect::<Vec<_>>()
    };
    for answer in [done(), failed(Code::INTERNAL)] {
        let is_recorded = answer.outcome().is_ok();
        let expected = |put: bool| if is_recorded { vec![put] } else { Vec::new() };
        let mut bench = Bench::new();
        let (first, operation) = bench.run(&delete("v"));
        assert_eq!(puts(bench.event(Event::Answered { operation, answer })), [is_recorded]);
        let (second, _) = bench.ask(&delete("v"));
        assert_eq!(puts(bench.event(Event::Sent { asker: first })), expected(false));
        assert!(puts(bench.event(Event::Sent { asker: first })).is_empty());
        assert!(puts(bench.event(Event::Sent { asker: second })).is_empty());
        assert!(bench.core.entries().is_empty());
        assert!(puts(bench.event(Event::Left { asker: first })).is_empty());
        assert_eq!(puts(bench.event(Event::Left { asker: second })), expected(true), "it waits again");
        assert_eq!(bench.core.entries().len(), usize::from(is_recorded));
    }
}

#[test]
fn the_word_that_an_answer_has_come_may_take_its_time_but_not_the_answer() {
    for (sent_after, is_delivered) in [(5, true), (15, false)] {
        let mut bench = Bench::new();
        let until = bench.now + Duration::from_secs(10);
        let (asker, Seen::Runs(operation)) = bench.ask_until(&delete("v"), Some(until)) else { panic!() };
        bench.answered(operation, done());
        bench.pass(Duration::from_secs(sent_after));
        bench.event(Event::Sent { asker });
        bench.pass(Duration::from_secs(20));
        bench.event(Event::Taken { asker });
        assert_eq!(bench.is_run(&delete("v")), is_delivered, "sent after {sent_after} s");
    }
}

#[test]
fn a_driver_that_says_ask_again_is_asked_again() {
    for code in [Code::CANCELLED, Code::DEADLINE_EXCEEDED, Code::UNAVAILABLE, Code::ABORTED] {
        let mut bench = Bench::new();
        bench.keep(&delete("v"), failed(code));
        assert!(bench.is_run(&delete("v")), "{code}");
    }
}

#[test]
fn another_operation_on_the_same_volume_is_pending_and_on_another_volume_runs() {
    let mut bench = Bench::impatient();
    let (_, operation) = bench.run(&create("pvc", "a"));
    assert_eq!(bench.ask(&create("pvc", "b")).1, pending("CreateVolume"));
    assert!(bench.is_run(&create("other", "b")));
    bench.answered(operation, created("v"));
    assert!(bench.is_run(&create("pvc", "b")));
}

#[test]
fn a_kept_answer_is_void_once_another_operation_begins() {
    let mut bench = Bench::new();
    bench.keep(&create("pvc", "a"), created("v"));
    let (asker, operation) = bench.run(&create("pvc", "b"));
    bench.event(Event::Lost { operation, fault: Fault::Deadline { waited: Duration::ZERO } });
    bench.event(Event::Left { asker });
    assert!(bench.is_run(&create("pvc", "a")), "even if that had no end");
}

#[test]
fn deleting_what_an_answer_has_made_voids_it() {
    let mut bench = Bench::new();
    bench.keep(&create("pvc", "a"), created("v"));
    bench.run(&delete("another"));
    assert!(matches!(bench.ask(&create("pvc", "a")).1, Seen::Answered(_, Way::Late)));
    bench.run(&delete("v"));
    assert!(bench.is_run(&create("pvc", "a")));
}

#[test]
fn making_what_was_deleted_voids_the_answer_of_the_deletion() {
    let mut bench = Bench::new();
    let deleted = bench.keep(&delete("v"), done());
    let (_, operation) = bench.run(&create("pvc", "a"));
    let actions = bench.event(Event::Answered { operation, answer: created("v") });
    let key = Key::new(driver(), Subject::Volume("v".into()));
    let removed =
        |a: &Action| matches!(a, Action::Record(Entry::Remove { operation }) if *operation == deleted);
    let settled = |a: &Action| matches!(a, Action::Settle { keys, .. } if *keys == [key.clone()]);
    let answered = |a: &Action| matches!(a, Action::Answer { .. });
    let place = |what: &dyn Fn(&Action) -> bool| actions.iter().position(what).unwrap();
    assert!(place(&removed) < place(&settled) && place(&settled) < place(&answered), "{actions:?}");
    assert!(bench.is_run(&delete("v")));
}

#[test]
fn an_answer_is_not_kept_if_what_it_made_may_be_gone_already() {
    for ended in [false, true] {
        let mut bench = Bench::new();
        let (asker, operation) = bench.run(&create("pvc", "a"));
        let (deleter, deletion) = bench.run(&delete("v"));
        if ended {
            bench.answered(deletion, done());
            bench.event(Event::Taken { asker: deleter });
        }
        bench.event(Event::Left { asker });
        bench.answered(operation, created("v"));
        assert!(bench.is_run(&create("pvc", "a")), "{ended}");
        let other = bench.keep(&create("other", "a"), created("w"));
        assert!(matches!(bench.ask(&create("other", "a")).1, Seen::Answered(..)), "{other:?}");
    }
}

#[test]
fn the_same_volume_at_another_driver_is_another_volume() {
    let mut bench = Bench::new();
    bench.run(&delete("v"));
    let other = DriverName::new("other").unwrap();
    let request =
        csi::DeleteVolumeRequest { volume_id: "v".to_owned(), ..Default::default() }.encode_to_vec();
    assert!(bench.is_run(&Identity::of(&other, Method::DeleteVolume, &request).unwrap()));
}

#[test]
fn after_a_fault_of_ours_it_is_uncertain_and_done_again() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&delete("v"));
    bench.event(Event::Started { operation });
    let fault = Fault::DriverGone { driver: driver(), reason: "it died".to_owned() };
    let actions = bench.event(Event::Lost { operation, fault: fault.clone() });
    assert!(matches!(&actions[..], [Action::Fail { fault: found, .. }] if *found == fault), "{actions:?}");
    let uncertain = bench.core.uncertain();
    assert!(uncertain.len() == 1 && uncertain[0].started && uncertain[0].identity == delete("v"));
    assert!(bench.is_run(&delete("v")));
    assert_eq!(bench.core.uncertain(), []);
}

#[test]
fn what_provably_never_began_leaves_nothing() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&delete("v"));
    let fault = Fault::DriverSocketMissing { driver: driver(), path: "/x".to_owned() };
    bench.event(Event::Lost { operation, fault });
    assert_eq!(bench.core.counts(), Counts::default());
    assert!(bench.core.entries().is_empty());
}

#[test]
fn what_is_kept_is_bounded_in_number_bytes_and_time() {
    let limits = Limits { kept: 3, ..Limits::default() };
    let mut bench = Bench::with(limits);
    for id in ["a", "b", "c", "d"] {
        bench.keep(&delete(id), done());
        bench.pass(Duration::from_secs(1));
    }
    assert_eq!(bench.core.counts().kept, 3);
    assert!(bench.is_run(&delete("a")), "the oldest went first");
    bench.pass(limits.kept_for - Duration::from_secs(3));
    bench.event(Event::Tick);
    assert_eq!(bench.core.counts().kept, 2);
    bench.pass(Duration::from_secs(2));
    bench.event(Event::Tick);
    assert_eq!((bench.core.counts().kept, bench.core.counts().bytes), (0, 0));

    let large = || Answer::new(Some(vec![0; 3000].into()), Outcome::ok()).unwrap();
    let mut bench = Bench::with(Limits { kept_bytes: 8000, ..Limits::default() });
    for id in ["a", "b", "c"] {
        bench.keep(&delete(id), large());
    }
    assert!(bench.core.counts().kept == 2 && bench.core.counts().bytes <= 8000);
    bench.keep(&delete("d"), Answer::new(Some(vec![0; 9000].into()), Outcome::ok()).unwrap());
    assert_eq!(bench.core.counts().kept, 2, "one that is too large alone pushes nothing out");
}

#[test]
fn those_who_wait_are_bounded() {
    let mut bench = Bench::with(Limits { askers: 2, ..Limits::default() });
    bench.run(&delete("v"));
    assert_eq!(bench.ask(&delete("v")).1, Seen::Waits);
    assert!(matches!(bench.ask(&delete("v")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
    assert!(matches!(bench.ask(&delete("w")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
}

#[test]
fn a_failure_is_kept_in_memory_and_never_recorded() {
    let mut bench = Bench::new();
    let (asker, operation) = bench.run(&delete("v"));
    bench.event(Event::Left { asker });
    let answer = Answer::new(None, Outcome::from_driver(Code::INTERNAL, "bad password canary")).unwrap();
    let actions = bench.event(Event::Answered { operation, answer });
    assert!(matches!(&actions[..], [Action::Record(Entry::Remove { .. })]), "{actions:?}");
    assert!(bench.core.entries().is_empty());
    assert!(matches!(bench.ask(&delete("v")).1, Seen::Answered(_, Way::Late)));
}

#[test]
fn a_restart_hands_out_what_was_finished_and_runs_again_what_was_not() {
    let mut bench = Bench::new();
    let hour = Duration::from_secs(3600);
    let restored =
        |number, identity, stage, age| Restored::new(OperationId::new(number), identity, stage, age);
    bench.core.restore(
        bench.now,
        vec![
            restored(9, delete("began"), Stage::Started, Duration::ZERO),
            restored(3, create("pvc", "a"), Stage::Finished(created("v")), Duration::ZERO),
            restored(4, delete("accepted"), Stage::Accepted, hour / 2),
            restored(5, create("old", "a"), Stage::Finished(created("o")), hour),
            restored(6, create("void", "a"), Stage::Finished(created("w")), Duration::ZERO),
            restored(7, delete("w"), Stage::Started, Duration::ZERO),
        ],
    );
    let removed: Vec<_> = bench
        .event(Event::Tick)
        .iter()
        .map(|action| match action {
            Action::Record(Entry::Remove { operation }) => operation.number(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(removed, [6, 5]);
    let uncertain: Vec<_> =
        bench.core.uncertain().iter().map(|u| (u.operation.number(), u.started)).collect();
    assert_eq!(uncertain, [(4, false), (7, true), (9, true)]);
    assert_eq!(bench.ask(&create("pvc", "a")).1, Seen::Answered(created("v"), Way::Late));
    assert_eq!(bench.ask(&delete("began")).1, Seen::Runs(OperationId::new(10)), "numbers are not used again");
    assert!(bench.is_run(&create("old", "a")) && bench.is_run(&create("void", "a")));
}

#[test]
fn a_group_conflicts_with_each_of_its_volumes() {
    let group = group(&["v", "w"]);
    let mut bench = Bench::impatient();
    let (_, deletion) = bench.run(&delete("w"));
    assert_eq!(bench.ask(&group).1, pending("DeleteVolume"));
    bench.answered(deletion, done());
    let (asker, operation) = bench.run(&group);
    assert_eq!(bench.ask(&delete("w")).1, pending("CreateVolumeGroupSnapshot"));
    bench.event(Event::Left { asker });
    let snapshot = csi::Snapshot { snapshot_id: "s".to_owned(), ..Default::default() };
    let made = csi::VolumeGroupSnapshot {
        group_snapshot_id: "gs".to_owned(),
        snapshots: vec![snapshot],
        ..Default::default()
    };
    let message = csi::CreateVolumeGroupSnapshotResponse { group_snapshot: Some(made) }.encode_to_vec();
    bench.answered(operation, Answer::new(Some(message.into()), Outcome::ok()).unwrap());
    let request = csi::DeleteSnapshotRequest { snapshot_id: "s".to_owned(), ..Default::default() };
    bench.run(&Identity::of(&driver(), Method::DeleteSnapshot, &request.encode_to_vec()).unwrap());
    assert!(bench.is_run(&group), "one of its snapshots is gone");
}
