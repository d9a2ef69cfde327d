//! The errors of a run with third-party components.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use edge_csi_tests::cluster::ClusterError;
use edge_csi_tests::process::ProcessError;

use super::FREE_BYTES;

/// An error of a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum E2eError {
    #[error("{name} is {found:?}; expected {expected}")]
    Variable { name: &'static str, found: OsString, expected: &'static str },
    #[error("cannot use the folder {path}", path = path.display())]
    Folder { path: PathBuf, cause: io::Error },
    #[error(
        "{path} has {free} MiB of free space; expected at least {} MiB: set TMPDIR to a folder on another disk",
        FREE_BYTES >> 20, path = path.display()
    )]
    DiskSpace {
        path: PathBuf,
        /// In MiB.
        free: u64,
    },
    #[error("cannot read or write {path}: {cause}", path = path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("cannot run {program}: {cause}; {fix}")]
    CannotRun { program: String, cause: io::Error, fix: &'static str },
    #[error("`{command}` ended with {status}:\n{output}")]
    Command { command: String, status: std::process::ExitStatus, output: String },
    #[error("the build has no output named {name}")]
    NoBinary { name: &'static str },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("csi-sanity left no usable report in {path}: {cause}; the end of its log:\n{tail}", path = path.display())]
    Report { path: PathBuf, cause: String, tail: String },
    #[error("the trace wrote no record; its log:\n{tail}")]
    Trace { tail: String },
    #[error("volume-node ended; the end of its log:\n{tail}")]
    NodeEnded { tail: String },
    #[error("no runtime can be started: {cause}")]
    Runtime { cause: io::Error },
    #[error("{path} shows {what}: {line}", path = path.display())]
    Log { path: PathBuf, what: &'static str, line: String },
    #[error("{asked}: no answer of the API server: {cause}")]
    Api { asked: String, cause: io::Error },
    #[error("{asked}: the API server answered {status}: {said}")]
    Refused { asked: String, status: u16, said: String },
    #[error("timed out after {seconds} s: {waited_for}; last state: {last}", seconds = bound.as_secs())]
    Timeout { waited_for: String, bound: Duration, last: String },
    #[error("the overlay has no container {name} with arguments")]
    NoContainer { name: String },
    #[error("no process {name} was started")]
    NoProcess { name: String },
    #[error("the commands of {page} failed:\n{tail}")]
    Guide { page: String, tail: String },
    #[error("tests failed; see the table of results")]
    TestsFailed,
    #[error("interrupted; all started processes have ended")]
    Interrupted,
    #[error("left behind: {}", found.join("; "))]
    Leftovers { found: Vec<String> },
}
