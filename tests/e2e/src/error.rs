//! The errors of a run against real components.

use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use edge_csi_tests::cluster::ClusterError;
use edge_csi_tests::process::ProcessError;

/// An error of a run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RealError {
    #[error("{name} is {found:?}; it should be {expected}")]
    Variable { name: &'static str, found: OsString, expected: &'static str },
    #[error("cannot use the folder {path}", path = path.display())]
    Folder { path: PathBuf, cause: io::Error },
    #[error("cannot read or write {path}: {cause}", path = path.display())]
    File { path: PathBuf, cause: io::Error },
    #[error("cannot run {program}: {cause}; {fix}")]
    Missing { program: String, cause: io::Error, fix: &'static str },
    #[error("`{command}` ended with {status}:\n{output}")]
    Command { command: String, status: std::process::ExitStatus, output: String },
    #[error("the build gave nothing called {name}")]
    NoBinary { name: &'static str },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Process(#[from] ProcessError),
    #[error("csi-sanity left no usable report in {path}: {cause}; the end of its log:\n{tail}", path = path.display())]
    Report { path: PathBuf, cause: String, tail: String },
    #[error("a trace has no record, since it ended so:\n{tail}")]
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
    #[error("not within {seconds} s: {waited_for}; at last: {last}", seconds = bound.as_secs())]
    NeverSo { waited_for: String, bound: Duration, last: String },
    #[error("the overlay has no container {name} with arguments")]
    NoContainer { name: String },
    #[error("no process {name} was started")]
    NoProcess { name: String },
    #[error("the commands of {page} failed:\n{tail}")]
    Guide { page: String, tail: String },
    #[error("the run is not as it should be; see its table")]
    Enclosed,
    #[error("interrupted; all started processes have ended")]
    Interrupted,
    #[error("left behind: {}", found.join("; "))]
    Leftovers { found: Vec<String> },
}
