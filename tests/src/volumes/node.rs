//! A node's volumes in a separate process, which takes orders line by line and can be killed at any step.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::wait;

/// The options that start the process.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NodeOptions {
    /// The path of the program `volume-node`.
    pub program: PathBuf,
    /// The directory of the store and of the staging paths.
    pub directory: PathBuf,
    /// The log file.
    pub log: PathBuf,
    /// The driver's name and socket.
    pub driver: (String, PathBuf),
    /// The number of the boot, from 1.
    pub boot: u32,
    /// The number of the step, from 1, before which the process kills itself.
    pub kill_at: Option<u64>,
}

impl NodeOptions {
    /// Options for the first boot, with the log in the directory, and without a kill.
    #[must_use]
    pub fn new(program: &Path, directory: &Path, driver: &str, socket: &Path) -> Self {
        Self {
            program: program.to_owned(),
            directory: directory.to_owned(),
            log: directory.join("node.log"),
            driver: (driver.to_owned(), socket.to_owned()),
            boot: 1,
            kill_at: None,
        }
    }
}

/// A running `volume-node`. Killed when dropped.
pub struct NodeProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

/// The process ended before it answered.
#[allow(clippy::exhaustive_structs, reason = "there is nothing to add")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended;

impl NodeProcess {
    /// Starts the process, and returns when it manages its volumes.
    ///
    /// # Errors
    /// If the process ended before.
    ///
    /// # Panics
    /// If the program cannot be started or its first line is unexpected.
    pub async fn start(options: &NodeOptions) -> Result<Self, Ended> {
        let log = options.log.clone();
        let stderr = File::options().create(true).append(true).open(&log).expect("a log");
        let mut command = Command::new(&options.program);
        command.arg("--directory").arg(&options.directory).args(["--boot", &options.boot.to_string()]);
        command.args(["--driver", &format!("{}={}", options.driver.0, options.driver.1.display())]);
        if let Some(step) = options.kill_at {
            command.args(["--kill-at", &step.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(stderr).kill_on_drop(true);
        let mut child = command.spawn().expect("volume-node is built with the tests");
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let (input, output) = (input.expect("piped"), BufReader::new(output.expect("piped")).lines());
        let mut node = Self { child, input, output, log };
        match node.line().await?.as_str() {
            "ready" => Ok(node),
            other => panic!("volume-node printed {other:?}, expected \"ready\"; its log:\n{}", node.log()),
        }
    }

    /// Sends an order, and returns its result or its error.
    ///
    /// # Errors
    /// If the process ended before it answered.
    pub async fn ask(&mut self, order: &str) -> Result<Result<String, String>, Ended> {
        let sent = self.input.write_all(format!("{order}\n").as_bytes()).await;
        if sent.is_err() {
            return self.ended().await;
        }
        let line = self.line().await?;
        Ok(match line.split_once(' ') {
            Some(("error", reason)) => Err(reason.to_owned()),
            Some(("ok", answer)) => Ok(answer.to_owned()),
            _ if line == "ok" => Ok(String::new()),
            _ => panic!("volume-node printed {line:?}, expected a line with \"ok\" or \"error\""),
        })
    }

    /// Sends an order, and returns its result.
    ///
    /// # Panics
    /// If the order fails or the process ends.
    pub async fn must(&mut self, order: &str) -> String {
        match self.ask(order).await {
            Ok(Ok(answer)) => answer,
            other => panic!("{order}: {other:?}; the log:\n{}", self.log()),
        }
    }

    /// Repeats an order until it succeeds.
    ///
    /// # Panics
    /// If the order still fails after [`wait::SOON`], or the process ends.
    pub async fn at_last(&mut self, order: &str) -> String {
        let since = std::time::Instant::now();
        loop {
            match self.ask(order).await {
                Ok(Ok(answer)) => return answer,
                Ok(Err(reason)) => {
                    assert!(since.elapsed() < wait::SOON, "{order}: {reason}; the log:\n{}", self.log());
                }
                Err(Ended) => panic!("{order}: the process ended; its log:\n{}", self.log()),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Waits until the process manages no volume.
    ///
    /// # Errors
    /// If the process ended before.
    ///
    /// # Panics
    /// If a volume is still managed after [`wait::SOON`].
    pub async fn wait_until_empty(&mut self) -> Result<(), Ended> {
        let since = std::time::Instant::now();
        loop {
            match self.ask("list").await? {
                Ok(list) if list.is_empty() => return Ok(()),
                list => assert!(since.elapsed() < wait::SOON, "left: {list:?}; the log:\n{}", self.log()),
            }
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    }

    /// Kills the process with SIGKILL, and waits until it has ended.
    pub async fn kill(mut self) {
        // An error means that the process has already ended.
        let _ = self.child.kill().await;
    }

    /// Returns the last 60 lines of the log, which contains the steps.
    #[must_use]
    pub fn log(&self) -> String {
        log_of(&self.log)
    }

    async fn line(&mut self) -> Result<String, Ended> {
        match wait::within("volume-node answers", self.output.next_line()).await {
            Ok(Some(line)) => Ok(line),
            _ => self.ended().await,
        }
    }

    async fn ended<T>(&mut self) -> Result<T, Ended> {
        let _ = wait::within("volume-node ends", self.child.wait()).await;
        Err(Ended)
    }
}

impl fmt::Debug for NodeProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeProcess").field("pid", &self.child.id()).finish_non_exhaustive()
    }
}

/// Returns the last 60 lines of a log.
#[must_use]
pub fn log_of(path: &Path) -> String {
    let text = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<_> = text.lines().collect();
    lines.get(lines.len().saturating_sub(60)..).unwrap_or_default().join("\n")
}
