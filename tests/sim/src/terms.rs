//! The stored terms of the drivers' proxies, at the proxies and on the disks of the nodes. Both survive a restart.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use csi_proxy::{
    Call, DriverName, Fault, NodeId, Relay, Replies, Term, TermError, TermSource, TermStore, TermStoreError,
    next_term,
};
use tokio::time::sleep;

use crate::context::Context;
use crate::ids::InstanceId;
use crate::plan::Place;

/// The time at which a run begins, by the clocks of the proxies.
const EPOCH: Duration = Duration::from_secs(1_000_000);

/// The source of a proxy's terms. Each new term of a driver's proxies is higher than the stored one and follows the
/// clock.
#[derive(Debug)]
pub(crate) struct Starts {
    pub(crate) context: Arc<Context>,
    pub(crate) driver: usize,
    pub(crate) instance: InstanceId,
}

#[async_trait::async_trait]
impl TermSource for Starts {
    async fn raise(&self) -> Result<Term, TermError> {
        let since = self.context.now();
        let now = SystemTime::UNIX_EPOCH + EPOCH + since;
        let term = self.context.with(|inner| {
            let behind = inner.behind.get(&self.driver).copied().unwrap_or_default();
            let term = next_term(inner.starts.get(&self.driver).copied(), now - behind)?;
            inner.starts.insert(self.driver, term);
            let highest = inner.highest.entry(self.driver).or_insert(term);
            *highest = term.max(*highest);
            inner.facts.has_term(self.instance, term.get(), since);
            Ok::<_, TermError>(term)
        })?;
        self.context.note(format!("driver {}", self.driver), || format!("term {term}"));
        Ok(term)
    }
}

/// The disk of a node, as used by one process.
#[derive(Debug)]
pub(crate) struct Disk {
    pub(crate) context: Arc<Context>,
    pub(crate) place: Place,
    pub(crate) instance: InstanceId,
}

impl Disk {
    /// Waits for half a write. Fails if the process ends meanwhile.
    async fn work(&self) -> Result<(), TermStoreError> {
        let takes = self.context.with(|inner| inner.rng.time(Duration::ZERO, LONGEST));
        sleep(takes).await;
        if self.context.is_alive(self.instance) {
            Ok(())
        } else {
            Err(TermStoreError::new("the process has ended"))
        }
    }
}

/// Longest duration of half a write.
const LONGEST: Duration = Duration::from_millis(5);

#[async_trait::async_trait]
impl TermStore for Disk {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        let key = (self.place, driver.as_str().to_owned());
        Ok(self.context.with(|inner| inner.disks.get(&key).copied()))
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        self.work().await?;
        self.context.records(self.place, driver.as_str(), term);
        self.work().await
    }

    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        self.work().await?;
        let key = (self.place, driver.as_str().to_owned());
        self.context.with(|inner| inner.disks.remove(&key));
        self.work().await
    }
}

/// Records the terms of a proxy's calls, which it raises for single nodes.
pub(crate) struct UsedTerms<R> {
    pub(crate) relay: R,
    pub(crate) context: Arc<Context>,
    pub(crate) driver: usize,
    pub(crate) instance: InstanceId,
    /// The term of the last call to each node.
    pub(crate) last: Mutex<BTreeMap<NodeId, Term>>,
}

#[async_trait::async_trait]
impl<R: Relay> Relay for UsedTerms<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if let Some(term) = call.fence.as_ref().map(csi_proxy::advanced::call::Fence::term) {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            if last.insert(call.node.clone(), term).is_some_and(|last| last != term) {
                let since = self.context.now();
                self.context.with(|inner| {
                    let highest = inner.highest.entry(self.driver).or_insert(term);
                    *highest = term.max(*highest);
                    inner.facts.has_term(self.instance, term.get(), since);
                });
            }
        }
        self.relay.relay(call).await
    }
}
