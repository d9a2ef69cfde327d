//! Finds the type of a message by its name.

use std::fmt::Debug;

use prost_reflect::prost::Message;

include!("../generated/messages.rs");

/// A visitor of message types.
pub(crate) trait Visitor {
    /// Its result.
    type Output;

    /// Visits one type.
    fn visit<M: Message + Default + Debug>(self) -> Self::Output;
}
