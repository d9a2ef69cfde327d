//! The errors of calls, and their gRPC codes: the only place with the CSI error tables.

use std::io;
use std::path::PathBuf;

use tonic::{Code, Status};

use volume_manager::mounts::TableError;

use super::command::CommandError;
use super::identifier::ResourceId;
use edge_csi_common::state::PathError;

/// The error of a CSI call.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// A required field has no value.
    #[error("{field} is missing: give {expected}")]
    Missing {
        /// The field, as the schema names it.
        field: &'static str,
        /// The expected value.
        expected: &'static str,
    },
    /// A field has a value that this driver does not accept.
    #[error("{field} is {found:?}: expected {expected}")]
    Invalid {
        /// The field, as the schema names it.
        field: &'static str,
        /// The value in the request.
        found: String,
        /// The accepted values.
        expected: String,
    },
    /// No volume, snapshot, group, node or staged path is known under this name.
    #[error("{subject} {found:?} not found{hint}")]
    NotFound {
        /// The kind of the missing resource, in the spec's terms.
        subject: &'static str,
        /// The name in the request.
        found: String,
        /// Advice, or empty.
        hint: String,
    },
    /// The resource exists, and differs from the request.
    #[error("{subject} exists with another {difference}: {found} instead of {expected}")]
    Incompatible {
        /// The existing resource.
        subject: String,
        /// The property that differs.
        difference: &'static str,
        /// The existing value.
        found: String,
        /// The requested value.
        expected: String,
    },
    /// Another call for the same resource is running.
    #[error("another operation on {0} is running: try again when it has ended")]
    Pending(String),
    /// A token that no earlier page returned.
    #[error("starting_token {0:?} was not issued by this driver: list again from the start")]
    Token(String),
    /// The state of the volume does not allow this now.
    #[error("{subject} {state}: {fix}")]
    Precondition {
        /// The resource that prevents the call.
        subject: String,
        /// Its state.
        state: String,
        /// The necessary action before a retry.
        fix: &'static str,
    },
    /// A size that no volume can have here.
    #[error("size out of range: requested {found}; expected {expected}")]
    OutOfRange {
        /// The requested size.
        found: String,
        /// The possible sizes.
        expected: String,
    },
    /// A limit of this driver or node is reached.
    #[error("{subject} is limited to {limit}, and {found} would be needed: {fix}")]
    Exhausted {
        /// The exhausted resource.
        subject: &'static str,
        /// The bound, with its unit.
        limit: String,
        /// The required amount.
        found: String,
        /// A way to free or extend the resource.
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
    /// Creates an error for a field with an unaccepted value.
    pub(super) fn invalid(field: &'static str, found: impl ToString, expected: impl Into<String>) -> Self {
        Self::Invalid { field, found: found.to_string(), expected: expected.into() }
    }

    /// Creates an error for an unknown volume.
    pub(super) fn no_volume(found: impl ToString) -> Self {
        Self::NotFound { subject: "volume", found: found.to_string(), hint: String::new() }
    }

    /// Creates an error for an unknown snapshot.
    pub(super) fn no_snapshot(found: impl ToString) -> Self {
        Self::NotFound { subject: "snapshot", found: found.to_string(), hint: String::new() }
    }

    /// Creates an error for a volume in the wrong state.
    pub(super) fn volume_state(id: &ResourceId, state: impl Into<String>, fix: &'static str) -> Self {
        Self::Precondition { subject: format!("volume {id}"), state: state.into(), fix }
    }

    /// Creates an error for an inaccessible path.
    pub(super) fn path(action: &'static str, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Self::Path(PathError { action, path: path.into(), source })
    }

    /// Returns the code from the spec's error tables.
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
            (CallError::Precondition { subject: text(), state: text(), fix: "" }, Code::FailedPrecondition),
            (CallError::OutOfRange { found: text(), expected: text() }, Code::OutOfRange),
            (
                CallError::Exhausted { subject: "", limit: text(), found: text(), fix: "" },
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
