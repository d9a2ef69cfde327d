//! `edge-csi-driver`: see [`edge_csi_examples::csi_driver`].

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::core_dumps::forbid();
    edge_csi_examples::csi_driver::main()
}
