//! `--http-endpoint`: health for probes, metrics for Prometheus and a small page for people.
//!
//! | Path | Answer |
//! |---|---|
//! | `/livez` | 200 as long as the process runs |
//! | `/readyz` | 200, or 503 with the reason in one line |
//! | `/metrics` | Prometheus text format |
//! | `/` | the facts of [`Status::facts`] as a page |

mod connections;
mod page;
mod server;

use std::borrow::Cow;

pub use server::{StatusError, StatusServer};

/// The status of a binary.
pub trait Status: Send + Sync + 'static {
    /// Returns the name of the binary.
    fn name(&self) -> &'static str;

    /// Checks that the process can do its work now.
    ///
    /// # Errors
    /// Returns the reason in one line, if the process cannot.
    fn ready(&self) -> Result<(), String>;

    /// Returns the rows of the page, in this order. Without secrets: every client that reaches the port can read
    /// it.
    fn facts(&self) -> Vec<Fact>;

    /// Sets the gauges and counters that no event updates; called before each scrape.
    fn publish_metrics(&self);
}

/// A row of the page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fact {
    /// The name, shown first.
    pub name: Cow<'static, str>,
    /// The value, shown beside the name.
    pub value: String,
}

impl Fact {
    /// Creates a row.
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl ToString) -> Self {
        Self { name: name.into(), value: value.to_string() }
    }
}
