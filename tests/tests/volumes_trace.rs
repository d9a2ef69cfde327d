//! One random trace of orders to a node's volumes, with real mounts. `tests/e2e` runs the same trace on third-party
//! drivers. The test needs root; without it, the test logs that it did not run.

#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use edge_csi_tests::binaries;
use edge_csi_tests::cluster::{DRIVER, NODE};
use edge_csi_tests::volumes::namespace::private;
use edge_csi_tests::volumes::rounds::Rounds;
use edge_csi_tests::volumes::trace::{Trace, TracedDriver, run};

/// After every step of a random trace, with kills of the driver and the node, the state equals the model.
#[tokio::test]
async fn the_state_equals_the_model_after_every_step() {
    let Some(directory) = private() else { return };
    let mut rounds = Rounds::begin("volumes_trace", "the_state_equals_the_model_after_every_step");
    let program = binaries::path("hostpath-driver").to_string_lossy().into_owned();
    let words =
        ["--drivername", DRIVER, "--endpoint", "unix://{socket}", "--nodeid", NODE, "--state-dir", "{state}"];
    let command = std::iter::once(program).chain(words.map(ToOwned::to_owned)).collect();
    let trace = Trace {
        directory,
        program: env!("CARGO_BIN_EXE_volume-node").into(),
        driver: TracedDriver { name: DRIVER.to_owned(), command, deviations: Vec::new() },
        steps: Rounds::how_many(1000, 40),
    };
    let lines = run(&trace, &mut rounds).await;
    assert_eq!(lines.len() as u64, trace.steps);
}
