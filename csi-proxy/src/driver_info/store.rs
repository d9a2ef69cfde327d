//! Where what drivers say of themselves is kept over a restart.

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;

use crate::call::NodeId;
use crate::routing::store::StoreError;

/// Keeps a record for each node of one driver. It is a cache: what is lost is learnt again as soon as the driver can be asked, so no
/// failure is ever fatal. No secret is in it.
#[async_trait]
pub trait DriverInfoStore: fmt::Debug + Send + Sync {
    /// All records.
    ///
    /// # Errors
    /// If they cannot be read.
    async fn load(&self) -> Result<Vec<(NodeId, Bytes)>, StoreError>;

    /// Puts a record in the place of the one that is there, or removes that.
    ///
    /// # Errors
    /// If it is not certain that it is durable.
    async fn save(&self, node: &NodeId, record: Option<Bytes>) -> Result<(), StoreError>;
}
