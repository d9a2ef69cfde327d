//! Persistent stores of driver info.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::NodeId;
use crate::routing::store::StoreError;

/// Stores one record per node of one driver. The store is a cache: lost records are refreshed as soon as the
/// driver is reachable, so no failure is fatal. A record contains no secret.
#[async_trait]
pub trait DriverInfoStore: fmt::Debug + Send + Sync {
    /// All records, in any order. Awaited once, for at most 10 s.
    ///
    /// # Errors
    /// If the records cannot be read.
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError>;

    /// Replaces the record of a node, or removes it for `None`. Saves of different nodes may overlap. A dropped future may
    /// have written the record.
    ///
    /// # Errors
    /// If the write may not be durable.
    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError>;
}
