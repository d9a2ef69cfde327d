//! One function a promise.

use std::collections::BTreeMap;

use super::Medium;
use crate::store::{
    Change, Defect, Loaded, MAX_PAYLOAD_BYTES, RecordKey, RecordKind, Store, StoreError, envelope,
};

type Outcome = Result<(), String>;

fn key(name: &str) -> Result<RecordKey, String> {
    RecordKey::new(RecordKind(1), name).map_err(|error| error.to_string())
}

fn put(name: &str, payload: &[u8]) -> Result<Change, String> {
    Ok(Change::Put(key(name)?, payload.to_vec()))
}

fn commit(store: &mut dyn Store, changes: &[Change]) -> Outcome {
    store.commit(changes).map_err(|error| format!("a commit failed: {error}"))
}

fn load(store: &mut dyn Store) -> Result<Loaded, String> {
    store.load().map_err(|error| format!("a load failed: {error}"))
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Outcome {
    if found == expected { Ok(()) } else { Err(format!("{what}: {found:?} instead of {expected:?}")) }
}

/// That the store holds these records, and nothing is quarantined.
fn holds(store: &mut dyn Store, expected: &[(RecordKey, Vec<u8>)]) -> Outcome {
    let loaded = load(store)?;
    same("the records", &loaded.records, &expected.to_vec())?;
    same("the quarantine", &loaded.quarantined, &Vec::new())
}

pub(super) fn commits_last(medium: &mut impl Medium) -> Outcome {
    let mut store = medium.open()?;
    holds(&mut *store, &[])?;
    commit(&mut *store, &[put("b", b"2")?, put("a", b"1")?])?;
    commit(&mut *store, &[put("c", b"3")?, put("a", b"one")?])?;
    commit(&mut *store, &[Change::Remove(key("b")?)])?;
    let other_kind = RecordKey::new(RecordKind(0), "z").map_err(|error| error.to_string())?;
    commit(&mut *store, &[Change::Put(other_kind.clone(), b"first".to_vec())])?;
    let expected =
        [(other_kind, b"first".to_vec()), (key("a")?, b"one".to_vec()), (key("c")?, b"3".to_vec())];
    holds(&mut *store, &expected)?;
    drop(store);
    holds(&mut *medium.open()?, &expected)
}

pub(super) fn changes_keep_order(medium: &mut impl Medium) -> Outcome {
    let mut store = medium.open()?;
    let (a, b, c) = (key("a")?, key("b")?, key("c")?);
    commit(&mut *store, &[put("a", b"1")?, Change::Remove(a.clone()), put("b", b"1")?, put("b", b"2")?])?;
    holds(&mut *store, &[(b.clone(), b"2".to_vec())])?;
    commit(
        &mut *store,
        &[Change::Remove(b), put("a", b"3")?, Change::Remove(c.clone()), Change::SetAside(c)],
    )?;
    holds(&mut *store, &[(a.clone(), b"3".to_vec())])?;
    commit(&mut *store, &[Change::Remove(a.clone()), put("a", b"4")?])?;
    commit(&mut *store, &[])?;
    holds(&mut *store, &[(a, b"4".to_vec())])
}

pub(super) fn every_size_comes_back(medium: &mut impl Medium) -> Outcome {
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
    commit(&mut *store, &changes)?;
    drop(store);
    if load(&mut *medium.open()?)?.records == expected { Ok(()) } else { Err("they differ".into()) }
}

pub(super) fn a_refusal_changes_nothing(medium: &mut impl Medium) -> Outcome {
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?])?;
    let changes = [put("a", b"2")?, put("b", &vec![0; MAX_PAYLOAD_BYTES + 1])?, put("c", b"3")?];
    match store.commit(&changes) {
        Err(StoreError::Refused { key: found, found: bytes, .. }) => {
            same("the record that is named", &(found, bytes), &(key("b")?, MAX_PAYLOAD_BYTES as u64 + 1))?;
        }
        other => return Err(format!("a payload beyond the bound: {other:?}")),
    }
    holds(&mut *store, &[(key("a")?, b"1".to_vec())])?;
    commit(&mut *store, &[put("c", b"3")?])?;
    holds(&mut *store, &[(key("a")?, b"1".to_vec()), (key("c")?, b"3".to_vec())])
}

