//! The names of a typical program: `use csi_proxy::prelude::*;`.

pub use crate::{
    Call, ClockTerms, Dispatcher, DriverName, Endpoint, Fault, NodeId, Outcome, Relay, Replies, RetryRelay,
    Router, SocketAddress,
};
#[cfg(feature = "edge-transport")]
pub use crate::{ServeCsi, SessionRelay};
