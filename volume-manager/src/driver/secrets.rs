//! Secrets and service-account tokens: the provider, and the values for one call.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::hint::black_box;

use async_trait::async_trait;
use csi_proto::DriverName;

use super::call_error::SecretError;
use super::consumer_spec::PodInfo;
use super::policy::TokenRequest;
use super::secret_reference::SecretReference;

/// Resolves secrets. Each CSI call that needs a secret resolves it again, and drops the values when the call has
/// ended.
///
/// The contract of an implementation:
///
/// - **Threads:** calls are made at once from several tasks, for several drivers, and must not block their thread.
/// - **Bounds:** a call has 30 s, after which its future is dropped and the driver is not called. A failure is retried with the
///   back-off of the volume.
/// - **Order:** none; equal references are resolved again for each call, so that a rotated secret takes effect.
/// - **Cancellation:** the future is dropped at the deadline, and when the volumes are dropped. No effect must outlast it.
/// - **Texts:** no error may contain a value.
///
/// After a power cut the cloud may be unreachable. An implementation that must work offline stores its secrets on the node,
/// encrypted by the means that the node has.
#[async_trait]
pub trait Secrets: Send + Sync {
    /// Returns the values of a secret, at most 1 MiB of keys and values.
    ///
    /// # Errors
    /// If the secret does not exist, or cannot be read now.
    async fn secret(&self, reference: &SecretReference) -> Result<SecretValues, SecretError>;

    /// Issues tokens of a pod's service account, one for each request, in their order, for a driver whose policy has
    /// `tokenRequests`.
    ///
    /// # Errors
    /// If they cannot be issued now. The default implementation always fails.
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

/// A provider without secrets.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "the type has no fields")]
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
    /// Adds a secret, replacing one of the same name.
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

/// The values of a secret. The values are never printed, and are overwritten on drop.
///
/// Overwriting is best effort: the encoded request is a copy, which the HTTP/2 stack drops without overwriting it.
#[derive(Default, PartialEq, Eq)]
pub struct SecretValues(BTreeMap<String, String>);

impl SecretValues {
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// Copies the values into the map of a request.
    pub(super) fn to_message(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(String::as_str)
    }

    /// Copies the values, for providers that hold secrets in memory.
    pub(super) fn duplicate(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for SecretValues {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        Self(entries.into_iter().map(|(key, value)| (key.into(), value.into())).collect())
    }
}

impl Drop for SecretValues {
    fn drop(&mut self) {
        for value in std::mem::take(&mut self.0).into_values() {
            overwrite(value);
        }
    }
}

impl fmt::Debug for SecretValues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SecretValues({} stripped)", self.0.len())
    }
}

fn overwrite(text: String) {
    let mut bytes = text.into_bytes();
    bytes.fill(0);
    // Keeps the compiler from removing the writes.
    black_box(&bytes);
}

/// The key of the tokens in the volume context or the secrets.
pub(super) const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// A token that was issued for a pod. The token is never printed, and is overwritten on drop.
#[derive(PartialEq, Eq)]
pub struct ServiceAccountToken {
    audience: String,
    token: String,
    expires: String,
}

impl ServiceAccountToken {
    /// Creates a token for an audience, valid until a time in RFC 3339, such as `2026-01-31T12:00:00Z`.
    #[must_use]
    pub fn new(audience: impl Into<String>, token: impl Into<String>, expires: impl Into<String>) -> Self {
        Self { audience: audience.into(), token: token.into(), expires: expires.into() }
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for ServiceAccountToken {
    fn drop(&mut self) {
        overwrite(std::mem::take(&mut self.token));
    }
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountToken")
            .field("audience", &self.audience)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// Encodes the tokens in kubelet's format: a JSON object by audience.
pub(super) fn tokens_json(tokens: &[ServiceAccountToken]) -> String {
    let mut json = String::from("{");
    for (index, token) in tokens.iter().enumerate() {
        json.push_str(if index == 0 { "" } else { "," });
        quote(&mut json, &token.audience);
        json.push_str(":{\"token\":");
        quote(&mut json, &token.token);
        json.push_str(",\"expirationTimestamp\":");
        quote(&mut json, &token.expires);
        json.push('}');
    }
    json.push('}');
    json
}

fn quote(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            // Writing into a String cannot fail.
            character if character.is_control() => drop(write!(json, "\\u{:04x}", u32::from(character))),
            character => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_hides_values() {
        let values: SecretValues = [("user", "root"), ("key", "hunter2")].into_iter().collect();
        assert_eq!(format!("{values:?}"), "SecretValues(2 stripped)");
    }

    #[test]
    fn encodes_tokens_by_audience_and_never_prints_them() {
        assert_eq!(tokens_json(&[]), "{}");
        let tokens = [
            ServiceAccountToken::new("", "t\"1\\", "2026-01-31T12:00:00Z"),
            ServiceAccountToken::new("vault\n", "t2", "2026-01-31T13:00:00Z"),
        ];
        assert_eq!(
            tokens_json(&tokens),
            r#"{"":{"token":"t\"1\\","expirationTimestamp":"2026-01-31T12:00:00Z"},"vault\u000a":{"token":"t2","expirationTimestamp":"2026-01-31T13:00:00Z"}}"#
        );
        assert!(!format!("{tokens:?}").contains("t2"));
    }
}
