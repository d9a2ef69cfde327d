//! The cases of the suite, one function each.

use std::collections::BTreeMap;

use super::Medium;
use crate::store::{
    Change, Defect, Loaded, MAX_PAYLOAD_BYTES, RecordKey, RecordKind, Store, StoreError, envelope,
};

pub(super) type Outcome = Result<(), String>;

fn key(name: &str) -> Result<RecordKey, String> {
    RecordKey::new(RecordKind(1), name).map_err(|error| error.to_string())
}

fn put(name: &str, payload: &[u8]) -> Result<Change, String> {
    Ok(Change::Put(key(name)?, payload.to_vec()))
}

fn commit(store: &mut Store, changes: &[Change]) -> Outcome {
    store.commit(changes).map_err(|error| format!("a commit failed: {error}"))
}

fn load(store: &mut Store) -> Result<Loaded, String> {
    store.load().map_err(|error| format!("a load failed: {error}"))
}

pub(super) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

/// Checks that the store has exactly these records, and an empty quarantine.
fn expect_records(store: &mut Store, expected: &[(RecordKey, Vec<u8>)]) -> Outcome {
    let loaded = load(store)?;
    equal("the records", &loaded.records, &expected.to_vec())?;
    equal("the quarantine", &loaded.quarantined, &Vec::new())
}

pub(super) fn commits_are_durable(medium: &mut Medium<'_>) -> Outcome {
    let mut store = medium.open()?;
    expect_records(&mut store, &[])?;
    commit(&mut store, &[put("b", b"2")?, put("a", b"1")?])?;
    commit(&mut store, &[put("c", b"3")?, put("a", b"one")?])?;
    commit(&mut store, &[Change::Remove(key("b")?)])?;
    let other_kind = RecordKey::new(RecordKind(0), "z").map_err(|error| error.to_string())?;
    commit(&mut store, &[Change::Put(other_kind.clone(), b"first".to_vec())])?;
    let expected =
        [(other_kind, b"first".to_vec()), (key("a")?, b"one".to_vec()), (key("c")?, b"3".to_vec())];
    expect_records(&mut store, &expected)?;
    drop(store);
    expect_records(&mut medium.open()?, &expected)
}

pub(super) fn changes_keep_order(medium: &mut Medium<'_>) -> Outcome {
    let mut store = medium.open()?;
    let (a, b, c) = (key("a")?, key("b")?, key("c")?);
    commit(&mut store, &[put("a", b"1")?, Change::Remove(a.clone()), put("b", b"1")?, put("b", b"2")?])?;
    expect_records(&mut store, &[(b.clone(), b"2".to_vec())])?;
    commit(
        &mut store,
        &[Change::Remove(b), put("a", b"3")?, Change::Remove(c.clone()), Change::Quarantine(c)],
    )?;
    expect_records(&mut store, &[(a.clone(), b"3".to_vec())])?;
    commit(&mut store, &[Change::Remove(a.clone()), put("a", b"4")?])?;
    commit(&mut store, &[])?;
    expect_records(&mut store, &[(a, b"4".to_vec())])
}

pub(super) fn every_size_round_trips(medium: &mut Medium<'_>) -> Outcome {
    let names = [vec![0], vec![0xff; RecordKey::MAX_NAME_BYTES], b"driver/vol\n\"\0".to_vec()];
    let sizes = [0, 1, 4095, 4096, 4097, MAX_PAYLOAD_BYTES];
    let mut expected = Vec::new();
    for (number, size) in sizes.into_iter().enumerate() {
        for name in &names {
            let kind = RecordKind(u8::try_from(number).unwrap_or(u8::MAX));
            let key = RecordKey::new(kind, name).map_err(|error| error.to_string())?;
            let payload: Vec<u8> = (0..=u8::MAX).cycle().skip(number).take(size).collect();
            expected.push((key, payload));
        }
    }
    expected.sort();
    let mut store = medium.open()?;
    let changes: Vec<_> =
        expected.iter().map(|(key, payload)| Change::Put(key.clone(), payload.clone())).collect();
    commit(&mut store, &changes)?;
    drop(store);
    if load(&mut medium.open()?)?.records == expected { Ok(()) } else { Err("the records differ".into()) }
}

pub(super) fn rejected_commit_changes_nothing(medium: &mut Medium<'_>) -> Outcome {
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?])?;
    let changes = [put("a", b"2")?, put("b", &vec![0; MAX_PAYLOAD_BYTES + 1])?, put("c", b"3")?];
    match store.commit(&changes) {
        Err(StoreError::LimitExceeded { key: found, found: bytes, .. }) => {
            equal("the rejected record", &(found, bytes), &(key("b")?, MAX_PAYLOAD_BYTES as u64 + 1))?;
        }
        other => return Err(format!("a payload over the limit: {other:?}")),
    }
    expect_records(&mut store, &[(key("a")?, b"1".to_vec())])?;
    commit(&mut store, &[put("c", b"3")?])?;
    expect_records(&mut store, &[(key("a")?, b"1".to_vec()), (key("c")?, b"3".to_vec())])
}

