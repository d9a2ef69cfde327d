//! Waiting for one's turn, by example.

use std::time::Duration;

use super::super::*;
use super::*;

const PATIENCE: Duration = Duration::from_secs(2);

/// What follows from an event for those who wait: who begins, who is refused, whose request is not needed.
#[derive(Debug, Default, PartialEq)]
struct Followed {
    begun: Vec<AskerId>,
    refused: Vec<AskerId>,
    let_go: Vec<AskerId>,
}

impl Bench {
    fn follows(&mut self, event: Event) -> Followed {
        let mut followed = Followed::default();
        for action in self.event(event) {
            match action {
                Action::Run { asker, .. } => followed.begun.push(asker),
                Action::Fail { asker, fault: Fault::OperationPending { .. } } => followed.refused.push(asker),
                Action::LetGo { asker } => followed.let_go.push(asker),
                _ => {}
            }
        }
        followed
    }

    fn stands(&mut self, identity: &Identity) -> AskerId {
        let (asker, seen) = self.ask(identity);
        assert_eq!(seen, Seen::InLine { first: true, patience: PATIENCE });
        asker
    }

    fn ends(&mut self, operation: OperationId) -> Vec<AskerId> {
        self.follows(Event::Answered { operation, answer: done() }).begun
    }

    /// The operation that a call is the first of.
    fn operation_of(&self, asker: AskerId) -> OperationId {
        self.core.askers[&asker].operation
    }
}

fn attach(volume: &str, node: &str) -> Identity {
    let (volume_id, node_id) = (volume.to_owned(), node.to_owned());
    let request = csi::ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() };
    Identity::of(&driver(), Method::ControllerPublishVolume, &request.encode_to_vec()).unwrap()
}

fn detach(volume: &str, node: &str) -> Identity {
    let (volume_id, node_id) = (volume.to_owned(), node.to_owned());
    let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
    Identity::of(&driver(), Method::ControllerUnpublishVolume, &request.encode_to_vec()).unwrap()
}

fn snapshot(volume: &str) -> Identity {
    let (source_volume_id, name) = (volume.to_owned(), "s".to_owned());
    let request = csi::CreateSnapshotRequest { source_volume_id, name, ..Default::default() };
    Identity::of(&driver(), Method::CreateSnapshot, &request.encode_to_vec()).unwrap()
}

#[test]
fn a_detachment_waits_for_the_snapshot_and_comes_before_the_attachment_that_came_after_it() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let detaches = bench.stands(&detach("v", "n1"));
    let attaches = bench.stands(&attach("v", "n2"));
    assert_eq!(bench.core.counts().waiting, 2);
    assert_eq!(bench.ends(operation), [detaches]);
    let operation = bench.operation_of(detaches);
    assert_eq!(bench.ends(operation), [attaches]);
}

#[test]
fn opposite_slow_operations_take_turns_and_neither_starves() {
    let mut bench = Bench::new();
    let both = [attach("v", "n"), detach("v", "n")];
    let (mut asker, mut operation) = bench.run(&both[0]);
    for round in 0..6 {
        // The one that runs is asked for again at once when it has ended, and the other waits all the time.
        let next = bench.stands(&both[(round + 1) % 2]);
        bench.pass(Duration::from_millis(1_500));
        assert_eq!(bench.ends(operation), [next], "round {round}");
        bench.event(Event::Taken { asker });
        (asker, operation) = (next, bench.operation_of(next));
    }
}

#[test]
fn who_has_waited_long_enough_is_refused_and_the_next_has_its_turn_all_the_same() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let first = bench.stands(&detach("v", "n1"));
    bench.pass(Duration::from_secs(1));
    let second = bench.stands(&attach("v", "n2"));
    bench.pass(Duration::from_secs(1));
    let followed = bench.follows(Event::Tick);
    assert_eq!(followed, Followed { refused: vec![first], let_go: vec![first], ..Default::default() });
    assert_eq!(bench.ends(operation), [second]);
}

