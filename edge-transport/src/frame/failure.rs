//! Failures of the transport, as opposed to the service.

use std::fmt;

use super::MAX_TEXT;
pub use crate::generated::session::failure::Reason;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str_name())
    }
}

/// A call that the transport ended. Errors of the service itself are never reported as a `Failure`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Failure {
    reason: Reason,
    detail: Box<str>,
}

impl Failure {
    /// Creates a failure. A detail longer than [`MAX_TEXT`] is truncated.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: truncate(detail.into()).into_boxed_str() }
    }

    /// The reason.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// Human-readable detail.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Truncates a text to [`MAX_TEXT`] bytes at a character boundary.
pub(crate) fn truncate(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
