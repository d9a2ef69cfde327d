//! `hostpath-driver`: see [`hostpath_driver`].

use std::process::ExitCode;

fn main() -> ExitCode {
    hostpath_driver::main()
}
