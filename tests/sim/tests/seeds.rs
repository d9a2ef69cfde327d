//! Seeds of every run of the tests. More of them: `cargo xtask sim`.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test fails by them")]

const SEEDS: u64 = 2_000;

/// Runs seeds, every `step`-th from `first` on. Returns executions and retries.
fn run(first: u64, step: usize) -> (usize, u64) {
    let (mut executions, mut retries) = (0, 0);
    for seed in (first..SEEDS).step_by(step) {
        let run = edge_csi_sim::run(seed, false);
        if let Some(violation) = run.violation {
            panic!("{violation}\nreplay: cargo xtask sim --seed {seed} --trace");
        }
        executions += run.executions;
        retries += run.retries;
    }
    (executions, retries)
}

/// Anchors (f) 8: frames that come twice and out of order execute nothing twice, and an epoch that is over is refused. Anchors (f) 7:
/// hub, agent and driver end at any moment and at each step of the journal. Anchors (f) 14 and 19: nobody answers another's call, and
/// clocks an hour apart change nothing.
#[test]
fn under_any_faults_an_operation_runs_once_and_when_they_stop_every_caller_gets_its_drivers_answer() {
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
    for seed in 0..100 {
        let runs = [(); 2].map(|()| edge_csi_sim::run(seed, false).fingerprint);
        assert_eq!(runs[0], runs[1], "seed {seed}");
    }
}
