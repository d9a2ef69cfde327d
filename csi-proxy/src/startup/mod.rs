//! The questions that sidecars ask when they start, answered without the driver.
//!
//! A sidecar exits when one of them fails, so they never travel with the sidecar waiting. The endpoint asks them by itself, in
//! the background, and answers from what it has learnt: see [`Startup`] for the rules. What it has learnt is kept in a
//! [`FactsStore`], so that sidecars can start while the edge is off; [`View`] says how old it is.

#[cfg(feature = "runtime")]
mod age;
mod core;
mod facts;
#[cfg(feature = "runtime")]
mod learner;
mod question;
#[cfg(feature = "runtime")]
mod store;
#[cfg(feature = "runtime")]
mod view;

pub use self::core::{Answer, Effect, Event, Startup};
pub use self::facts::{Fact, Facts, Subject};
#[cfg(feature = "runtime")]
pub(crate) use self::learner::Learner;
pub use self::question::Question;
#[cfg(feature = "runtime")]
pub use self::store::{
    DirectoryFacts, FactsStore, FaultyFacts, KeepError, Kept, LoadError, MAX_DRIVERS, MAX_RECORD,
    MAX_SET_ASIDE, MemoryFacts, RecordError, VERSION, conformance,
};
#[cfg(feature = "runtime")]
pub use self::view::{Status, View};