/// Ways to spoil the row of a record, each with a test of the reason that is to be given.
type Damage = (&'static str, fn(&RecordKey) -> Vec<u8>, fn(&Defect) -> bool);

const DAMAGES: [Damage; 7] = [
    ("zero length", |_| Vec::new(), |reason| *reason == Defect::Empty),
    (
        "cut off",
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
        "a turned bit",
        |key| sealed(key, |bytes| bytes[40] ^= 4),
        |reason| matches!(reason, Defect::Checksum { .. }),
    ),
    (
        "a newer version",
        |key| sealed(key, |bytes| bytes[4] = 2),
        |reason| matches!(reason, Defect::Version { found: 2, supported: 1 }),
    ),
    ("no record", |_| b"something else".to_vec(), |reason| *reason == Defect::NoRecord),
];

fn sealed(key: &RecordKey, spoil: fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = envelope::seal(key, 1, b"a payload of some bytes, to be spoilt");
    spoil(&mut bytes);
    bytes
}

pub(super) fn damage_is_quarantined(medium: &mut impl Medium) -> Outcome {
    let mut store = medium.open()?;
    let mut good = Vec::new();
    for (name, ..) in DAMAGES {
        commit(&mut *store, &[put(name, b"fine")?, put(&format!("{name}, not"), b"fine")?])?;
        good.push((key(&format!("{name}, not"))?, b"fine".to_vec()));
    }
    good.sort();
    drop(store);
    let mut spoilt = BTreeMap::new();
    for (name, spoil, _) in DAMAGES {
        let key = key(name)?;
        let bytes = spoil(&key);
        medium.overwrite(key.as_row(), &bytes)?;
        spoilt.insert(key.as_row().to_vec(), bytes);
    }
    let stray = key("astray")?;
    let copy = envelope::seal(&key("another")?, 1, b"");
    medium.overwrite(stray.as_row(), &copy)?;
    spoilt.insert(stray.as_row().to_vec(), copy);
    let nameless = sealed(&stray, |_| {});
    medium.overwrite(&[7], &nameless)?;
    spoilt.insert(vec![7], nameless);

    // What is quarantined stays as it is, however often it is loaded.
    for _ in 0..2 {
        let mut store = medium.open()?;
        let loaded = load(&mut *store)?;
        same("the other records", &loaded.records, &good)?;
        same("how many are quarantined", &loaded.quarantined.len(), &spoilt.len())?;
        for quarantined in &loaded.quarantined {
            let row = quarantined.key.as_ref().map_or(&[7][..], RecordKey::as_row);
            let bytes = store.quarantined(&quarantined.id).map_err(|error| error.to_string())?;
            same("the bytes", &Some(&bytes), &spoilt.get(row))?;
            same("their number", &quarantined.bytes, &bytes.len())?;
        }
        for (name, _, fits) in DAMAGES {
            let key = Some(key(name)?);
            let found = loaded.quarantined.iter().find(|quarantined| quarantined.key == key);
            let reason = found.map(|quarantined| &quarantined.reason);
            if !reason.is_some_and(fits) {
                return Err(format!("{name}: the reason {reason:?}"));
            }
        }
        let misplaced = Defect::OtherKey { found: key("another")? };
        let astray = loaded.quarantined.iter().find(|quarantined| quarantined.key.as_ref() == Some(&stray));
        same("a misplaced record", &astray.map(|quarantined| &quarantined.reason), &Some(&misplaced))?;
    }
    Ok(())
}

pub(super) fn damage_is_kept_aside(medium: &mut impl Medium) -> Outcome {
    for name in ["a", "b", "c"] {
        medium.overwrite(key(name)?.as_row(), b"bad")?;
    }
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?, put("a", b"2")?, Change::Remove(key("b")?)])?;
    for restart in [false, true] {
        if restart {
            drop(store);
            store = medium.open()?;
        }
        let loaded = load(&mut *store)?;
        same("the records", &loaded.records, &vec![(key("a")?, b"2".to_vec())])?;
        let mut keys: Vec<_> = loaded.quarantined.iter().filter_map(|one| one.key.clone()).collect();
        keys.sort();
        same("the keys of the quarantined", &keys, &vec![key("a")?, key("b")?, key("c")?])?;
        for quarantined in loaded.quarantined {
            let bytes = store.quarantined(&quarantined.id).map_err(|error| error.to_string())?;
            same("the old bytes", &bytes, &b"bad".to_vec())?;
            same("the reason", &quarantined.reason, &Defect::NoRecord)?;
        }
    }
    Ok(())
}

