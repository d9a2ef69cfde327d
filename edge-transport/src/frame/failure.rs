//! How the transport, and not the service, ends a call.

use std::fmt;

use super::MAX_TEXT;
pub use crate::generated::session::failure::Reason;

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str_name())
    }
}

/// The transport ended a call. What the service itself says about a call never comes as this.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {detail}")]
pub struct Failure {
    reason: Reason,
    detail: Box<str>,
}

impl Failure {
    /// Says why a call ended. A detail longer than [`MAX_TEXT`] is cut.
    #[must_use]
    pub fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: cut(detail.into()).into_boxed_str() }
    }

    /// Why.
    #[must_use]
    pub const fn reason(&self) -> Reason {
        self.reason
    }

    /// More, for people.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }
}

/// Cuts a text to its bound, at a character's end.
pub(crate) fn cut(mut text: String) -> String {
    if text.len() > MAX_TEXT {
        let end = (0..=MAX_TEXT).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}
