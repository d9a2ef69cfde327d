//! One random trace of orders to a node's volumes, put to different drivers.
//!
//! A [`Model`] holds the expected state after each step, for every driver: which volume is at which target, how, and
//! that nothing else is. A driver may do otherwise only by a [`Deviation`], which states its reason, and which has to be
//! there: a deviation that no longer occurs fails.

mod driver;
mod model;
mod observed;
mod run;

pub use driver::{Deviation, TracedDriver};
pub use model::{Answer, CONSUMERS, Model, Order, Step, VOLUMES};
pub use run::{Trace, run};
