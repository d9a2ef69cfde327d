//! `--http`: health for probes, metrics for Prometheus and a small page for people.
//!
//! | Path | Answer |
//! |---|---|
//! | `/healthz` | 200 as long as the process runs |
//! | `/readyz` | 200, or 503 with the reason in one line |
//! | `/metrics` | Prometheus text format |
//! | `/` | the facts of [`Status::facts`] as a page |

mod page;
mod server;

use std::borrow::Cow;

pub use server::{StatusError, StatusServer};

/// What a binary tells about itself.
pub trait Status: Send + Sync + 'static {
    /// Name of the binary.
    fn name(&self) -> &'static str;

    /// # Errors
    /// Why the process cannot do its work now, in one line.
    fn ready(&self) -> Result<(), String>;

    /// What the page shows, in this order. Nothing secret: whoever reaches the port can read it.
    fn facts(&self) -> Vec<Fact>;

    /// Sets the gauges and counters that are not kept up by themselves; called before they are read.
    fn publish_metrics(&self);
}

/// One line of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// What it is about.
    pub name: Cow<'static, str>,
    /// How it stands.
    pub value: String,
}

impl Fact {
    /// Puts a line together.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}
