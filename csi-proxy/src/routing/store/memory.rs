//! A store in memory: for tests, and for proxies that may lose their state at a restart.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;

use super::{PlacementStore, StoreError, Written};
use crate::call::NodeId;
use crate::call::Subject;
use crate::driver_info::DriverInfoStore;
use crate::routing::Claim;
use crate::routing::placements::{Change, Defect, Placement, Revision, Row};

/// Stores rows in memory and never fails. All clones share one store.
#[derive(Debug, Clone, Default)]
pub struct MemoryStore(Arc<Mutex<Tables>>);

#[derive(Debug, Default)]
struct Tables {
    placements: BTreeMap<Subject, (u64, Vec<u8>)>,
    driver_info: BTreeMap<NodeId, Bytes>,
    decommissioned: BTreeSet<NodeId>,
    claims: BTreeMap<NodeId, Bytes>,
    revision: u64,
}

impl MemoryStore {
    fn tables(&self) -> MutexGuard<'_, Tables> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn row(key: &Subject, revision: u64, bytes: &[u8]) -> Row {
    let revision = Revision(revision.to_string().into());
    Row { key: key.clone(), revision, placement: Placement::decode(key, bytes) }
}

#[async_trait]
impl PlacementStore for MemoryStore {
    async fn list(&self) -> Result<Vec<Row>, StoreError> {
        let tables = self.tables();
        Ok(tables.placements.iter().map(|(key, (revision, bytes))| row(key, *revision, bytes)).collect())
    }

    async fn write(&self, change: &Change) -> Result<Written, StoreError> {
        let (mut tables, key) = (self.tables(), &change.key);
        let found = tables.placements.get(key).map(|(revision, bytes)| row(key, *revision, bytes));
        if found.as_ref().map(|row| &row.revision) != change.expected.as_ref() {
            return Ok(Written::Conflict(found));
        }
        tables.revision += 1;
        let revision = tables.revision;
        match &change.placement {
            Some(placement) => drop(tables.placements.insert(key.clone(), (revision, placement.encode(key)))),
            None => drop(tables.placements.remove(key)),
        }
        Ok(Written::Done(Revision(revision.to_string().into())))
    }

    async fn decommissioned(&self) -> Result<Vec<NodeId>, StoreError> {
        Ok(self.tables().decommissioned.iter().cloned().collect())
    }

    async fn set_decommissioned(&self, node: &NodeId, decommissioned: bool) -> Result<(), StoreError> {
        match decommissioned {
            true => self.tables().decommissioned.insert(node.clone()),
            false => self.tables().decommissioned.remove(node),
        };
        Ok(())
    }

    async fn claims(&self) -> Result<Vec<(NodeId, Result<Claim, Defect>)>, StoreError> {
        let tables = self.tables();
        Ok(tables.claims.iter().map(|(node, bytes)| (node.clone(), Claim::decode(node, bytes))).collect())
    }

    async fn set_claim(&self, node: &NodeId, claim: Option<&Claim>) -> Result<(), StoreError> {
        match claim {
            Some(claim) => self.tables().claims.insert(node.clone(), claim.encode(node)),
            None => self.tables().claims.remove(node),
        };
        Ok(())
    }
}

#[async_trait]
impl DriverInfoStore for MemoryStore {
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError> {
        Ok(self.tables().driver_info.clone().into_iter().collect())
    }

    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError> {
        match record {
            Some(record) => self.tables().driver_info.insert(node.clone(), record),
            None => self.tables().driver_info.remove(node),
        };
        Ok(())
    }
}

#[cfg(feature = "testing")]
mod testing {
    use super::{MemoryStore, Subject};

    impl MemoryStore {
        /// The keys of all placements.
        #[must_use]
        pub fn keys(&self) -> Vec<Subject> {
            self.tables().placements.keys().cloned().collect()
        }

        /// Overwrites the bytes of a row, as a failing disk may.
        pub fn overwrite(&self, key: &Subject, bytes: &[u8]) {
            if let Some((_, found)) = self.tables().placements.get_mut(key) {
                *found = bytes.to_vec();
            }
        }
    }
}
