//! `edge-agent` with the feature `kubernetes-node`, for the tests of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::agent::main()
}
