//! Who is there: a hub tells peers that ask which others offer a service, as they come and go.
//!
//! A hub that was built with [`HubBuilder::presence`](crate::hub::HubBuilder::presence) answers the service [`SERVICE`] itself, by
//! the name in its hello. A call of it never ends by itself: its messages are a list of those that are there, then what changes.
//! It is a call like any other, over any link: it is resumed after a short cut, and made anew by a [`Watch`] after a longer one,
//! which then starts with a list again. What a reader has not taken is not kept for it: it gets a new list.
//!
//! Somebody is told only of peers that the hub's policy lets it call, and who may call nobody may not ask either
//! ([`Policy::may_watch`](crate::hub::Policy::may_watch)).
//!
//! An operator may declare that a peer is [gone for good](crate::hub::Hub::declare_gone). A hub that is given a [`KeepGone`] remembers that
//! over a restart.
//!
//! # The messages
//!
//! ```proto
//! message Question {
//!   string service = 1;    // the service that is asked for; not with a report
//!   Report report = 2;     // instead of a question: what was done about a peer that is gone
//!   repeated string only = 3;  // the only peers that are of interest, at most 64; none: all
//! }
//! message Report {
//!   string peer = 1;
//!   bool done = 2;         // nothing of it is left
//!   string words = 3;      // for people, at most 512 bytes
//! }
//! message Update {         // each message of the answer
//!   bool reset = 1;        // a list begins
//!   repeated Entry up = 2;
//!   repeated string down = 3;
//!   repeated string gone = 4;  // gone for good, an operator says
//!   bool complete = 5;     // the list is complete: who was not in it is not there
//! }
//! message Entry {
//!   string peer = 1;
//!   uint64 epoch = 2;      // the life of it
//! }
//! ```

#[cfg(feature = "runtime")]
mod gone;
mod roster;
#[cfg(feature = "runtime")]
mod service;
#[cfg(feature = "runtime")]
mod watch;
mod wire;

#[cfg(feature = "runtime")]
pub(crate) use self::gone::Gone;
#[cfg(feature = "runtime")]
pub use self::gone::{GoneError, KeepGone, MAX_GONE, Report};
pub use self::roster::{Change, MAX_KNOWN};
#[cfg(feature = "runtime")]
pub(crate) use self::service::{PresenceService, watchers_of};
#[cfg(feature = "runtime")]
pub use self::watch::{ReportError, Watch};

/// The name under which a hub tells who is there.
pub const SERVICE: &str = "presence";

/// Longest words of a report, in bytes. Longer ones are cut.
pub const MAX_WORDS: usize = 512;

/// The words, or as many of them as are allowed.
#[cfg(feature = "runtime")]
fn cut(words: &str) -> &str {
    let end = (0..=MAX_WORDS.min(words.len())).rfind(|end| words.is_char_boundary(*end));
    words.get(..end.unwrap_or(0)).unwrap_or_default()
}
