//! Checks of command lines that do not start the binary's work.

use std::process::Command;

use crate::binaries;

/// The programs with options that can be checked.
pub const PROGRAMS: [&str; 5] =
    ["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver", "quickstart"];

/// Checks that a program accepts each of these arguments. Required arguments may be missing.
///
/// # Errors
/// Returns the program, the arguments and the program's message.
///
/// # Panics
/// If the program cannot be started.
pub fn accepts(program: &str, arguments: &[String]) -> Result<(), String> {
    // clap parses from left to right, so a printed help means that all arguments before `--help` are valid.
    let output = Command::new(binaries::path(program))
        .args(arguments)
        .arg("--help")
        .env_clear()
        .output()
        .unwrap_or_else(|cause| panic!("{program}: {cause}"));
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(format!("{program} {}: {said}", arguments.join(" ")))
}
