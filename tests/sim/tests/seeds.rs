//! Runs a few seeds of the simulation. `cargo sim` runs more.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a failing test panics")]

use clap::ValueEnum as _;
use edge_csi_sim::Planted;

/// The number of seeds. It is small, since the tests run without optimisation.
const SEEDS: u64 = 300;

/// Runs seeds, every `step`-th from `first` on. Returns executions and retries.
fn run(first: u64, step: usize) -> (usize, u64) {
    let (mut executions, mut retries) = (0, 0);
    for seed in (first..SEEDS).step_by(step) {
        let run = edge_csi_sim::run(seed, None, false).unwrap();
        if let Some(violation) = run.violation {
            panic!("{violation}\nreplay: cargo sim --seed {seed} --trace");
        }
        executions += run.executions;
        retries += run.retries;
    }
    (executions, retries)
}

/// Links, hubs, agents, proxies and drivers fail at any moment, and frames overtake each other, arrive twice or not at
/// all. No property is broken, and every sidecar gets its driver's answer once the faults have stopped.
#[test]
fn no_property_is_broken_under_any_faults() {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (executions, retries) = std::thread::scope(|scope| {
        let runs: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || run(first as u64, threads))).collect();
        runs.into_iter()
            .map(|run| run.join().unwrap())
            .fold((0, 0), |(executions, retries), run| (executions + run.0, retries + run.1))
    });
    assert!(executions > 5 * SEEDS as usize, "only {executions} executions: the test shows nothing");
    assert!(retries > SEEDS, "only {retries} retries: the faults do no harm");
}

#[test]
fn a_seed_gives_the_same_run_each_time() {
    for seed in 0..50 {
        let runs = [(); 2].map(|()| edge_csi_sim::run(seed, None, false).unwrap().fingerprint);
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}

/// Each fault that is planted in a proxy is found, by the property that it breaks.
#[test]
fn every_planted_fault_is_found() {
    let faults = [
        (Planted::OtherInstance, "what may have begun is sent again only to the same instance"),
        (Planted::CalledNotSent, "what is called not sent was not sent"),
        (Planted::NoGrace, "no call is lost if its node returns in time"),
        (Planted::NoFence, "a call is executed once"),
        (Planted::NoGivenUp, "no copy of a call that was given up begins after a later one"),
        (Planted::NoTerm, "no call of an older term begins"),
        (Planted::NoSession, "a call begins only on the session that it is for"),
        (Planted::FreshNumbers, "a call is executed once"),
    ];
    assert_eq!(faults.map(|(planted, _)| planted), *Planted::value_variants());
    for (planted, property) in faults {
        let broken = |seed: &u64| {
            let violation = edge_csi_sim::run(*seed, Some(planted), false).unwrap().violation;
            violation.is_some_and(|violation| violation.property.starts_with(property))
        };
        assert!((0..1_000).any(|seed| broken(&seed)), "{planted:?} is not found");
    }
}
