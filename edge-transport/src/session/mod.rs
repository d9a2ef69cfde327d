//! The session core: what one end of a link does, without a socket, a clock or a task.
//!
//! [`Hop`] is the state of the link itself: hello, liveness, drain. [`Session`] adds the calls of a peer. Both have one
//! transition function that takes an event and the time, and answer with actions; whoever drives them carries the actions
//! out and calls again at the latest at `next_wakeup`. The call tables of a [`Session`] do not die with its link.

mod close;
mod core;
mod event;
mod hop;
mod requests;
mod serving;
mod settings;

pub use self::core::Session;
pub use close::CloseReason;
pub use event::{Action, Event, Incoming, Stats};
pub use hop::{Hop, HopAction, HopEvent, HopState, Remote, Role};
pub use serving::ServingId;
pub use settings::Settings;
