//! A binary that runs as a process of its own, with its log.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::{binaries, wait};

/// A running binary. Killed when dropped; its log is printed then if the test is failing, and otherwise must show no panic.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
    /// The same file, also when something else has its name.
    written: File,
    ended: Option<ExitStatus>,
}

impl Process {
    /// Starts `binary` with `arguments`; its stderr goes to `DIRECTORY/NAME.log`.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start<A: AsRef<OsStr>>(
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        Self::start_with(directory, name, binary, arguments, &[])
    }

    /// The same with variables in its environment.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_with<A: AsRef<OsStr>>(
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &str)],
    ) -> Self {
        Self::start_after(&[], directory, name, binary, arguments, environment)
    }

    /// The same, started by the command `before`, such as one that enters a network namespace.
    ///
    /// # Panics
    /// If it cannot be started.
    #[must_use]
    pub fn start_after<A: AsRef<OsStr>>(
        before: &[&str],
        directory: &Path,
        name: &str,
        binary: &str,
        arguments: impl IntoIterator<Item = A>,
        environment: &[(&str, &str)],
    ) -> Self {
        let log = directory.join(format!("{name}.log"));
        let stderr = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .unwrap_or_else(|cause| panic!("{log:?}: {cause}"));
        let written = File::open(&log).unwrap_or_else(|cause| panic!("{log:?}: {cause}"));
        let binary = match Path::new(binary) {
            path if path.is_absolute() => path.to_owned(),
            _ => binaries::path(binary),
        };
        let mut command = match before {
            [] => Command::new(binary),
            [program, rest @ ..] => {
                let mut command = Command::new(program);
                command.args(rest).arg(binary);
                command
            }
        };
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        // What the developer has set must not change what the tests see.
        for variable in ["RUST_LOG", "CSI_ENDPOINT", "CSI_DRIVERNAME", "KUBEEDGE_ENDPOINT", "KUBE_NODE_NAME"]
        {
            command.env_remove(variable);
        }
        command.envs(environment.iter().copied());
        let child = command.spawn().unwrap_or_else(|cause| panic!("{command:?}: {cause}"));
        Self { name: name.to_owned(), child, log, written, ended: None }
    }

    /// What the process has logged so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }

    /// Waits until the log holds `text`.
    ///
    /// # Panics
    /// If it does not come in time.
    pub async fn logged(&self, text: &str) {
        wait::until(&format!("{} logs {text:?}", self.name), async || {
            self.log().contains(text).then_some(())
        })
        .await;
    }

    /// The number of the process.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Memory that it has, in KiB; none once it has ended.
    #[must_use]
    pub fn resident_kib(&self) -> Option<u64> {
        self.memory("VmRSS:")
    }

    /// The most that it ever had, in KiB; none once it has ended.
    #[must_use]
    pub fn peak_kib(&self) -> Option<u64> {
        self.memory("VmHWM:")
    }

    fn memory(&self, name: &str) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().trim_end_matches(" kB").parse().ok()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// If the process has ended.
    pub fn signal(&self, signal: Signal) {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("the kernel gave this number");
        kill_process(pid, signal).unwrap_or_else(|cause| panic!("{}: {cause}", self.name));
    }

    /// Kills it as a power cut would, and waits until it is gone.
    pub fn kill(&mut self) {
        if self.ended.is_none() {
            let _ = self.child.kill();
            self.ended = self.child.wait().ok();
        }
    }

    /// Whether it still runs.
    pub fn runs(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended.is_none()
    }

    /// Waits for its end.
    ///
    /// # Panics
    /// If it runs on.
    pub async fn ended(&mut self) -> ExitStatus {
        let what = format!("{} ends", self.name);
        let since = std::time::Instant::now();
        while self.runs() {
            assert!(since.elapsed() < wait::SOON, "waited for this: {what}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        self.ended.unwrap_or_else(|| panic!("{what}: no status"))
    }
}

impl fmt::Debug for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Process")
            .field("name", &self.name)
            .field("pid", &self.child.id())
            .finish_non_exhaustive()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            eprintln!("---- log of {} ----\n{}", self.name, self.log());
            return;
        }
        // A task that panics ends alone, and what it was to do may be done by the next try.
        let mut written = Vec::new();
        let read = self.written.read_to_end(&mut written);
        assert!(read.is_ok(), "log of {}: {read:?}", self.name);
        let written = String::from_utf8_lossy(&written);
        let panic = written.lines().find(|line| line.contains("panicked at"));
        assert!(panic.is_none(), "{}: {panic:?}\n{written}", self.name);
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use super::*;

    #[tokio::test]
    async fn a_panic_in_a_log_fails_the_test_even_if_the_log_is_gone() {
        let line = "thread 'tokio-rt-worker' panicked at x.rs:1:2:";
        for (removed, text, fails) in [(false, "all is well", false), (false, line, true), (true, line, true)]
        {
            let directory = tempfile::tempdir().unwrap();
            let mut process =
                Process::start(directory.path(), "sh", "/bin/sh", ["-c", &format!("echo \"{text}\" >&2")]);
            let _ = process.ended().await;
            if removed {
                std::fs::remove_file(directory.path().join("sh.log")).unwrap();
            }
            let dropped = std::panic::catch_unwind(AssertUnwindSafe(|| drop(process)));
            assert_eq!(dropped.is_err(), fails, "{text}, {removed}");
        }
    }
}
