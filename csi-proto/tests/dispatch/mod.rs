//! From a message's name to its type.

use std::fmt::Debug;

use prost_reflect::prost::Message;

include!("../generated/messages.rs");

/// What to do with a type.
pub(crate) trait Visitor {
    /// What comes of it.
    type Output;

    /// Does it for one type.
    fn visit<M: Message + Default + Debug>(self) -> Self::Output;
}
