//! A digest that is made when somebody looks at it.

use std::fmt;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use csi_proto::shape::Shape;

use super::canonical::Digest;

/// The largest request that is kept for later, in bytes. The digest of a larger one is made at once.
pub(super) const MAX_KEPT: usize = 1024;

/// The digest of a request, or the request. Most operations end before anybody looks at their digest, and it costs more than
/// all else that is done with an operation.
///
/// The request goes when the digest is made, and never leaves this.
pub(super) struct DeferredDigest {
    shape: &'static Shape,
    digest: OnceLock<Digest>,
    request: Mutex<Box<[u8]>>,
}

impl DeferredDigest {
    /// Of a request that is to be digested in this shape.
    pub(super) fn of(shape: &'static Shape, request: Vec<u8>) -> Self {
        if request.len() > MAX_KEPT {
            return Self { shape, digest: Digest::of(shape, &request).into(), request: Mutex::default() };
        }
        Self { shape, digest: OnceLock::new(), request: Mutex::new(request.into()) }
    }

    /// The digest. The first time it is made.
    pub(super) fn digest(&self) -> &Digest {
        self.digest.get_or_init(|| {
            let request = std::mem::take(&mut *self.lock());
            Digest::of(self.shape, &request)
        })
    }

    /// Whether the two have the same digest. Not made for requests that are the same bytes, as a retry's are.
    pub(super) fn equals(&self, other: &Self) -> bool {
        if self.digest.get().is_none() && other.digest.get().is_none() {
            // A copy, since two locks at once could wait for each other.
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

    /// How many bytes of the request are still kept.
    pub(super) fn kept(&self) -> usize {
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
    fn the_digest_is_that_of_the_request_and_the_request_is_gone_then() {
        for length in [0, 1, MAX_KEPT - 3, MAX_KEPT - 2, 2 * MAX_KEPT] {
            // An unknown field of bytes, with its key and a length of two bytes.
            let mut request = vec![0x7a];
            prost::encoding::encode_varint(length as u64, &mut request);
            request.resize(request.len() + length, 7);
            let deferred = DeferredDigest::of(shape(), request.clone());
            assert_eq!(deferred.kept(), if request.len() > MAX_KEPT { 0 } else { request.len() });
            assert_eq!(*deferred.digest(), Digest::of(shape(), &request));
            assert_eq!(deferred.kept(), 0, "{length}");
            assert_eq!(*deferred.digest(), Digest::of(shape(), &request));
        }
    }

    #[test]
    fn equal_bytes_are_compared_without_a_digest() {
        let [one, same, other] =
            ["\n\x01a", "\n\x01a", "\n\x01b"].map(|text| DeferredDigest::of(shape(), text.into()));
        assert!(one.equals(&same) && one.digest.get().is_none() && same.digest.get().is_none());
        assert!(!one.equals(&other), "what differs is told by the digests");
        assert!(one.equals(&same), "also when one of the digests is made");
        assert!(one.equals(&one));
    }

    #[test]
    fn what_is_printed_is_the_digest() {
        let printed = format!("{:?}", DeferredDigest::of(shape(), b"\x0a\x06canary".to_vec()));
        assert!(!printed.contains("canary") && !printed.contains("99, 97"), "{printed}");
        assert_eq!(printed, Digest::of(shape(), b"\x0a\x06canary").to_string());
    }
}
