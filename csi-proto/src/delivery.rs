//! Whether a request may have begun where it was to go.

/// Whether the driver may have the request of one attempt that failed.
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// It provably has not, and no copy of that attempt is left that could still reach it.
    NotSent,
    /// It may have: the operation may be running, or have ended.
    Unknown,
}
