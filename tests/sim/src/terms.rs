//! The terms of the drivers' proxies: at the proxies, and on the disks of the nodes. Both outlive their processes.

use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{DriverName, Term, TermError, TermSource, TermStore, TermStoreError};
use tokio::time::sleep;

use crate::context::Context;
use crate::ids::LifeId;
use crate::plan::Place;

/// Where a proxy has its terms from; they rise from proxy to proxy of a driver.
#[derive(Debug)]
pub(crate) struct Starts {
    pub(crate) context: Arc<Context>,
    pub(crate) driver: usize,
    pub(crate) life: LifeId,
}

#[async_trait::async_trait]
impl TermSource for Starts {
    async fn raise(&self, above: Option<Term>) -> Result<Term, TermError> {
        let term = self.context.with(|inner| {
            let last = inner.starts.entry(self.driver).or_insert(0);
            *last = above.map_or(*last, |above| above.get().max(*last)) + 1;
            let term = *last;
            inner.facts.has_term(self.life, term);
            term
        });
        self.context.note(format!("driver {}", self.driver), || format!("term {term}"));
        Ok(Term::new(term).unwrap_or(Term::FIRST))
    }
}

/// The disk of a node, for one process.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) context: Arc<Context>,
    pub(crate) place: Place,
    pub(crate) life: LifeId,
}

impl Disk {
    /// What writing takes; the process may end meanwhile.
    async fn work(&self) -> Result<(), TermStoreError> {
        let takes = self.context.with(|inner| inner.chance.time(Duration::ZERO, LONGEST));
        sleep(takes).await;
        if self.context.is_alive(self.life) {
            Ok(())
        } else {
            Err(TermStoreError::new("the process has ended"))
        }
    }
}

/// Longest time that half a write takes.
const LONGEST: Duration = Duration::from_millis(5);

#[async_trait::async_trait]
impl TermStore for Disk {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        let key = (self.place, driver.as_str().to_owned());
        Ok(self.context.with(|inner| inner.disks.get(&key).copied()))
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        self.work().await?;
        let key = (self.place, driver.as_str().to_owned());
        self.context.with(|inner| {
            let known = inner.disks.entry(key).or_insert(term);
            *known = term.max(*known);
        });
        self.work().await
    }
}
