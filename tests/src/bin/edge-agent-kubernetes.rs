//! `edge-agent` with the feature `kubernetes`, for the tests of it.

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_agent::main()
}
