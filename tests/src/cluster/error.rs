//! Errors of a cluster.

use std::io;
use std::path::PathBuf;

use crate::process::ProcessError;

/// Why a cluster cannot be started or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages document the variants")]
pub enum ClusterError {
    #[error("cannot create the cluster's directory: {cause}")]
    Directory { cause: io::Error },
    #[error("the socket path {path} has {found} bytes; expected at most 107: set TMPDIR to a shorter folder", path = path.display(), found = path.as_os_str().len())]
    PathTooLong { path: PathBuf },
    #[error("{role} was not started")]
    NotStarted { role: &'static str },
    #[error(transparent)]
    Process(#[from] ProcessError),
}
