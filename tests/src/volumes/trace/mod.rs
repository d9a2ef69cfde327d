//! One random trace of orders to a node's volumes, put to different drivers.
//!
//! A [`Model`] says what has to stand after each step, whatever the driver: which volume is at which target, how, and
//! that nothing else is. A driver may do otherwise only by a [`Deviation`], which states its reason, and which has to be
//! there: one that has become needless fails.

mod driver;
mod model;
mod observed;
mod run;

pub use driver::{Deviation, TracedDriver};
pub use model::{Answer, CONSUMERS, Model, Order, Step, VOLUMES};
pub use run::{Trace, run};