#[test]
fn the_refusal_leaves_before_the_callers_time_is_over() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    for (remaining, waits) in [(10_000, 2_000), (2_500, 2_000), (1_200, 700), (501, 1)] {
        let until = bench.now + Duration::from_millis(remaining);
        let (asker, seen) = bench.ask_until(&detach("v", "n"), Some(until));
        assert_eq!(seen, Seen::InLine { first: true, patience: Duration::from_millis(waits) });
        bench.pass(Duration::from_millis(waits - 1));
        assert_eq!(bench.follows(Event::Tick), Followed::default());
        bench.pass(Duration::from_millis(1));
        assert_eq!(bench.follows(Event::Tick).refused, [asker]);
    }
    let until = bench.now + Duration::from_millis(500);
    assert_eq!(bench.ask_until(&detach("v", "n"), Some(until)).1, pending("CreateSnapshot"));
    assert_eq!(bench.core.counts().waiting, 0);
}

#[test]
fn a_repeat_of_what_waits_joins_it_and_keeps_its_place() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let first = bench.stands(&detach("v", "n1"));
    let other = bench.stands(&attach("v", "n2"));
    bench.pass(Duration::from_secs(1));
    let (again, seen) = bench.ask(&detach("v", "n1"));
    assert_eq!(seen, Seen::InLine { first: false, patience: PATIENCE });
    bench.pass(Duration::from_secs(1));
    // The first has given up, and so has the other; the place is kept by who has come later.
    assert_eq!(bench.follows(Event::Tick).refused, [first, other]);
    let late = bench.stands(&attach("v", "n2"));
    assert_eq!(bench.ends(operation), [first], "its request is used though it has gone");
    let operation = bench.operation_of(again);
    let answered = bench.event(Event::Answered { operation, answer: done() });
    let told = |a: &Action| matches!(a, Action::Answer { asker, way: Way::Ran, .. } if *asker == again);
    assert!(answered.iter().any(told), "{answered:?}");
    assert!(matches!(answered.last(), Some(Action::Run { asker, .. }) if *asker == late), "{answered:?}");
}

#[test]
fn a_waiter_whose_callers_have_gone_is_let_go_and_never_runs() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let first = bench.stands(&detach("v", "n1"));
    let (again, _) = bench.ask(&detach("v", "n1"));
    assert_eq!(bench.follows(Event::Left { asker: first }), Followed::default());
    assert_eq!(bench.follows(Event::Left { asker: again }).let_go, [first]);
    assert_eq!(bench.ends(operation), []);
    assert_eq!(bench.core.counts().running, 0);
}

#[test]
fn a_waiter_is_not_accepted_and_no_journal_hears_of_it() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    bench
        .core
        .handle(bench.now, Event::Ask { asker: AskerId::new(77), identity: detach("v", "n"), until: None });
    let actions: Vec<_> = std::iter::from_fn(|| bench.core.poll_action()).collect();
    assert!(matches!(&actions[..], [Action::Wait { .. }]), "{actions:?}");
    assert_eq!(bench.core.entries().len(), 1);
    let actions = bench.event(Event::Answered { operation, answer: done() });
    let accepted = |a: &Action| matches!(a, Action::Record(Entry::Put { identity, stage: Stage::Accepted, .. }) if *identity == detach("v", "n"));
    let runs = |a: &Action| matches!(a, Action::Run { .. });
    let place = |what: &dyn Fn(&Action) -> bool| actions.iter().position(what).unwrap();
    assert!(place(&accepted) < place(&runs), "{actions:?}");
}

#[test]
fn those_who_wait_for_their_turn_are_bounded_for_a_volume_and_in_all() {
    let mut bench = Bench::with(Limits { waiting: 3, waiting_on_one: 2, ..Limits::default() });
    for volume in ["v", "w", "x"] {
        bench.run(&snapshot(volume));
    }
    bench.stands(&detach("v", "1"));
    bench.stands(&detach("v", "2"));
    assert_eq!(bench.ask(&detach("v", "3")).1, pending("CreateSnapshot"));
    assert!(matches!(bench.ask(&detach("v", "2")).1, Seen::InLine { first: false, .. }), "it has a place");
    bench.stands(&detach("w", "1"));
    assert_eq!(bench.ask(&detach("x", "1")).1, pending("CreateSnapshot"));
}

