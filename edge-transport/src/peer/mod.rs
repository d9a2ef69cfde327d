//! A peer: keeps one session to a hub over any of its paths, calls services of other peers and provides its own.

pub(crate) mod backoff;
#[cfg(feature = "runtime")]
pub(crate) mod builder;
#[cfg(feature = "runtime")]
mod call;
#[cfg(feature = "runtime")]
mod credit_window;
#[cfg(feature = "runtime")]
mod handle;
#[cfg(feature = "runtime")]
mod hub_set;
#[cfg(feature = "runtime")]
mod refusal;
#[cfg(feature = "runtime")]
mod runtime;
#[cfg(feature = "runtime")]
mod service;
#[cfg(feature = "runtime")]
mod state;

#[cfg(feature = "runtime")]
pub(crate) use backoff::Backoff;
#[cfg(feature = "runtime")]
pub use builder::PeerBuilder;
#[cfg(feature = "runtime")]
pub(crate) use builder::PeerSettings;
#[cfg(feature = "runtime")]
pub use call::{CallError, ReplyEvent, ReplyStream};
#[cfg(feature = "runtime")]
pub use handle::Peer;
#[cfg(feature = "runtime")]
pub use hub_set::HubSet;
#[cfg(feature = "runtime")]
pub use refusal::{ConnectError, Refusal};
#[cfg(feature = "runtime")]
pub use service::{Cancelled, ReplySender, Service};
#[cfg(feature = "runtime")]
pub use state::PeerState;
