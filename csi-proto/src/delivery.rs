//! Whether a request may have been delivered.

/// Whether the driver may have received the request of a failed attempt.
#[allow(clippy::exhaustive_enums, reason = "a request was provably not sent, or may have been sent")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// The driver provably has not received the request, and no copy of it can arrive later.
    NotSent,
    /// The driver may have received the request: the operation may be running or complete.
    Unknown,
}
