//! The questions that sidecars ask when they start, answered without the driver.
//!
//! A sidecar exits when one of them fails, so they never travel with the sidecar waiting. The endpoint asks them by itself, in
//! the background, and answers from what it has learnt: see [`Startup`] for the rules.

mod core;
mod facts;
#[cfg(feature = "runtime")]
mod learner;
mod question;

pub use self::core::{Answer, Effect, Event, Startup};
pub use self::facts::{Fact, Facts, FactsError, Subject};
#[cfg(feature = "runtime")]
pub(crate) use self::learner::Learner;
pub use self::question::Question;
