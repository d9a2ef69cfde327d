//! One random trace of orders to a node's volumes, run on different drivers.
//!
//! A [`Model`] holds the expected state after each step, which is the same for every driver: the volume that is mounted
//! at each target, and whether read-only. A driver may differ from the model only by a [`Deviation`], which has a
//! reason.

mod driver;
mod model;
mod observed;
mod run;

pub use driver::{Deviation, TracedDriver};
pub use model::{Answer, CONSUMERS, Model, Order, Step, VOLUMES};
pub use run::{Trace, run};
