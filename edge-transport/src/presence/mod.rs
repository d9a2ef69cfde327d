//! Who is there: a hub tells peers that ask which others offer a service, as they come and go.
//!
//! A hub that was built with [`HubBuilder::presence`](crate::hub::HubBuilder::presence) answers the service [`SERVICE`] itself, by
//! the name in its hello. A call of it never ends by itself: its messages are a list of those that are there, then what changes.
//! It is a call like any other, over any link: it ends with its link, and a [`Watch`] makes it anew, which then starts with a list
//! again. What a reader has not taken is not kept for it: it gets a new list.
//!
//! Somebody is told only of peers that the hub's policy lets it call, and who may call nobody may not ask either
//! ([`Policy::may_watch`](crate::hub::Policy::may_watch)).
//! Its messages are in the published schema, as `PresenceQuestion` and `PresenceUpdate`.

mod roster;
#[cfg(feature = "runtime")]
mod service;
#[cfg(feature = "runtime")]
mod watch;
mod wire;

pub use self::roster::{Change, MAX_KNOWN};
#[cfg(feature = "runtime")]
pub(crate) use self::service::PresenceService;
#[cfg(feature = "runtime")]
pub use self::watch::Watch;

/// The name under which a hub tells who is there.
pub const SERVICE: &str = "presence";
