//! Whether a binary takes a command line, without being started.

use std::process::Command;

use crate::binaries;

/// The programs with options that can be checked.
pub const PROGRAMS: [&str; 5] =
    ["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver", "quickstart"];

/// Whether a program takes these arguments: each one exists and its value can be read. That all are there which have to be
/// is not asked.
///
/// # Errors
/// What the program says, in one line.
///
/// # Panics
/// If the program cannot be started.
pub fn accepts(program: &str, arguments: &[String]) -> Result<(), String> {
    // Arguments are read from left to right: those before it are accepted when the help is printed.
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
