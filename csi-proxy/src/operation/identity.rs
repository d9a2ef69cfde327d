//! What makes two calls the same operation.

use std::sync::Arc;

use csi_proto::{DriverName, Method};

use super::canonical::{Digest, fields};
use super::subject::{self, Key, Subject};

/// The same driver, method and request: the same operation. Cheap to clone.
///
/// It holds what the operation is about and a [`Digest`] of the request, but nothing else of it, and no secret.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity(Arc<Parts>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Parts {
    driver: DriverName,
    method: Method,
    keys: Vec<Key>,
    digest: Digest,
}

impl Identity {
    /// The operation that an encoded request asks for.
    ///
    /// `None` if it takes no part in all this: the method changes nothing or answers with a stream, or the request does not say
    /// what it is about, or it is no protobuf. The driver is the one to answer it.
    #[must_use]
    pub fn of(driver: &DriverName, method: Method, request: &[u8]) -> Option<Self> {
        if !method.is_mutating() || method.is_server_streaming() {
            return None;
        }
        let fields = fields(request)?;
        let subjects = subject::of_request(method, &fields);
        if subjects.is_empty() {
            return None;
        }
        let digest = Digest::of_fields(method.request_shape(), fields, request.len());
        Self::new(driver.clone(), method, subjects, digest)
    }

    /// An operation that is already known by its parts. `None` without a subject, of which the first names it.
    #[must_use]
    pub fn new(driver: DriverName, method: Method, subjects: Vec<Subject>, digest: Digest) -> Option<Self> {
        if subjects.is_empty() {
            return None;
        }
        let mut keys: Vec<_> =
            subjects.into_iter().map(|subject| Key::new(driver.clone(), subject)).collect();
        if keys.len() > 1 {
            let mut seen = std::collections::HashSet::new();
            keys.retain(|key| seen.insert(key.clone()));
        }
        Some(Self(Arc::new(Parts { driver, method, keys, digest })))
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
        &self.0.digest
    }

    /// About how many bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let keys = self.keys().iter().map(|key| 96 + key.subject().id().len() + key.driver().as_str().len());
        128 + keys.sum::<usize>()
    }
}
