//! What makes two calls the same operation.

use std::sync::Arc;

use csi_proto::{DriverName, Method};

use super::canonical::Digest;
use super::deferred::DeferredDigest;
use super::subject::{self, Key};
use crate::call::protobuf::fields;

/// The same driver, method and request: the same operation. Cheap to clone.
///
/// It shows what the operation is about and a [`Digest`] of the request, but nothing else of it, and no secret. A small request is
/// kept, without its secrets, until the digest is needed, which costs time: when two operations on the same subjects are compared.
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
    /// The operation that an encoded request asks for.
    ///
    /// `None` if it takes no part in all this: the method changes nothing or answers with a stream, or the request is no protobuf, or names
    /// more than the bounds allow. The driver is the one to answer it. One that does not say what it is about, which a driver has to refuse, is
    /// about the empty name or id.
    #[must_use]
    pub fn of(driver: &DriverName, method: Method, request: &[u8]) -> Option<Self> {
        if !method.is_mutating() || method.is_server_streaming() {
            return None;
        }
        let fields = fields(request)?;
        let subjects = subject::of_operation(method, &fields)?;
        if subjects.is_empty() {
            return None;
        }
        // No part of the digest, and not to be kept.
        let secrets = method.secrets_field().map(|field| field.number);
        let mut open = Vec::with_capacity(request.len());
        for field in fields.iter().filter(|field| Some(field.number) != secrets) {
            open.extend_from_slice(field.whole);
        }
        let digest = DeferredDigest::of(method.request_shape(), open);
        let mut keys: Vec<_> =
            subjects.into_iter().map(|subject| Key::new(driver.clone(), subject)).collect();
        if keys.len() > 1 {
            let mut seen = std::collections::HashSet::new();
            keys.retain(|key| seen.insert(key.clone()));
        }
        Some(Self(Arc::new(Parts { driver: driver.clone(), method, keys, digest })))
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

    /// What the request names; at least one, each once, in the request's order.
    #[must_use]
    pub fn keys(&self) -> &[Key] {
        &self.0.keys
    }

    /// The digest of the request without its secrets.
    #[must_use]
    pub fn digest(&self) -> &Digest {
        self.0.digest.digest()
    }

    /// About how many bytes of memory it takes now.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys().iter().map(|key| 96 + key.subject().id().len() + key.driver().as_str().len());
        128 + keys.sum::<usize>() + self.0.digest.kept()
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
            Identity::of(&"driver".parse().unwrap(), Method::DeleteVolume, &request.encode_to_vec()).unwrap()
        };
        let (open, secret) = (deletion(&[]), deletion(&[("password", "canary")]));
        assert_eq!((open.0.digest.kept(), secret.0.digest.kept()), (7, 7), "field 1 alone");
        assert_eq!(open, secret);
        assert_eq!(open.digest(), secret.digest());
        assert_eq!(open.0.digest.kept(), 0, "the digest is made");
    }
}
