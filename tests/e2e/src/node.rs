//! A node's volumes in a process, which is asked line by line.

use std::fs::File;
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use super::error::RealError;
use super::setup::Setup;

/// A running `volume-node`. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    log: PathBuf,
}

impl Node {
    /// Starts it for one driver, and waits until it is there.
    pub(crate) fn start(setup: Setup<'_>, driver: (&str, &Path)) -> Result<Self, RealError> {
        let log = setup.logs.join("node.log");
        let file = |cause| RealError::File { path: log.clone(), cause };
        let mut child = Command::new(&setup.components.volume_node)
            .arg("--directory")
            .arg(setup.scratch)
            .args(["--driver", &format!("{}={}", driver.0, driver.1.display())])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(file)?)
            .spawn()
            .map_err(file)?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(file(std::io::ErrorKind::BrokenPipe.into()));
        };
        let mut node = Self { child, input, output: BufReader::new(output).lines(), log };
        node.line()?;
        Ok(node)
    }

    /// Gives an order: the answer, or why there is none.
    pub(crate) fn ask(&mut self, order: &str) -> Result<Result<String, String>, RealError> {
        let sent = self.input.write_all(format!("{order}\n").as_bytes());
        sent.map_err(|cause| RealError::File { path: self.log.clone(), cause })?;
        let line = self.line()?;
        Ok(match line.split_once(' ') {
            Some(("error", reason)) => Err(reason.to_owned()),
            Some((_, answer)) => Ok(answer.to_owned()),
            None => Ok(String::new()),
        })
    }

    fn line(&mut self) -> Result<String, RealError> {
        let ended = || Err(std::io::ErrorKind::UnexpectedEof.into());
        let line = self.output.next().unwrap_or_else(ended);
        line.map_err(|cause| RealError::File { path: self.log.clone(), cause })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Both fail only if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
