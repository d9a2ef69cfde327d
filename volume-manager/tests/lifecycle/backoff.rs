//! Back-off during a long outage, in virtual time.

use std::collections::BTreeSet;
use std::time::Duration;

use volume_manager::advanced::lifecycle::{Call, DriverCapabilities, Effect, Event, Outcome, Policy, Volume};
use volume_manager::driver::Attach;
use volume_manager::node::{BackOff, Failure, Rpc};

use crate::script::{consumer, record, step};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the times of the calls to a driver that is unavailable for a day.
fn calls_of_an_outage(seed: u64, back_off: BackOff) -> Vec<Duration> {
    let pod = consumer("a");
    let volume = Volume::new(Attach::NotRequired, DriverCapabilities::default(), Policy::default());
    let (mut volume, effects) = record(&volume, Event::Want(pod.clone()));
    let call = Call::of_target(Rpc::NodePublishVolume, pod);
    assert_eq!(effects, [Effect::Call(call.clone())]);
    let (mut now, mut calls) = (Duration::ZERO, Vec::new());
    while now < DAY {
        calls.push(now);
        let failed = Event::Finished { call: call.clone(), outcome: Outcome::Failed(Failure::Uncertain) };
        let (waiting, effects) = step(&volume, failed);
        let [Effect::BackOff { attempt, .. }] = effects[..] else { panic!("{effects:?}") };
        now += back_off.wait(attempt, seed);
        let (calling, effects) = step(&waiting, Event::Resume(call.clone()));
        assert_eq!(effects, [Effect::Call(call.clone())]);
        volume = calling;
    }
    calls
}

/// Back-off delays stay bounded over a day's outage and are never zero. The first call after the driver returns is made
/// within the maximum delay.
#[test]
fn backoff_is_bounded_over_a_day_without_the_driver() {
    let back_off = BackOff::default();
    let shortest_at_the_cap = back_off.longest() / 2;
    let mut schedules = BTreeSet::new();
    for seed in 0..100 {
        let calls = calls_of_an_outage(seed, back_off);
        let waits: Vec<_> = calls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.iter().all(|wait| *wait >= Duration::from_millis(250) && *wait <= back_off.longest()));
        assert!(waits.iter().skip(9).all(|wait| *wait >= shortest_at_the_cap), "seed {seed}: {waits:?}");
        assert!((720..=1450).contains(&calls.len()), "seed {seed}: {} calls in a day", calls.len());
        assert!(DAY - *calls.last().unwrap() <= back_off.longest(), "seed {seed}");
        schedules.insert(calls);
    }
    assert_eq!(schedules.len(), 100, "two volumes beat in time");
}

/// No attempt, seed or setting makes a delay zero, longer than the maximum, or overflow.
#[test]
fn backoff_is_between_a_millisecond_and_the_maximum() {
    for (first, longest) in [
        (Duration::ZERO, Duration::ZERO),
        (Duration::from_millis(500), Duration::from_secs(120)),
        (Duration::MAX, Duration::MAX),
        (Duration::from_secs(1), Duration::ZERO),
        (Duration::from_nanos(1), Duration::MAX),
    ] {
        let back_off = BackOff::new(first, longest);
        for attempt in 0..=u8::MAX {
            for seed in [0, 1, u64::MAX, 0x9E37_79B9_7F4A_7C15] {
                let wait = back_off.wait(attempt, seed);
                let least = if attempt > 60 { back_off.longest() / 2 } else { first.min(longest) / 2 };
                assert!(wait >= least, "{first:?} {attempt} {seed}: {wait:?}");
                assert!(
                    wait >= BackOff::SHORTEST && wait <= back_off.longest(),
                    "{first:?} {attempt} {seed}: {wait:?}"
                );
            }
        }
    }
}

/// Volumes that fail simultaneously are not retried simultaneously.
#[test]
fn waits_are_spread_over_half_of_their_length() {
    let back_off = BackOff::default();
    let waits: Vec<_> = (0..1000).map(|seed| back_off.wait(32, seed)).collect();
    let quarter = back_off.longest() / 8;
    for part in 4..8 {
        let within =
            waits.iter().filter(|wait| **wait >= quarter * part && **wait <= quarter * (part + 1)).count();
        assert!((180..=320).contains(&within), "{within} of 1000 in part {part}");
    }
}
