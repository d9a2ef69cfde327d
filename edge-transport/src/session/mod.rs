//! The session core: what one end of a link does, without a socket, a clock or a task.
//!
//! [`Hop`] is the state of the link itself: hello, liveness, drain. [`Session`] adds the calls of a peer. Both have one
//! transition function that takes an event and the time, and answer with actions; whoever drives them carries the actions
//! out and calls again at the latest at `next_wakeup`.
//!
//! The call tables of a [`Session`] do not die with its link. Where both ends of the link name
//! [`FEATURE_RESUME`](crate::frame::FEATURE_RESUME), a call goes on when there is a way again: the requester says which reply it
//! waits for, and the target sends what it has kept since, or says that it never saw the request, which is then sent again. What a
//! target answers it keeps until the requester has acknowledged the end, [`Settings::max_kept`] is reached, or nobody can ask any more.
//! Which of these it was is told to whoever asks: [`Action::Delivery`].

mod acks;
mod close;
mod core;
mod event;
mod hop;
mod requests;
mod serving;
mod settings;

pub use self::core::Session;
pub use close::CloseReason;
pub use event::{Action, Delivery, Event, Incoming, Stats};
pub use hop::{Hop, HopAction, HopEvent, HopState, Remote, Role};
pub use serving::ServingId;
pub use settings::Settings;
