//! The session core: what one end of a link does, without a socket, a clock or a task.
//!
//! [`Hop`] is the state of the link itself: hello, liveness, drain. [`Session`] adds the calls of a peer. Both have one
//! transition function that takes an event and the time, and answer with actions; whoever drives them carries the actions
//! out and calls again at the latest at `next_wakeup`.
//!
//! A session runs over one link. When the link ends, its open calls end with [`LinkLost`](crate::frame::Reason::LinkLost) at the
//! requester and are [abandoned](Action::Abandoned) at the target; a call that is to survive that is made again by whoever made it.

mod close;
mod core;
mod event;
mod link_state;
mod requests;
mod serving;
mod settings;
mod used;

pub use self::core::Session;
pub use close::CloseReason;
pub use event::{Action, Event, Incoming, Stats};
pub use link_state::{Hop, HopAction, HopEvent, HopState, Remote, Role};
pub use serving::ServingId;
pub use settings::Settings;
pub(crate) use used::UsedNumbers;
