//! `quickstart`: see [`edge_csi_examples::quickstart`].

use std::process::ExitCode;

fn main() -> ExitCode {
    edge_csi_examples::quickstart::main()
}
