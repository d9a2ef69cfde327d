//! A digest that is computed when it is first needed.

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use csi_proto::shape::Shape;

use crate::call::Digest;

/// The maximum size of a request that is kept for later, in bytes. The digest of a larger one is computed at once.
pub(super) const MAX_KEPT: usize = 1024;

/// The digest of a request, or the request itself. Most operations end before their digest is needed, and computing it
/// costs more than the rest of the operation's bookkeeping.
///
/// The request is dropped when the digest is computed, and is never exposed.
pub(super) struct DeferredDigest {
    shape: &'static Shape,
    digest: OnceLock<Digest>,
    request: Mutex<Box<[u8]>>,
}

impl DeferredDigest {
    /// Creates the digest of a request with this shape.
    pub(super) fn of(shape: &'static Shape, request: Vec<u8>) -> Self {
        if request.len() > MAX_KEPT {
            return Self { shape, digest: Digest::of(shape, &request).into(), request: Mutex::default() };
        }
        Self { shape, digest: OnceLock::new(), request: Mutex::new(request.into()) }
    }

    /// The digest, computed on first use.
    pub(super) fn digest(&self) -> &Digest {
        self.digest.get_or_init(|| {
            let request = std::mem::take(&mut *self.lock());
            Digest::of(self.shape, &request)
        })
    }

    /// Whether the digests are equal. Identical bytes, as of a retry, are equal without computing the digests.
    pub(super) fn equals(&self, other: &Self) -> bool {
        if self.digest.get().is_none() && other.digest.get().is_none() {
            // Copies the request, since holding two locks could deadlock.
            let this = self.lock().clone();
            if !this.is_empty() && this == *other.lock() {
                return true;
            }
        }
        self.digest() == other.digest()
    }

    fn lock(&self) -> MutexGuard<'_, Box<[u8]>> {
        self.request.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of bytes of the request that are still kept.
    pub(super) fn kept_bytes(&self) -> usize {
        self.lock().len()
    }
}

impl fmt::Debug for DeferredDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.digest(), f)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::Method;

    use super::*;

    fn shape() -> &'static Shape {
        Method::DeleteVolume.request_shape()
    }

    #[test]
    fn computes_digest_and_drops_the_request() {
        for length in [0, 1, MAX_KEPT - 3, MAX_KEPT - 2, 2 * MAX_KEPT] {
            // An unknown bytes field with its key and a two-byte length.
            let mut request = vec![0x7a];
            prost::encoding::encode_varint(length as u64, &mut request);
            request.resize(request.len() + length, 7);
            let deferred = DeferredDigest::of(shape(), request.clone());
            assert_eq!(deferred.kept_bytes(), if request.len() > MAX_KEPT { 0 } else { request.len() });
            assert_eq!(*deferred.digest(), Digest::of(shape(), &request));
            assert_eq!(deferred.kept_bytes(), 0, "{length}");
            assert_eq!(*deferred.digest(), Digest::of(shape(), &request));
        }
    }

    #[test]
    fn compares_identical_bytes_without_a_digest() {
        let [one, same, other] =
            ["\n\x01a", "\n\x01a", "\n\x01b"].map(|text| DeferredDigest::of(shape(), text.into()));
        assert!(one.equals(&same) && one.digest.get().is_none() && same.digest.get().is_none());
        assert!(!one.equals(&other), "different bytes are compared by digest");
        assert!(one.equals(&same), "also with one digest computed");
        assert!(one.equals(&one));
    }

    #[test]
    fn debug_prints_only_the_digest() {
        let printed = format!("{:?}", DeferredDigest::of(shape(), b"\x0a\x06canary".to_vec()));
        assert!(!printed.contains("canary") && !printed.contains("99, 97"), "{printed}");
        assert_eq!(printed, Digest::of(shape(), b"\x0a\x06canary").to_string());
    }
}
