//! Runs the system's storage tools with a time limit, and reports a failure with the tool's own output.

use std::io;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// Time limit of a tool that works in constant time.
pub const SHORT: Duration = Duration::from_secs(60);
/// Time limit of a tool that reads or writes a whole volume.
pub const LONG: Duration = Duration::from_secs(3600);

// Maximum length in bytes of a tool's output in an error.
const MAX_OUTPUT_BYTES: usize = 1024;

/// The failure of a tool.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The tool could not be started.
    #[error("cannot run {program}: {source}; it belongs to the Debian package {package}")]
    Start {
        /// The tool.
        program: &'static str,
        /// The package of the tool.
        package: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// The tool failed.
    #[error("{program} failed on {on} with {status}: {message}")]
    Failed {
        /// The tool.
        program: &'static str,
        /// The tool's last argument, which names its object.
        on: String,
        /// Its exit status.
        status: ExitStatus,
        /// The tool's stderr, or its stdout if stderr is empty.
        message: String,
    },
    /// The tool exceeded its time limit.
    #[error("{program} did not end on {on} within {} s and was killed", limit.as_secs())]
    TimedOut {
        /// The tool.
        program: &'static str,
        /// The tool's last argument, which names its object.
        on: String,
        /// The time limit.
        limit: Duration,
    },
}

/// Runs a tool that must end with status 0.
///
/// # Errors
/// Returns an error if the tool does not start, fails, or exceeds its time limit.
pub fn run(program: &'static str, arguments: &[&str], limit: Duration) -> Result<(), CommandError> {
    output(program, arguments, limit, |code| code == 0).map(drop)
}

/// Runs a tool that must end with a success status, and returns its output.
///
/// # Errors
/// Returns the errors of [`run`].
pub fn output(
    program: &'static str,
    arguments: &[&str],
    limit: Duration,
    is_success: impl FnOnce(i32) -> bool,
) -> Result<String, CommandError> {
    let start = |source| CommandError::Start { program, package: package_of(program), source };
    let on = arguments.last().copied().unwrap_or_default().to_owned();
    let child = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(start)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let (ended, wait) = mpsc::sync_channel(1);
    // The thread ends with the tool. If the tool hangs in the kernel, only this thread hangs with it.
    thread::spawn(move || ended.send(child.wait_with_output()));
    let Ok(output) = wait.recv_timeout(limit) else {
        if let Some(pid) = pid {
            // The tool may have just ended.
            let _ = kill_process(pid, Signal::KILL);
        }
        return Err(CommandError::TimedOut { program, on, limit });
    };
    let Output { status, stdout, stderr } = output.map_err(start)?;
    if status.code().is_some_and(is_success) {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let printed = if stderr.is_empty() { stdout } else { stderr };
    let message = String::from_utf8_lossy(&printed[..printed.len().min(MAX_OUTPUT_BYTES)]);
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(CommandError::Failed { program, on, status, message })
}

fn package_of(program: &str) -> &'static str {
    match program {
        "mkfs.ext4" | "resize2fs" | "e2fsck" => "e2fsprogs",
        "mkfs.xfs" | "xfs_growfs" => "xfsprogs",
        "cp" | "rm" => "coreutils",
        "mount" => "mount",
        _ => "util-linux",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_tool_is_quoted_and_missing_tool_names_its_package() {
        let error = run("cp", &["/nonexistent-source", "/tmp"], SHORT).unwrap_err();
        assert!(error.to_string().contains("nonexistent-source"), "{error}");
        let error = run("no-such-tool-anywhere", &[], SHORT).unwrap_err();
        assert!(matches!(error, CommandError::Start { .. }), "{error}");
    }

    #[test]
    fn a_tool_that_hangs_is_ended() {
        let error = run("sleep", &["1000"], Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, CommandError::TimedOut { .. }), "{error}");
    }
}
