//! Presence: a hub reports to watching peers which other peers provide a service, and every change.
//!
//! A hub that was built with [`HubBuilder::presence`](crate::hub::HubBuilder::presence) answers the service [`SERVICE`] itself,
//! under the name in its hello. The call stays open: it sends a list of the connected peers, then every change. Like
//! any other call, it ends with its link. A [`Watch`] repeats the call, which starts with a list again. The hub does
//! not buffer changes for a slow reader: it sends a new list.
//!
//! A watcher sees only peers that the hub's policy allows it to call. A peer that may not call any other may not watch either
//! ([`Policy::may_watch`](crate::hub::Policy::may_watch)). The messages `PresenceRequest` and `PresenceUpdate` are part of the
//! published schema.

mod peer_set;
#[cfg(feature = "runtime")]
mod service;
#[cfg(feature = "runtime")]
mod watch;
mod wire;

pub use self::peer_set::{Change, MAX_PEERS};
#[cfg(feature = "runtime")]
pub(crate) use self::service::PresenceService;
#[cfg(feature = "runtime")]
pub use self::watch::Watch;

/// The name of the hub's presence service.
pub const SERVICE: &str = "presence";
