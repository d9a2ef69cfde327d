//! `--http-endpoint`: health for probes, metrics for Prometheus and a small page for people.
//!
//! | Path | Answer |
//! |---|---|
//! | `/livez` | 200 as long as the process runs |
//! | `/readyz` | 200, or 503 with the reason in one line |
//! | `/metrics` | Prometheus text format |
//! | `/` | the facts of [`Status::facts`] as a page |

mod page;
mod server;

use std::borrow::Cow;

pub use server::{StatusError, StatusServer};

/// The status of a binary.
pub trait Status: Send + Sync + 'static {
    /// Name of the binary.
    fn name(&self) -> &'static str;

    /// # Errors
    /// Why the process cannot do its work now, in one line.
    fn ready(&self) -> Result<(), String>;

    /// The rows of the page, in this order. Without secrets: every client that reaches the port can read it.
    fn facts(&self) -> Vec<Fact>;

    /// Sets the gauges and counters that are not kept up by themselves; called before they are read.
    fn publish_metrics(&self);
}

/// One line of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The name of the row.
    pub name: Cow<'static, str>,
    /// Its value.
    pub value: String,
}

impl Fact {
    /// Puts a line together.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}
