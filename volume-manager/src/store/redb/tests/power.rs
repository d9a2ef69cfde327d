//! Power cuts.

use std::collections::BTreeMap;

use fastrand::Rng;

use super::disk::Disk;
use crate::store::{Change, RecordKey, RecordKind};

/// The number of power cuts.
const CUTS: u32 = 1_000;

/// The number of power cuts per disk.
const CUTS_PER_DISK: u32 = 10;

const SEED: &str = "VOLUME_MANAGER_STORE_SEED";

type Model = BTreeMap<RecordKey, Vec<u8>>;

/// The number of interruptions by phase.
#[derive(Debug, Default)]
struct Seen {
    cuts: u32,
    kills: u32,
    making: u32,
    opening: u32,
    committing: u32,
    /// Unacknowledged commits that were durable.
    unacknowledged: u32,
}

/// A random group of changes, and the records after it.
fn changes(rng: &mut Rng, model: &Model) -> (Vec<Change>, Model) {
    let mut then = model.clone();
    let changes = (0..=rng.u8(..7))
        .map(|_| {
            let key = RecordKey::new(RecordKind(1), format!("volume {}", rng.u8(..12))).unwrap();
            if rng.u8(..4) == 0 {
                then.remove(&key);
                Change::Remove(key)
            } else {
                let size = if rng.u8(..16) == 0 { 10_000 } else { 400 };
                let payload = vec![rng.u8(..); rng.usize(..size)];
                then.insert(key.clone(), payload.clone());
                Change::Put(key, payload)
            }
        })
        .collect();
    (changes, then)
}

/// Runs a store on one disk repeatedly, each run ended by a power cut or a kill.
fn run_until_power_cuts(rng: &mut Rng, seen: &mut Seen) {
    let mut disk = Disk::default();
    // The acknowledged state, and the state after an unacknowledged commit.
    let mut model = Model::new();
    let mut perhaps = None;
    for run in 0..CUTS_PER_DISK {
        disk.cut_after(rng.u64(..50));
        match disk.open() {
            Err(error) => {
                assert!(disk.is_off(), "run {run}: {error}");
                if disk.is_made() {
                    seen.opening += 1;
                } else {
                    seen.making += 1;
                }
            }
            Ok(mut store) => {
                let loaded = store.load().unwrap();
                assert_eq!(loaded.quarantined, [], "run {run}");
                let found: Model = loaded.records.into_iter().collect();
                if found != model {
                    assert_eq!(Some(&found), perhaps.as_ref(), "run {run}: neither this nor {model:?}");
                    seen.unacknowledged += 1;
                    model = found;
                }
                for commits in 0.. {
                    assert!(commits < 100, "run {run}: no power cut, so nothing is written");
                    let (changes, then) = changes(rng, &model);
                    if let Err(error) = store.commit(&changes) {
                        assert!(disk.is_off() && error.is_stopped(), "run {run}: {error}");
                        assert!(store.commit(&[]).is_err() && store.load().is_err());
                        seen.committing += 1;
                        perhaps = Some(then);
                        break;
                    }
                    model = then;
                }
            }
        }
        if rng.u8(..5) == 0 {
            disk.kill();
            seen.kills += 1;
        } else {
            disk.cut(rng);
            seen.cuts += 1;
        }
        if !disk.is_made() {
            // The file was not renamed yet; start with an empty disk.
            disk = Disk::default();
        }
    }
    let mut store = disk.open().unwrap();
    let found: Model = store.load().unwrap().records.into_iter().collect();
    assert!(found == model || Some(&found) == perhaps.as_ref(), "{found:?} instead of {model:?}");
}

/// And the acceptance of a thousand power cuts: writes that were not synced are dropped, reordered and
/// torn at any byte.
#[test]
fn power_cuts_keep_acknowledged_commits_whole() {
    let given = std::env::var(SEED).ok().map(|seed| seed.parse::<u64>().unwrap());
    let mut seen = Seen::default();
    let mut number = 0;
    while seen.cuts < CUTS && (given.is_none() || number == 0) {
        let seed = given.unwrap_or(0x5eed_0000 + number);
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            run_until_power_cuts(&mut Rng::with_seed(seed), &mut seen);
        }));
        if outcome.is_err() {
            panic!("replay with {SEED}={seed} cargo test -p volume-manager --features redb power_cuts");
        }
        number += 1;
    }
    println!("{seen:?}");
    if given.is_none() {
        let reached = [seen.kills, seen.making, seen.opening, seen.committing, seen.unacknowledged];
        assert!(reached.iter().all(|count| *count >= 10), "a phase is rarely reached: {seen:?}");
    }
}
