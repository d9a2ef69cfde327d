//! What is on disk when, and what cannot be.

use super::*;

/// I9: a record that cannot be stored stops its own volume and no other.
#[test]
fn a_record_that_is_too_large_holds_up_no_other_volume() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    bench.hold_commits = true;
    bench.publish("d", "first", SECOND);
    let large = bench.publish("d", "large", SECOND);
    let small = bench.publish("d", "small", SECOND);
    // As if much had been seen mounted.
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let root = "/x".repeat(140 * 1024).into();
    let seen = crate::mounts::MountIdentity::new(device, root, "ext4".into(), "/dev/sda1".into());
    bench.entry("large").record.staged = Some(seen);
    bench.hold_commits = false;
    bench.release(SECOND);
    assert!(matches!(&bench.answers[&large], Answer::Published(Err(_))), "{:?}", bench.answers);
    bench.calls.retain(|order| order.spec.key().id.as_str() == "small");
    bench.until_published(small);
    // Once it is small enough it goes on.
    bench.entry("large").record.staged = None;
    bench.step(Event::Tick, SECOND * 100);
    assert!(matches!(&bench.calls[0].operation, Operation::NodeStage { .. }));
}

/// I9: the same if it is the store that refuses one record.
#[test]
fn a_record_that_the_store_refuses_holds_up_no_other_volume() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    bench.hold_commits = true;
    bench.publish("d", "first", SECOND);
    let refused = bench.publish("d", "refused", SECOND);
    let taken = bench.publish("d", "taken", SECOND);
    bench.release(SECOND);
    let key = bench.entry("refused").record_key.clone();
    bench.held.clear();
    bench.hold_commits = false;
    bench.calls.clear();
    let failure = CommitFailure { reason: "too many".into(), refused: Some(key) };
    bench.step(Event::Committed(Err(failure)), SECOND);
    assert!(matches!(&bench.answers[&refused], Answer::Published(Err(_))), "{:?}", bench.answers);
    bench.until_published(taken);
}

/// Before a driver was ever there nothing was done, and yet the end of the want has to be on disk before it is told.
#[test]
fn an_unpublish_is_answered_when_it_is_on_disk_and_not_before() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.publish("d", "v", SECOND);
    bench.hold_commits = true;
    let request = bench.unpublish("v");
    assert!(!bench.answers.contains_key(&request));
    bench.release(SECOND);
    assert!(matches!(bench.answers[&request], Answer::Unpublished(Ok(()))));
    assert!(bench.node.volumes.is_empty() && bench.node.targets.is_empty());
}

/// The same if its driver comes while that is written, and somebody asks once more.
#[test]
fn an_unpublish_that_is_asked_twice_is_answered_when_it_is_on_disk_though_its_driver_came_meanwhile() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.publish("d", "v", SECOND);
    bench.hold_commits = true;
    let first = bench.unpublish("v");
    bench.connect("d", SECOND);
    let second = bench.unpublish("v");
    assert!(!bench.answers.contains_key(&first) && !bench.answers.contains_key(&second));
    while !bench.held.is_empty() {
        bench.release(SECOND);
    }
    for request in [first, second] {
        assert!(matches!(bench.answers.get(&request), Some(Answer::Unpublished(Ok(())))));
    }
    assert!(bench.node.volumes.is_empty() && bench.node.targets.is_empty());
}

#[test]
fn a_desired_set_is_answered_when_it_is_on_disk_and_not_before() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.hold_commits = true;
    let desired = |ids: &[&str]| {
        let volume = |id: &&str| crate::node::DesiredVolume {
            spec: spec("d", id),
            consumers: vec![consumer(&format!("d-{id}"))],
        };
        Ask::Reconcile(ids.iter().map(volume).collect())
    };
    let first = bench.ask(desired(&["a"]), SECOND);
    let second = bench.ask(desired(&["a", "b"]), SECOND);
    assert!(bench.answers.is_empty());
    bench.release(SECOND);
    assert!(bench.answers.contains_key(&first) && !bench.answers.contains_key(&second));
    bench.release(SECOND);
    assert!(matches!(&bench.answers[&second], Answer::Reconciled(Ok(done)) if done.wanted == 1));
    let twice = bench.ask(desired(&["a", "a"]), SECOND);
    assert!(matches!(bench.answers[&twice], Answer::Reconciled(Err(_))));
}

#[test]
fn a_desired_set_is_answered_after_an_expansion_that_was_refused() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    let request = bench.publish("d", "v", SECOND);
    bench.until_published(request);
    let (spec, consumers) = (spec("d", "v"), vec![consumer("d-v")]);
    for required_bytes in [10, 20, 5] {
        bench.ask(Ask::Expand { key: spec.key().clone(), required_bytes }, SECOND);
    }
    let set = Ask::Reconcile(vec![crate::node::DesiredVolume { spec, consumers }]);
    let set = bench.ask(set, SECOND);
    assert!(matches!(bench.answers[&set], Answer::Reconciled(Ok(_))));
    bench.hold_commits = true;
    let other = Ask::Reconcile(Vec::new());
    let abandoned = bench.ask(other, SECOND);
    bench.abandon(abandoned);
    bench.release(SECOND);
    assert!(!bench.answers.contains_key(&abandoned));
}

#[test]
fn records_that_come_while_a_commit_runs_go_together_in_the_next() {
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.connect("d", SECOND);
    bench.hold_commits = true;
    for number in 0..100 {
        bench.publish("d", &number.to_string(), SECOND);
    }
    assert_eq!(bench.held.iter().map(Vec::len).collect::<Vec<_>>(), [1], "one at a time");
    bench.release(SECOND);
    assert_eq!(bench.held.iter().map(Vec::len).collect::<Vec<_>>(), [99]);
    assert_eq!(bench.calls.len(), 1, "only what is on disk is begun");
    bench.release(SECOND);
    assert_eq!(bench.calls.len(), 16);
}

/// A secret that moved has to be found after a restart.
#[test]
fn a_description_that_changes_in_a_desired_set_is_on_disk_when_that_is_answered() {
    use crate::driver::{SecretReference, SecretReferences};
    let mut bench = Bench::new(Settings::new("/volumes"));
    bench.publish("d", "v", SECOND);
    let reference = SecretReference::new("namespace", "name").unwrap();
    let secrets = SecretReferences { node_stage: Some(reference.clone()), ..SecretReferences::default() };
    let spec = Arc::new(spec("d", "v").to_builder().secrets(secrets).build().unwrap());
    let set = Ask::Reconcile(vec![crate::node::DesiredVolume { spec, consumers: vec![consumer("d-v")] }]);
    let set = bench.ask(set, SECOND);
    assert!(matches!(bench.answers[&set], Answer::Reconciled(Ok(_))));
    let payload = bench.store.load().unwrap().records.remove(0).1;
    let record = crate::node::Record::decode(&payload).unwrap();
    assert_eq!(record.spec.secrets().node_stage, Some(reference));
}
