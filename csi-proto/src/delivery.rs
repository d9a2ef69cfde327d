//! Whether a request may have begun where it was to go.

/// Whether the other end may have begun a request that failed.
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It provably has not, and never will.
    NotSent,
    /// It may have: the request may be running, or have ended.
    Unknown,
}
