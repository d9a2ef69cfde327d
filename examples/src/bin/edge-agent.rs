//! `edge-agent`: see [`edge_csi_examples::agent`].

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::core_dumps::forbid();
    edge_csi_examples::agent::main()
}
