//! Durability of records, and records that cannot be stored.

use super::*;

/// A record that cannot be stored blocks its own volume only (I9).
#[test]
fn oversized_record_does_not_delay_another_volume() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    harness.hold_commits = true;
    harness.publish("d", "first", SECOND);
    let large = harness.publish("d", "large", SECOND);
    let small = harness.publish("d", "small", SECOND);
    // Simulates a large observed mount.
    let device = crate::mounts::DeviceNumber { major: 8, minor: 1 };
    let root = "/x".repeat(140 * 1024).into();
    let identity = crate::mounts::MountIdentity::new(device, root, "ext4".into(), "/dev/sda1".into());
    harness.entry("large").record.staged = Some(identity);
    harness.hold_commits = false;
    harness.release(SECOND);
    assert!(matches!(&harness.answers[&large], Answer::Published(Err(_))), "{:?}", harness.answers);
    harness.calls.retain(|order| order.spec.key().id.as_str() == "small");
    harness.until_published(small);
    // The volume continues when the record is small enough.
    harness.entry("large").record.staged = None;
    harness.step(Event::Tick, SECOND * 100);
    assert!(matches!(&harness.calls[0].operation, Operation::NodeStage { .. }));
}

/// A record that the store rejects blocks its own volume only (I9).
#[test]
fn rejected_record_does_not_delay_another_volume() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    harness.hold_commits = true;
    harness.publish("d", "first", SECOND);
    let refused = harness.publish("d", "refused", SECOND);
    let taken = harness.publish("d", "taken", SECOND);
    harness.release(SECOND);
    let key = harness.entry("refused").record_key.clone();
    harness.held.clear();
    harness.hold_commits = false;
    harness.calls.clear();
    let failure = CommitFailure { reason: "too many".into(), refused: Some(key) };
    harness.step(Event::Committed(Err(failure)), SECOND);
    assert!(matches!(&harness.answers[&refused], Answer::Published(Err(_))), "{:?}", harness.answers);
    harness.until_published(taken);
}

/// No call is made for a volume before its driver connects, but its release must be on disk before the reply.
#[test]
fn answers_an_unpublish_when_it_is_on_disk() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.publish("d", "v", SECOND);
    harness.hold_commits = true;
    let request = harness.unpublish("v");
    assert!(!harness.answers.contains_key(&request));
    harness.release(SECOND);
    assert!(matches!(harness.answers[&request], Answer::Unpublished(Ok(()))));
    assert!(harness.node.volumes.is_empty() && harness.node.targets.is_empty());
}

/// A repeated unpublish is answered when it is on disk, even if the driver connects during the commit.
#[test]
fn answers_repeated_unpublishes_when_they_are_on_disk() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.publish("d", "v", SECOND);
    harness.hold_commits = true;
    let first = harness.unpublish("v");
    harness.connect("d", SECOND);
    let second = harness.unpublish("v");
    assert!(!harness.answers.contains_key(&first) && !harness.answers.contains_key(&second));
    while !harness.held.is_empty() {
        harness.release(SECOND);
    }
    for request in [first, second] {
        assert!(matches!(harness.answers.get(&request), Some(Answer::Unpublished(Ok(())))));
    }
    assert!(harness.node.volumes.is_empty() && harness.node.targets.is_empty());
}

#[test]
fn answers_a_desired_set_when_it_is_on_disk() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.hold_commits = true;
    let desired = |ids: &[&str]| {
        let volume = |id: &&str| crate::node::DesiredVolume {
            spec: spec("d", id),
            consumers: vec![consumer(&format!("d-{id}"))],
        };
        Ask::Reconcile(ids.iter().map(volume).collect())
    };
    let first = harness.ask(desired(&["a"]), SECOND);
    let second = harness.ask(desired(&["a", "b"]), SECOND);
    assert!(harness.answers.is_empty());
    harness.release(SECOND);
    assert!(harness.answers.contains_key(&first) && !harness.answers.contains_key(&second));
    harness.release(SECOND);
    assert!(matches!(&harness.answers[&second], Answer::Reconciled(Ok(done)) if done.wanted == 1));
    let twice = harness.ask(desired(&["a", "a"]), SECOND);
    assert!(matches!(harness.answers[&twice], Answer::Reconciled(Err(_))));
}

#[test]
fn answers_a_desired_set_after_a_rejected_expansion() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    let request = harness.publish("d", "v", SECOND);
    harness.until_published(request);
    let (spec, consumers) = (spec("d", "v"), vec![consumer("d-v")]);
    for required_bytes in [10, 20, 5] {
        harness.ask(Ask::Expand { key: spec.key().clone(), required_bytes }, SECOND);
    }
    let set = Ask::Reconcile(vec![crate::node::DesiredVolume { spec, consumers }]);
    let set = harness.ask(set, SECOND);
    assert!(matches!(harness.answers[&set], Answer::Reconciled(Ok(_))));
    harness.hold_commits = true;
    let other = Ask::Reconcile(Vec::new());
    let abandoned = harness.ask(other, SECOND);
    harness.abandon(abandoned);
    harness.release(SECOND);
    assert!(!harness.answers.contains_key(&abandoned));
}

#[test]
fn groups_records_into_the_next_commit() {
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.connect("d", SECOND);
    harness.hold_commits = true;
    for number in 0..100 {
        harness.publish("d", &number.to_string(), SECOND);
    }
    assert_eq!(harness.held.iter().map(Vec::len).collect::<Vec<_>>(), [1], "one at a time");
    harness.release(SECOND);
    assert_eq!(harness.held.iter().map(Vec::len).collect::<Vec<_>>(), [99]);
    assert_eq!(harness.calls.len(), 1, "no call before its intent is on disk");
    harness.release(SECOND);
    assert_eq!(harness.calls.len(), 16);
}

/// A changed secret reference must survive a restart.
#[test]
fn changed_specs_are_on_disk_when_the_set_is_answered() {
    use crate::driver::{SecretReference, SecretReferences};
    let mut harness = Harness::new(VolumeSettings::new("/volumes"));
    harness.publish("d", "v", SECOND);
    let reference = SecretReference::new("namespace", "name").unwrap();
    let secrets = SecretReferences { node_stage: Some(reference.clone()), ..SecretReferences::default() };
    let spec = Arc::new(spec("d", "v").to_builder().secrets(secrets).build().unwrap());
    let set = Ask::Reconcile(vec![crate::node::DesiredVolume { spec, consumers: vec![consumer("d-v")] }]);
    let set = harness.ask(set, SECOND);
    assert!(matches!(harness.answers[&set], Answer::Reconciled(Ok(_))));
    let payload = harness.store.load().unwrap().records.remove(0).1;
    let record = crate::node::record::Record::decode(&payload).unwrap();
    assert_eq!(record.spec.secrets().node_stage, Some(reference));
}