#[test]
fn who_waits_counts_as_one_who_asks() {
    let mut bench = Bench::with(Limits { askers: 2, ..Limits::default() });
    bench.run(&snapshot("v"));
    bench.stands(&detach("v", "n"));
    assert!(matches!(bench.ask(&detach("v", "n")).1, Seen::Failed(Fault::Overloaded { max: 2, .. })));
}

#[test]
fn a_group_waits_for_each_of_its_volumes_and_is_not_overtaken() {
    let mut bench = Bench::new();
    let (_, on_v) = bench.run(&snapshot("v"));
    let (_, on_w) = bench.run(&snapshot("w"));
    let both = bench.stands(&group(&["v", "w"]));
    let behind = bench.stands(&detach("w", "n"));
    assert_eq!(bench.ends(on_w), [], "the group has to wait for the other volume");
    let apart = bench.stands(&attach("w", "n"));
    assert_eq!(bench.ends(on_v), [both]);
    let operation = bench.operation_of(both);
    assert_eq!(bench.ends(operation), [behind]);
    let operation = bench.operation_of(behind);
    assert_eq!(bench.ends(operation), [apart]);
}

#[test]
fn a_group_that_gives_up_lets_go_of_all_its_volumes() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    let both = bench.stands(&group(&["v", "w"]));
    bench.pass(Duration::from_secs(1));
    let behind = bench.stands(&detach("w", "n"));
    bench.pass(Duration::from_secs(1));
    let expected = Followed { begun: vec![behind], refused: vec![both], let_go: vec![both] };
    assert_eq!(bench.follows(Event::Tick), expected);
}

#[test]
fn a_turn_that_comes_voids_what_is_kept_of_the_volume() {
    let mut bench = Bench::new();
    let (asker, operation) = bench.run(&detach("v", "n"));
    bench.event(Event::Left { asker });
    let attaches = bench.stands(&attach("v", "n"));
    assert_eq!(bench.ends(operation), [attaches]);
    assert_eq!(bench.core.counts().kept, 0);
    bench.stands(&detach("v", "n"));
}

#[test]
fn after_an_end_that_nobody_knows_the_turn_comes_as_after_any_other() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&snapshot("v"));
    let detaches = bench.stands(&detach("v", "n"));
    let fault = Fault::DriverGone { driver: driver(), reason: "it died".to_owned() };
    assert_eq!(bench.follows(Event::Lost { operation, fault }).begun, [detaches]);
    assert_eq!(bench.core.uncertain(), []);
}

#[test]
fn what_is_uncertain_is_done_again_in_its_turn() {
    let mut bench = Bench::new();
    let (_, operation) = bench.run(&detach("w", "n"));
    let (_, on_v) = bench.run(&snapshot("v"));
    bench.event(Event::Lost { operation, fault: Fault::LinkLost { reason: String::new() } });
    let both = bench.stands(&group(&["v", "w"]));
    let again = bench.stands(&detach("w", "n"));
    assert_eq!(bench.ends(on_v), [both]);
    let operation = bench.operation_of(both);
    assert_eq!(bench.ends(operation), [again]);
}

#[test]
fn nobody_waits_for_a_turn_that_will_not_come() {
    let mut bench = Bench::new();
    bench.run(&snapshot("v"));
    let asker = bench.stands(&detach("v", "n"));
    let fault = Fault::Draining { what: "the dispatcher".to_owned() };
    let actions = bench.event(Event::TurnAway { fault: fault.clone() });
    assert!(
        matches!(&actions[..], [Action::Fail { fault: found, .. }, Action::LetGo { asker: gone }] if *found == fault && *gone == asker),
        "{actions:?}"
    );
    assert_eq!(bench.core.counts().waiting, 0);
}
