//! `quickstart`: see [`quickstart`].

use std::process::ExitCode;

fn main() -> ExitCode {
    quickstart::main()
}