/// Corruptions of a row, each with a check of the expected defect.
type Corruption = (&'static str, fn(&RecordKey) -> Vec<u8>, fn(&Defect) -> bool);

const CORRUPTIONS: [Corruption; 7] = [
    ("zero length", |_| Vec::new(), |reason| *reason == Defect::Empty),
    (
        "truncated",
        |key| sealed(key, |bytes| bytes.truncate(30)),
        |reason| matches!(reason, Defect::Length { .. }),
    ),
    (
        "twice",
        |key| sealed(key, |bytes| bytes.extend_from_within(..)),
        |reason| matches!(reason, Defect::Length { .. }),
    ),
    (
        "half written",
        |key| sealed(key, |bytes| bytes[28..].fill(0)),
        |reason| matches!(reason, Defect::Checksum { .. }),
    ),
    (
        "a flipped bit",
        |key| sealed(key, |bytes| bytes[40] ^= 4),
        |reason| matches!(reason, Defect::Checksum { .. }),
    ),
    (
        "a newer version",
        |key| sealed(key, |bytes| bytes[4] = 2),
        |reason| matches!(reason, Defect::Version { found: 2, supported: 1 }),
    ),
    ("not a record", |_| b"something else".to_vec(), |reason| *reason == Defect::NotARecord),
];

fn sealed(key: &RecordKey, corrupt: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = envelope::seal(key, 1, b"a payload of some bytes, to be corrupted");
    corrupt(&mut bytes);
    bytes
}

pub(super) fn damage_is_quarantined(medium: &mut Medium<'_>) -> Outcome {
    let mut store = medium.open()?;
    let mut good = Vec::new();
    for (name, ..) in CORRUPTIONS {
        commit(&mut store, &[put(name, b"fine")?, put(&format!("{name}, not"), b"fine")?])?;
        good.push((key(&format!("{name}, not"))?, b"fine".to_vec()));
    }
    good.sort();
    drop(store);
    let mut corrupted = BTreeMap::new();
    for (name, corrupt, _) in CORRUPTIONS {
        let key = key(name)?;
        let bytes = corrupt(&key);
        medium.overwrite(key.as_row(), &bytes)?;
        corrupted.insert(key.as_row().to_vec(), bytes);
    }
    let wrong_row = key("wrong row")?;
    let copy = envelope::seal(&key("another")?, 1, b"");
    medium.overwrite(wrong_row.as_row(), &copy)?;
    corrupted.insert(wrong_row.as_row().to_vec(), copy);
    let nameless = sealed(&wrong_row, |_| {});
    medium.overwrite(&[7], &nameless)?;
    corrupted.insert(vec![7], nameless);

    // Loading does not change the quarantine.
    for _ in 0..2 {
        let mut store = medium.open()?;
        let loaded = load(&mut store)?;
        equal("the other records", &loaded.records, &good)?;
        equal("the number of quarantined records", &loaded.quarantined.len(), &corrupted.len())?;
        for quarantined in &loaded.quarantined {
            let row = quarantined.key.as_ref().map_or(&[7][..], RecordKey::as_row);
            let bytes = store.quarantined(&quarantined.id).map_err(|error| error.to_string())?;
            equal("the bytes", &Some(&bytes), &corrupted.get(row))?;
            equal("their number", &quarantined.bytes, &bytes.len())?;
        }
        for (name, _, fits) in CORRUPTIONS {
            let key = Some(key(name)?);
            let found = loaded.quarantined.iter().find(|quarantined| quarantined.key == key);
            let reason = found.map(|quarantined| &quarantined.reason);
            if !reason.is_some_and(fits) {
                return Err(format!("{name}: the reason {reason:?}"));
            }
        }
        let misplaced = Defect::WrongKey { found: key("another")? };
        let misplaced_record =
            loaded.quarantined.iter().find(|quarantined| quarantined.key.as_ref() == Some(&wrong_row));
        equal(
            "a misplaced record",
            &misplaced_record.map(|quarantined| &quarantined.reason),
            &Some(&misplaced),
        )?;
    }
    Ok(())
}

pub(super) fn overwritten_damage_is_moved_aside(medium: &mut Medium<'_>) -> Outcome {
    for name in ["a", "b", "c"] {
        medium.overwrite(key(name)?.as_row(), b"bad")?;
    }
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?, put("a", b"2")?, Change::Remove(key("b")?)])?;
    for restart in [false, true] {
        if restart {
            drop(store);
            store = medium.open()?;
        }
        let loaded = load(&mut store)?;
        equal("the records", &loaded.records, &vec![(key("a")?, b"2".to_vec())])?;
        let mut keys: Vec<_> = loaded.quarantined.iter().filter_map(|one| one.key.clone()).collect();
        keys.sort();
        equal("the keys of the quarantined", &keys, &vec![key("a")?, key("b")?, key("c")?])?;
        for quarantined in loaded.quarantined {
            let bytes = store.quarantined(&quarantined.id).map_err(|error| error.to_string())?;
            equal("the old bytes", &bytes, &b"bad".to_vec())?;
            equal("the reason", &quarantined.reason, &Defect::NotARecord)?;
        }
    }
    Ok(())
}

