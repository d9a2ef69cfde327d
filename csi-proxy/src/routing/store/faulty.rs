//! A store with injected faults.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{PlacementStore, StoreError, Written};
use crate::call::NodeId;
use crate::driver_info::DriverInfoStore;
use crate::routing::Claim;
use crate::routing::placements::{Change, Defect, Row};

/// How a write fails. The caller of the write cannot distinguish the variants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreFault {
    /// Nothing is written.
    Refused,
    /// The change is written, but an error is returned.
    Written,
}

/// Forwards to another store, or fails as its [`Handle`] specifies. All clones share the faults.
#[derive(Debug, Clone)]
pub struct FaultyStore<S> {
    inner: S,
    handle: Handle,
}

/// Controls a faulty store. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Handle(Arc<Mutex<Plan>>);

#[derive(Debug, Default)]
struct Plan {
    next: Option<StoreFault>,
    /// The number of writes that still succeed.
    left: Option<u64>,
    refuses_loads: bool,
    failed: usize,
}

impl Handle {
    /// Fails the next write.
    pub fn fail(&self, fault: StoreFault) {
        self.plan().next = Some(fault);
    }

    /// Fails every write after this number of writes, as a full or removed disk does; `None` ends the failures.
    pub fn cut_after(&self, writes: impl Into<Option<u64>>) {
        self.plan().left = writes.into();
    }

    /// Sets whether reads fail.
    pub fn refuse_loads(&self, refuse: bool) {
        self.plan().refuses_loads = refuse;
    }

    /// The number of injected failures.
    #[must_use]
    pub fn failures(&self) -> usize {
        self.plan().failed
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The fault of the next write.
    fn fault(&self) -> Option<StoreFault> {
        let mut plan = self.plan();
        let mut fault = plan.next.take();
        match &mut plan.left {
            Some(0) => fault = Some(StoreFault::Refused),
            Some(left) => *left -= 1,
            None => {}
        }
        plan.failed += usize::from(fault.is_some());
        fault
    }

    fn check_load(&self) -> Result<(), StoreError> {
        if !self.plan().refuses_loads {
            return Ok(());
        }
        self.plan().failed += 1;
        Err(failure())
    }
}

fn failure() -> StoreError {
    StoreError::Failed(Arc::new(io::Error::other("injected fault")))
}

impl<S> FaultyStore<S> {
    /// Creates a store without faults.
    #[must_use]
    pub fn new(inner: S) -> (Self, Handle) {
        let handle = Handle::default();
        (Self { inner, handle: handle.clone() }, handle)
    }

    async fn faulty<T>(&self, write: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let fault = self.handle.fault();
        if fault == Some(StoreFault::Refused) {
            return Err(failure());
        }
        let written = write.await?;
        if fault.is_some() { Err(failure()) } else { Ok(written) }
    }
}

#[async_trait]
impl<S: PlacementStore> PlacementStore for FaultyStore<S> {
    async fn list(&self) -> Result<Vec<Row>, StoreError> {
        self.handle.check_load()?;
        self.inner.list().await
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        self.faulty(self.inner.write(change)).await
    }

    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
        self.handle.check_load()?;
        self.inner.decommissioned().await
    }

    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
        self.faulty(self.inner.set_decommissioned(node, decommissioned)).await
    }

    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
        self.handle.check_load()?;
        self.inner.claims().await
    }

    async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
        self.faulty(self.inner.set_claim(node, claim)).await
    }
}

#[async_trait]
impl<S: DriverInfoStore> DriverInfoStore for FaultyStore<S> {
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError> {
        self.handle.check_load()?;
        self.inner.load().await
    }

    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
        self.faulty(self.inner.save(node, record)).await
    }
}
