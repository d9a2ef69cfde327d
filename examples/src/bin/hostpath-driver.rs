//! `hostpath-driver`: see [`edge_csi_examples::hostpath`].

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::hostpath::main()
}