pub(super) fn quarantined_and_released(medium: &mut Medium<'_>) -> Outcome {
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?, put("b", b"2")?])?;
    commit(&mut store, &[Change::Quarantine(key("a")?), Change::Quarantine(key("a")?)])?;
    drop(store);
    let mut store = medium.open()?;
    let loaded = load(&mut store)?;
    equal("the records", &loaded.records, &vec![(key("b")?, b"2".to_vec())])?;
    let [quarantined] = &loaded.quarantined[..] else { return Err(format!("{:?}", loaded.quarantined)) };
    equal("the reason", &quarantined.reason, &Defect::QuarantinedByOwner)?;
    store.release(&quarantined.id).map_err(|error| error.to_string())?;
    let expected = [(key("a")?, b"1".to_vec()), (key("b")?, b"2".to_vec())];
    expect_records(&mut store, &expected)?;
    drop(store);
    expect_records(&mut medium.open()?, &expected)
}

pub(super) fn failed_releases(medium: &mut Medium<'_>) -> Outcome {
    medium.overwrite(key("bad")?.as_row(), b"bad")?;
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?])?;
    commit(&mut store, &[Change::Quarantine(key("a")?), put("a", b"2")?])?;
    let before = load(&mut store)?;
    equal("the number of quarantined records", &before.quarantined.len(), &2)?;
    for quarantined in &before.quarantined {
        match (store.release(&quarantined.id), &quarantined.reason) {
            (Err(StoreError::Occupied { key: found, .. }), Defect::QuarantinedByOwner)
                if found == key("a")? => {}
            (Err(StoreError::NotReadable { reason: Defect::NotARecord, .. }), Defect::NotARecord) => {}
            (other, reason) => return Err(format!("the release of one with \"{reason}\": {other:?}")),
        }
    }
    equal("everything", &load(&mut store)?, &before)
}

pub(super) fn only_discard_deletes(medium: &mut Medium<'_>) -> Outcome {
    for name in ["a", "b"] {
        medium.overwrite(key(name)?.as_row(), b"bad")?;
    }
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?])?;
    for left in [1, 0] {
        let quarantined = load(&mut store)?.quarantined;
        let Some(first) = quarantined.first() else { return Err("nothing is quarantined".into()) };
        store.discard(&first.id).map_err(|error| error.to_string())?;
        for again in
            [store.discard(&first.id), store.release(&first.id), store.quarantined(&first.id).map(drop)]
        {
            if !matches!(again, Err(StoreError::NotQuarantined { .. })) {
                return Err(format!("after a discard: {again:?}"));
            }
        }
        drop(store);
        store = medium.open()?;
        equal("the number of remaining records", &load(&mut store)?.quarantined.len(), &left)?;
    }
    expect_records(&mut store, &[(key("a")?, b"1".to_vec())])
}

pub(super) fn reopen_keeps_everything(medium: &mut Medium<'_>) -> Outcome {
    medium.overwrite(key("bad")?.as_row(), b"bad")?;
    let mut store = medium.open()?;
    commit(&mut store, &[put("a", b"1")?])?;
    let before = load(&mut store)?;
    for _ in 0..2 {
        store.reopen().map_err(|error| error.to_string())?;
        equal("everything", &load(&mut store)?, &before)?;
    }
    commit(&mut store, &[put("b", b"2")?])
}

pub(super) fn behaves_as_a_map(medium: &mut Medium<'_>) -> Outcome {
    let mut state: u64 = 4;
    // A linear congruential generator, so that every run has the same steps.
    let mut below = |bound: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % bound
    };
    let mut model = BTreeMap::new();
    let mut store = medium.open()?;
    for step in 0..150 {
        let mut changes = Vec::new();
        for _ in 0..below(6) {
            let key = key(&format!("volume {}", below(20)))?;
            if below(3) == 0 {
                model.remove(&key);
                changes.push(Change::Remove(key));
            } else {
                let payload =
                    vec![u8::try_from(step).unwrap_or(0); usize::try_from(below(3000)).unwrap_or(0)];
                model.insert(key.clone(), payload.clone());
                changes.push(Change::Put(key, payload));
            }
        }
        commit(&mut store, &changes)?;
        if below(10) == 0 {
            drop(store);
            store = medium.open()?;
        }
        let expected: Vec<_> = model.iter().map(|(key, payload)| (key.clone(), payload.clone())).collect();
        expect_records(&mut store, &expected).map_err(|what| format!("after step {step}: {what}"))?;
    }
    Ok(())
}
