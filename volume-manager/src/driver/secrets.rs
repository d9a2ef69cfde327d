//! Where the values of secrets come from.

use std::collections::BTreeMap;

use async_trait::async_trait;
use csi_proto::DriverName;

use super::consumer_spec::PodInfo;
use super::policy::TokenRequest;
use super::secret_error::SecretError;
use super::secret_reference::SecretReference;
use super::secret_values::SecretValues;
use super::tokens::ServiceAccountToken;

/// Resolves secrets. It is asked at each call that takes one, and what it answers is dropped when the call has ended.
///
/// After a power cut there may be no cloud to ask: an implementation that shall work then keeps its secrets on the
/// node, sealed in whatever way the node offers.
#[async_trait]
pub trait Secrets: Send + Sync {
    /// The values of a secret, at most 1 MiB of keys and values.
    ///
    /// # Errors
    /// If there is no such secret, or it cannot be had now.
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError>;

    /// Tokens of a pod's service account, one for each request, for a driver whose policy has `tokenRequests`.
    ///
    /// # Errors
    /// If they cannot be had now; always, unless it is implemented.
    async fn service_account_tokens(
        &self,
        driver: &DriverName,
        pod: &PodInfo,
        requests: &[TokenRequest],
    ) -> Result<Vec<ServiceAccountToken>, SecretError> {
        let _ = (driver, pod, requests);
        Err(SecretError::NoTokens)
    }
}

/// There are no secrets.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "there is nothing to it")]
pub struct NoSecrets;

#[async_trait]
impl Secrets for NoSecrets {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        Err(SecretError::NotFound { reference: reference.clone() })
    }
}

/// Secrets in memory.
#[derive(Debug, Default)]
pub struct MemorySecrets(BTreeMap<SecretReference, SecretValues>);

impl MemorySecrets {
    /// Adds a secret, in place of one of the same name.
    #[must_use]
    pub fn with(mut self, reference: SecretReference, values: SecretValues) -> Self {
        self.0.insert(reference, values);
        self
    }
}

#[async_trait]
impl Secrets for MemorySecrets {
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError> {
        let values = self.0.get(reference).map(SecretValues::duplicate);
        values.ok_or_else(|| SecretError::NotFound { reference: reference.clone() })
    }
}