pub(super) fn set_aside_and_released(medium: &mut impl Medium) -> Outcome {
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?, put("b", b"2")?])?;
    commit(&mut *store, &[Change::SetAside(key("a")?), Change::SetAside(key("a")?)])?;
    drop(store);
    let mut store = medium.open()?;
    let loaded = load(&mut *store)?;
    same("the records", &loaded.records, &vec![(key("b")?, b"2".to_vec())])?;
    let [quarantined] = &loaded.quarantined[..] else { return Err(format!("{:?}", loaded.quarantined)) };
    same("the reason", &quarantined.reason, &Defect::SetAside)?;
    store.release(&quarantined.id).map_err(|error| error.to_string())?;
    let expected = [(key("a")?, b"1".to_vec()), (key("b")?, b"2".to_vec())];
    holds(&mut *store, &expected)?;
    drop(store);
    holds(&mut *medium.open()?, &expected)
}

pub(super) fn refused_releases(medium: &mut impl Medium) -> Outcome {
    medium.overwrite(key("bad")?.as_row(), b"bad")?;
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?])?;
    commit(&mut *store, &[Change::SetAside(key("a")?), put("a", b"2")?])?;
    let before = load(&mut *store)?;
    same("how many are quarantined", &before.quarantined.len(), &2)?;
    for quarantined in &before.quarantined {
        match (store.release(&quarantined.id), &quarantined.reason) {
            (Err(StoreError::Occupied { key: found, .. }), Defect::SetAside) if found == key("a")? => {}
            (Err(StoreError::NotReadable { reason: Defect::NoRecord, .. }), Defect::NoRecord) => {}
            (other, reason) => return Err(format!("the release of one with \"{reason}\": {other:?}")),
        }
    }
    same("everything", &load(&mut *store)?, &before)
}

pub(super) fn only_discarding_deletes(medium: &mut impl Medium) -> Outcome {
    for name in ["a", "b"] {
        medium.overwrite(key(name)?.as_row(), b"bad")?;
    }
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?])?;
    for left in [1, 0] {
        let quarantined = load(&mut *store)?.quarantined;
        let Some(first) = quarantined.first() else { return Err("nothing is quarantined".into()) };
        store.discard(&first.id).map_err(|error| error.to_string())?;
        for again in
            [store.discard(&first.id), store.release(&first.id), store.quarantined(&first.id).map(drop)]
        {
            if !matches!(again, Err(StoreError::NotQuarantined { .. })) {
                return Err(format!("one that was discarded: {again:?}"));
            }
        }
        drop(store);
        store = medium.open()?;
        same("how many are left", &load(&mut *store)?.quarantined.len(), &left)?;
    }
    holds(&mut *store, &[(key("a")?, b"1".to_vec())])
}

pub(super) fn reopening_keeps_all(medium: &mut impl Medium) -> Outcome {
    medium.overwrite(key("bad")?.as_row(), b"bad")?;
    let mut store = medium.open()?;
    commit(&mut *store, &[put("a", b"1")?])?;
    let before = load(&mut *store)?;
    for _ in 0..2 {
        store.reopen().map_err(|error| error.to_string())?;
        same("everything", &load(&mut *store)?, &before)?;
    }
    commit(&mut *store, &[put("b", b"2")?])
}

pub(super) fn as_a_map(medium: &mut impl Medium) -> Outcome {
    let mut state: u64 = 4;
    // A linear congruential sequence: the same steps in every run.
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
        commit(&mut *store, &changes)?;
        if below(10) == 0 {
            drop(store);
            store = medium.open()?;
        }
        let expected: Vec<_> = model.iter().map(|(key, payload)| (key.clone(), payload.clone())).collect();
        holds(&mut *store, &expected).map_err(|what| format!("after step {step}: {what}"))?;
    }
    Ok(())
}
