//! Running the system's storage tools with a limit on time, and saying in their own words why one failed.

use std::io;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// How long a tool may take that works in constant time.
pub const SHORT: Duration = Duration::from_secs(60);
/// How long a tool may take that reads or writes a whole volume.
pub const LONG: Duration = Duration::from_secs(3600);

// Most bytes of a tool's words that go into an error.
const MAX_WORDS: usize = 1024;

/// Why a tool did not do its work.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The tool could not be started.
    #[error("cannot run {program}: {source}; it belongs to the Debian package {package}")]
    Start {
        /// The tool.
        program: &'static str,
        /// Where it comes from.
        package: &'static str,
        /// Why it did not start.
        source: io::Error,
    },
    /// The tool failed.
    #[error("{program} failed on {on} with {status}: {words}")]
    Failed {
        /// The tool.
        program: &'static str,
        /// Its last argument: what it worked on.
        on: String,
        /// Its exit status.
        status: ExitStatus,
        /// What it said on stderr.
        words: String,
    },
    /// The tool did not end in time.
    #[error("{program} did not end on {on} within {} s and was killed", limit.as_secs())]
    TimedOut {
        /// The tool.
        program: &'static str,
        /// Its last argument: what it worked on.
        on: String,
        /// What it was given.
        limit: Duration,
    },
}

/// Runs a tool that must end with status 0.
///
/// # Errors
/// If it does not start, fails, or does not end in time.
pub fn run(program: &'static str, arguments: &[&str], limit: Duration) -> Result<(), CommandError> {
    output(program, arguments, limit, |code| code == 0).map(drop)
}

/// Runs a tool that must end with a status that is a success, and gives what it printed.
///
/// # Errors
/// As [`run`].
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
            // It may have ended in this moment.
            let _ = kill_process(pid, Signal::KILL);
        }
        return Err(CommandError::TimedOut { program, on, limit });
    };
    let Output { status, stdout, stderr } = output.map_err(start)?;
    if status.code().is_some_and(is_success) {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = if stderr.is_empty() { stdout } else { stderr };
    let words = String::from_utf8_lossy(&said[..said.len().min(MAX_WORDS)]);
    let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
    Err(CommandError::Failed { program, on, status, words })
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
    fn a_failing_tool_is_quoted_and_a_missing_one_names_its_package() {
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
