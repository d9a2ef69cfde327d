//! How a drain ended.

/// The result of a drain or shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drained {
    /// Every open call was answered.
    All,
    /// The bound expired first: open calls ended with [`Fault::Draining`](crate::Fault::Draining). Work at drivers
    /// continues.
    Some,
}
