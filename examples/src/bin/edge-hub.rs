//! `edge-hub`: see [`edge_csi_examples::hub`].

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::hub::main()
}
