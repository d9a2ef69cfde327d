//! The session core: the protocol of one end of a link, without socket, clock or task.
//!
//! [`LinkCore`] is the state machine of the link itself: hello, liveness, drain. [`Session`] adds the calls of a peer. Both
//! have one transition function that takes an event and the time and produces actions. The driver executes the actions and
//! calls again at `next_wakeup` at the latest.
//!
//! A session runs over one link. When the link ends, its open calls end with [`LinkLost`](crate::Reason::LinkLost) at
//! the requester and are [cancelled](Action::Cancelled) at the target. The caller decides whether to retry.

mod close_reason;
mod core;
mod event;
mod inbound;
mod link_core;
mod liveness;
mod outbound;
mod settings;
mod used_numbers;

pub use self::core::Session;
pub use close_reason::CloseReason;
pub use event::{Action, Event, Incoming, Stats};
pub use inbound::InboundCallId;
pub use link_core::{LinkAction, LinkCore, LinkEvent, LinkState, Remote, Role};
pub use settings::SessionSettings;
#[cfg(feature = "runtime")]
pub(crate) use settings::time_to_transfer;
pub(crate) use used_numbers::UsedNumbers;
