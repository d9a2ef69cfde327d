//! Whether a request may have been delivered.

/// Whether the driver may have received the request of a failed attempt.
#[allow(clippy::exhaustive_enums, reason = "there is no third")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The driver provably has not received it, and no copy of it can arrive later.
    NotSent,
    /// The driver may have received it: the operation may be running or complete.
    Unknown,
}
