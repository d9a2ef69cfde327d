//! Where a node keeps the terms of its drivers' proxies.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::call::Term;

/// Keeps the highest term of each driver, so that a node that was restarted still refuses a proxy that was replaced.
///
/// # Contract
/// - A term is durable when [`Self::raise`] returns. A lower one never replaces a higher one.
/// - A future that is dropped, or fails, may or may not have stored the term. It is raised again then.
#[async_trait]
pub trait TermStore: Send + Sync + fmt::Debug {
    /// The highest term of a driver; `None` if there never was one.
    ///
    /// # Errors
    /// If it cannot be read. No call of the driver begins until it can.
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError>;

    /// Stores a term, unless a higher one is stored.
    ///
    /// # Errors
    /// If it is not certain that it is durable. No call of that term begins until it is.
    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError>;
}

/// A term cannot be read or stored.
#[derive(Debug, thiserror::Error)]
#[error("the terms of drivers: {0}")]
pub struct TermStoreError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl TermStoreError {
    /// Whatever the store's own error is.
    #[must_use]
    pub fn new(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self(error.into())
    }
}

/// Terms that are forgotten with the process: for tests, and for a node without a disk. A proxy that was replaced
/// before the node's restart is accepted then, until the one that replaced it calls.
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
