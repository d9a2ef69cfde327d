//! Stores of the terms of the drivers' proxies at a node.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::call::Term;

/// Stores the highest term of each driver, so that a restarted node still refuses a replaced proxy.
///
/// # Contract
/// - A term is durable when [`Self::raise`] returns. A lower term never replaces a higher one.
/// - A dropped or failed future may or may not have stored the term. The dispatcher then raises the term again.
#[async_trait]
pub trait TermStore: Send + Sync + fmt::Debug {
    /// The highest term of a driver; `None` if there is none.
    ///
    /// # Errors
    /// If the term cannot be read. No call of the driver begins until a read succeeds.
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError>;

    /// Stores a term unless a higher one is stored.
    ///
    /// # Errors
    /// If the term may not be durable. No call of that term begins until it is.
    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError>;
}

/// A term cannot be read or stored.
#[derive(Debug, thiserror::Error)]
#[error("cannot read or store terms: {0}")]
pub struct TermStoreError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TermStoreError {
    /// Wraps the error of the store.
    #[must_use]
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Terms in memory: for tests, and for a node without a disk. After a restart of the node a replaced proxy is accepted
/// until its successor calls.
#[derive(Debug, Default)]
pub struct MemoryTerms(Mutex<BTreeMap<DriverName, Term>>);

#[async_trait]
impl TermStore for MemoryTerms {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).get(driver).copied())
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        let mut terms = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let known = terms.entry(driver.clone()).or_insert(term);
        *known = term.max(*known);
        Ok(())
    }
}
