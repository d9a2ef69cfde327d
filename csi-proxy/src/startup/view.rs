//! What an operator may know of the start-up answers.

use std::sync::Arc;
use std::time::Duration;

use super::Learner;

/// A look at what an endpoint answers by itself. Cheap to clone.
#[derive(Debug, Clone)]
pub struct View(Arc<Learner>);

/// How the start-up answers stand.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Status {
    /// Whether the driver could be asked the last time; `None` before it was asked for the first time.
    pub reached: Option<bool>,
    /// What `Probe` answers.
    pub ready: bool,
    /// Whether every capability question can be answered.
    pub complete: bool,
    /// How long ago the driver has last said what is answered: seconds while it can be reached, and growing while it cannot. By
    /// the clock of this host, over restarts too. `None` if nothing is known.
    pub age: Option<Duration>,
}

impl View {
    pub(crate) fn new(learner: Arc<Learner>) -> Self {
        Self(learner)
    }

    /// How they stand now.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }
}
