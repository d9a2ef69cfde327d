//! Why a call failed, and the gRPC code that says so: the one place that knows the CSI error tables.

use std::io;
use std::path::PathBuf;

use tonic::{Code, Status};

use volume_manager::mounts::TableError;

use super::command::CommandError;
use super::identifier::ResourceId;
use edge_csi_common::state::PathError;

/// Why a CSI call failed.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A required field has no value.
    #[error("{field} is missing: give {expected}")]
    Missing {
        /// The field, as the schema names it.
        field: &'static str,
        /// What belongs there.
        expected: &'static str,
    },
    /// A field has a value that this driver does not take.
    #[error("{field} is {found:?}: expected {expected}")]
    Invalid {
        /// The field, as the schema names it.
        field: &'static str,
        /// What was given.
        found: String,
        /// What would have been taken.
        expected: String,
    },
    /// No volume, snapshot, group, node or staged path is known under this name.
    #[error("there is no {what} {found:?} here{hint}")]
    NotFound {
        /// The kind of thing, in the spec's terms.
        what: &'static str,
        /// What was asked for.
        found: String,
        /// What to do, or empty.
        hint: String,
    },
    /// The thing exists, and differs from what is asked for.
    #[error("{what} exists with another {difference}: {found} instead of {expected}")]
    Incompatible {
        /// What exists.
        what: String,
        /// In what it differs.
        difference: &'static str,
        /// How it is.
        found: String,
        /// How the caller wants it.
        expected: String,
    },
    /// Another call for the same thing is running.
    #[error("another operation on {0} is running: try again when it has ended")]
    Pending(String),
    /// A token that no earlier page gave out.
    #[error("starting_token {0:?} was not given out by this driver: list again from the start")]
    Token(String),
    /// The state of the volume does not allow this now.
    #[error("{what} {state}: {fix}")]
    Precondition {
        /// What is in the way.
        what: String,
        /// Its state.
        state: String,
        /// What has to happen first.
        fix: &'static str,
    },
    /// A size that no volume here can have.
    #[error("no size fits: {expected}, asked for {found}")]
    OutOfRange {
        /// What was asked for.
        found: String,
        /// What there is.
        expected: String,
    },
    /// A limit of this driver or node is reached.
    #[error("{what} is limited to {limit}, and {found} would be needed: {fix}")]
    Exhausted {
        /// What ran out.
        what: &'static str,
        /// The bound, with its unit.
        limit: String,
        /// What it would take.
        found: String,
        /// What helps.
        fix: &'static str,
    },
    /// A file, a directory or a mount could not be used.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A tool of the system failed.
    #[error(transparent)]
    Tool(#[from] CommandError),
    /// The mount table cannot be read.
    #[error(transparent)]
    Mounts(#[from] TableError),
}

impl CallError {
    /// A field with a value that this driver does not take.
    pub(super) fn invalid(field: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Invalid { field, found: found.to_string(), expected: expected.into() }
    }

    /// An unknown volume.
    pub(super) fn no_volume(found: impl ToString) -> Self {
        Self::NotFound { what: "volume", found: found.to_string(), hint: String::new() }
    }

    /// An unknown snapshot.
    pub(super) fn no_snapshot(found: impl ToString) -> Self {
        Self::NotFound { what: "snapshot", found: found.to_string(), hint: String::new() }
    }

    /// A volume that is in the wrong state.
    pub(super) fn volume_state(id: &ResourceId, state: impl Into<String>, fix: &'static str) -> Self {
        Self::Precondition { what: format!("volume {id}"), state: state.into(), fix }
    }

    /// A path that could not be used.
    pub(super) fn path(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Path(PathError { action, path: path.into(), source })
    }

    /// The code of the error tables of the spec.
    pub fn code(&self) -> Code {
        match self {
            Self::Missing { .. } | Self::Invalid { .. } => Code::InvalidArgument,
            Self::NotFound { .. } => Code::NotFound,
            Self::Incompatible { .. } => Code::AlreadyExists,
            Self::Pending(_) | Self::Token(_) => Code::Aborted,
            Self::Precondition { .. } => Code::FailedPrecondition,
            Self::OutOfRange { .. } => Code::OutOfRange,
            Self::Exhausted { .. } => Code::ResourceExhausted,
            Self::Path(error) if error.source.kind() == io::ErrorKind::StorageFull => Code::ResourceExhausted,
            Self::Path(_) | Self::Tool(_) | Self::Mounts(_) => Code::Internal,
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_the_code_of_the_spec() {
        let text = String::new;
        for (error, code) in [
            (CallError::Missing { field: "name", expected: "a name" }, Code::InvalidArgument),
            (CallError::Invalid { field: "name", found: text(), expected: text() }, Code::InvalidArgument),
            (CallError::no_volume("x"), Code::NotFound),
            (CallError::Pending(text()), Code::Aborted),
            (CallError::Token(text()), Code::Aborted),
            (CallError::Precondition { what: text(), state: text(), fix: "" }, Code::FailedPrecondition),
            (CallError::OutOfRange { found: text(), expected: text() }, Code::OutOfRange),
            (
                CallError::Exhausted { what: "", limit: text(), found: text(), fix: "" },
                Code::ResourceExhausted,
            ),
            (CallError::path("open", "/x", io::ErrorKind::StorageFull.into()), Code::ResourceExhausted),
            (CallError::path("open", "/x", io::ErrorKind::PermissionDenied.into()), Code::Internal),
        ] {
            assert_eq!(error.code(), code, "{error}");
            assert!(!Status::from(error).message().is_empty());
        }
    }
}
