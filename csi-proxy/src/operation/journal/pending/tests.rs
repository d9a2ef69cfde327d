use bytes::Bytes;
use csi_proto::{DriverName, Method};

use super::*;
use crate::operation::{Answer, Digest, Identity, Subject};
use crate::outcome::Outcome;

fn identity(volume: &str) -> Identity {
    let driver = DriverName::new("csi-hostpath").unwrap();
    let subjects = vec![Subject::Volume(volume.into())];
    Identity::new(driver, Method::DeleteVolume, subjects, Digest::from_bytes([0; 32])).unwrap()
}

fn put(number: u64, volume: &str, stage: Stage) -> Entry {
    Entry::Put { operation: OperationId::new(number), identity: identity(volume), stage }
}

fn remove(number: u64) -> Entry {
    Entry::Remove { operation: OperationId::new(number) }
}

fn finished() -> Stage {
    Stage::Finished(Answer::new(Some(Bytes::new()), Outcome::ok()).unwrap())
}

fn rows(batch: &Batch) -> Vec<(u64, bool)> {
    let changes = batch.changes(SystemTime::UNIX_EPOCH);
    let row = |change: &Change| match change {
        Change::Put(row, _) => (*row, true),
        Change::Remove(row) => (*row, false),
        Change::SetAside(_) => unreachable!(),
    };
    changes.iter().map(row).collect()
}

fn fresh() -> (Pending, Instant, Duration) {
    let settings = JournalSettings::default();
    (Pending::new(settings, &[]), Instant::now(), settings.linger)
}

fn holds(pending: &Pending, volume: &str) -> bool {
    pending.holds_answer_about(OperationId::new(u64::MAX), identity(volume).keys())
}

#[test]
fn an_operation_that_is_over_within_the_linger_is_never_written() {
    let (mut pending, now, linger) = fresh();
    for stage in [Stage::Accepted, Stage::Started, finished()] {
        pending.record(now, put(1, "v", stage));
    }
    assert!(pending.take(now + linger / 2).is_none());
    pending.record(now + linger / 2, remove(1));
    assert!(pending.take(now + linger).is_none());
    assert_eq!(pending.due(), None);
}

/// Under load something is always due: what came later is still given its time.
#[test]
fn each_operation_has_its_own_linger() {
    let (mut pending, now, linger) = fresh();
    pending.record(now, put(1, "v", Stage::Started));
    pending.record(now + linger / 2, put(2, "w", Stage::Started));
    let batch = pending.take(now + linger).unwrap();
    assert_eq!(rows(&batch), [(1, true)]);
    pending.done();
    assert_eq!(pending.due(), Some(now + 2 * linger));
    pending.record(now + linger, remove(2));
    pending.record(now + linger, remove(1));
    assert_eq!(rows(&pending.take(now + 2 * linger).unwrap()), [(1, false)], "the other leaves no trace");
}

#[test]
fn changes_wait_for_others_and_only_the_last_of_an_operation_is_written() {
    let (mut pending, now, linger) = fresh();
    pending.record(now, put(2, "w", Stage::Accepted));
    pending.record(now, put(1, "v", Stage::Accepted));
    pending.record(now + linger / 2, put(2, "w", finished()));
    assert_eq!(pending.due(), Some(now + linger));
    let batch = pending.take(now + linger).unwrap();
    assert_eq!(rows(&batch), [(1, true), (2, true)]);
    pending.record(now + linger, remove(1));
    assert!(pending.take(now + linger * 9).is_none(), "one commit at a time");
    pending.done();
    assert_eq!(rows(&pending.take(now + linger * 9).unwrap()), [(1, false)]);
}

#[test]
fn a_finished_answer_counts_as_on_the_disk_from_its_commit_to_its_removal() {
    let (mut pending, now, _) = fresh();
    pending.record(now, put(1, "v", finished()));
    assert!(!holds(&pending, "v"));
    pending.urge();
    pending.take(now).unwrap();
    assert!(holds(&pending, "v") && !holds(&pending, "w"), "it may be there before the commit has ended");
    assert!(!pending.holds_answer_about(OperationId::new(1), identity("v").keys()), "its own does not count");
    pending.done();
    pending.record(now, remove(1));
    assert!(holds(&pending, "v"));
    assert_eq!(pending.urge(), 2);
    pending.take(now).unwrap();
    assert!(holds(&pending, "v"));
    assert_eq!(pending.urge(), 2, "the commit that is under way");
    pending.done();
    assert!(!holds(&pending, "v"));
    assert_eq!(pending.urge(), 2, "all is on the disk");
}

#[test]
fn after_a_failure_nothing_is_written_until_it_is_reopened_with_all_there_is() {
    let (mut pending, now, _) = fresh();
    pending.record(now, put(1, "v", finished()));
    pending.record(now, put(2, "w", Stage::Started));
    pending.urge();
    pending.take(now).unwrap();
    pending.failed("no space".to_owned());
    assert_eq!(pending.failure(), Some("no space"));
    pending.record(now, remove(1));
    pending.record(now, put(3, "x", Stage::Started));
    assert!(pending.take(now + LONGEST).is_none());
    assert!(holds(&pending, "v"), "it may be on the disk");
    let after = pending.urge();
    assert_eq!(pending.reopened(now, vec![put(3, "x", Stage::Started), put(2, "w", finished())]), after);
    assert_eq!(rows(&pending.take(now).unwrap()), [(1, false), (2, true), (3, true)]);
    pending.done();
    assert!(!holds(&pending, "v") && holds(&pending, "w"));
}

#[test]
fn a_reopened_journal_makes_a_commit_even_if_there_is_nothing_to_write() {
    let (mut pending, now, _) = fresh();
    pending.failed("gone".to_owned());
    let awaited = pending.urge();
    assert_eq!(pending.reopened(now, Vec::new()), awaited);
    assert_eq!(rows(&pending.take(now).unwrap()), []);
}

#[test]
fn without_linger_an_operation_is_to_be_on_the_disk_first() {
    let now = Instant::now();
    let mut pending = Pending::new(JournalSettings::default().with_linger(Duration::ZERO), &[]);
    assert!(pending.is_eager() && !fresh().0.is_eager());
    pending.record(now, put(1, "v", Stage::Accepted));
    assert!(pending.take(now).is_none(), "until it is urged");
    assert_eq!(pending.urge(), 1);
    assert_eq!(rows(&pending.take(now).unwrap()), [(1, true)]);
}

/// Whoever waits for the promised number waits for ever otherwise.
#[test]
fn a_commit_that_was_promised_is_made_even_if_what_it_was_for_is_taken_back() {
    let (mut pending, now, _) = fresh();
    pending.record(now, put(1, "v", Stage::Started));
    assert_eq!(pending.urge(), 1);
    pending.record(now, remove(1));
    assert_eq!(pending.take(now).map(|batch| rows(&batch)), Some(vec![]));
    pending.done();
    assert_eq!(pending.urge(), 1);
    assert!(pending.take(now + LONGEST).is_none(), "once");
}
