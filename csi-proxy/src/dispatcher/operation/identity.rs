//! The identity of an operation.

use std::sync::Arc;

use csi_proto::{DriverName, Method};

use super::deferred::DeferredDigest;
use crate::call::BadRequest;
use crate::call::protobuf::{fields, remove_field};
use crate::call::subject::{self, Key};

/// Driver, method and request of an operation; equal identities are the same operation. Cheap to clone.
///
/// Exposes the subjects and a digest of the request, but nothing else, and no secret. A small request is kept
/// without its secrets. Its digest is expensive, and is computed only when two operations on the same subjects are
/// compared.
#[derive(Debug, Clone)]
pub struct Identity(Arc<Parts>);

#[derive(Debug)]
struct Parts {
    driver: DriverName,
    method: Method,
    keys: Vec<Key>,
    digest: DeferredDigest,
}

impl PartialEq for Identity {
    fn eq(&self, other: &Self) -> bool {
        let (this, that) = (&*self.0, &*other.0);
        Arc::ptr_eq(&self.0, &other.0)
            || (this.method == that.method
                && this.keys == that.keys
                && this.driver == that.driver
                && this.digest.equals(&that.digest))
    }
}

impl Eq for Identity {}

impl Identity {
    /// Determines the operation of an encoded request.
    ///
    /// `None` if the call is not an operation, because the method is read-only or streaming. A request without a subject,
    /// which a driver must reject, has the empty name or id as its subject. Takes at most twice the memory of the
    /// request and 1 MiB, and a time linear in its size.
    ///
    /// # Errors
    /// If the subjects cannot be read, or exceed [`MAX_SUBJECTS`](crate::advanced::call::MAX_SUBJECTS) or
    /// [`MAX_SUBJECT`](crate::advanced::call::MAX_SUBJECT). A driver may understand such a request otherwise, and
    /// would execute it beside another operation on its volume.
    pub fn of(driver: &DriverName, method: Method, request: &[u8]) -> Result<Option<Self>, BadRequest> {
        if !method.is_mutating() || method.is_server_streaming() {
            return Ok(None);
        }
        let subjects = subject::operation_subjects(method, &fields(request).ok_or(BadRequest::NotAMessage)?)?;
        if subjects.is_empty() {
            return Ok(None);
        }
        // Secrets are not part of the digest and must not be kept.
        let without_secrets = match method.secrets_field() {
            Some(secrets) => remove_field(request, secrets.number).ok_or(BadRequest::NotAMessage)?,
            None => request.to_vec(),
        };
        let digest = DeferredDigest::of(method.request_shape(), without_secrets);
        let mut keys: Vec<_> =
            subjects.into_iter().map(|subject| Key::new(driver.clone(), subject)).collect();
        if keys.len() > 1 {
            let mut seen = std::collections::HashSet::new();
            keys.retain(|key| seen.insert(key.clone()));
        }
        Ok(Some(Self(Arc::new(Parts { driver: driver.clone(), method, keys, digest }))))
    }

    /// The driver.
    #[must_use]
    pub fn driver(&self) -> &DriverName {
        &self.0.driver
    }

    /// The method.
    #[must_use]
    pub fn method(&self) -> Method {
        self.0.method
    }

    /// The subjects of the request: at least one, each once, in the order of the request.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.0.keys
    }

    /// The approximate memory use in bytes now.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys().iter().map(|key| 96 + key.subject().id().len() + key.driver().as_str().len());
        128 + keys.sum::<usize>() + self.0.digest.kept_bytes()
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::v1::DeleteVolumeRequest;
    use prost::Message as _;

    use super::*;

    #[test]
    fn secrets_are_neither_kept_nor_compared() {
        let deletion = |secrets: &[(&str, &str)]| {
            let secrets =
                secrets.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let request = DeleteVolumeRequest { volume_id: "vol-1".to_owned(), secrets };
            let request = request.encode_to_vec();
            Identity::of(&"driver".parse().unwrap(), Method::DeleteVolume, &request).unwrap().unwrap()
        };
        let (open, secret) = (deletion(&[]), deletion(&[("password", "canary")]));
        assert_eq!((open.0.digest.kept_bytes(), secret.0.digest.kept_bytes()), (7, 7), "field 1 alone");
        assert_eq!(open, secret);
        assert_eq!(open.0.digest.digest(), secret.0.digest.digest());
        assert_eq!(open.0.digest.kept_bytes(), 0, "the digest is computed");
    }
}
