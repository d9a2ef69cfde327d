//! Seals payloads, so that the server and the other users of the bus can neither read nor change them.

use std::fmt;

use bytes::Bytes;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::error::Unspecified;
use ring::rand::{SystemRandom, generate};

/// The length of a key in bytes.
pub const KEY_LEN: usize = 32;

/// AES-256-GCM with the key of one node, or nothing. A payload is valid for its subject only.
///
/// Not hidden: subjects, sizes and times. Not prevented: that a payload is lost, or delivered again later; the dispatcher
/// begins a call once. Each holder of the key can send as any other.
pub struct Seal(Option<LessSafeKey>);

impl Seal {
    /// Passes payloads as they are, for a server that you trust.
    #[must_use]
    pub const fn none() -> Self {
        Self(None)
    }

    /// Seals payloads with this key, which must be random.
    ///
    /// # Errors
    /// Never for a key of this length.
    pub fn with_key(key: &[u8; KEY_LEN]) -> Result<Self, Unspecified> {
        Ok(Self(Some(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key)?))))
    }

    /// Seals a payload: a random nonce, the ciphertext, and its tag.
    ///
    /// # Errors
    /// If the system has no random numbers.
    pub fn seal(&self, subject: &str, payload: Bytes) -> Result<Bytes, Unspecified> {
        let Some(key) = &self.0 else { return Ok(payload) };
        // Random nonces: a key may seal 2^32 payloads (NIST SP 800-38D, section 8.3).
        let nonce: [u8; NONCE_LEN] = generate(&SystemRandom::new())?.expose();
        let mut sealed = Vec::from(payload);
        key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::from(subject), &mut sealed)?;
        Ok([&nonce[..], &sealed].concat().into())
    }

    /// Opens a sealed payload.
    ///
    /// # Errors
    /// If it was not sealed with this key for this subject.
    pub fn open(&self, subject: &str, sealed: Bytes) -> Result<Bytes, Unspecified> {
        let Some(key) = &self.0 else { return Ok(sealed) };
        let (nonce, rest) = sealed.split_at_checked(NONCE_LEN).ok_or(Unspecified)?;
        let (nonce, mut rest) = (Nonce::try_assume_unique_for_key(nonce)?, rest.to_vec());
        let length = key.open_in_place(nonce, Aad::from(subject), &mut rest)?.len();
        rest.truncate(length);
        Ok(rest.into())
    }
}

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seal").field(&self.0.is_some()).finish()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_payload_opens_only_unchanged_for_its_subject() {
        let [seal, other] = [7, 8].map(|byte| Seal::with_key(&[byte; KEY_LEN]).unwrap());
        let payload = Bytes::from_static(b"secret");
        let sealed = seal.seal("csi.edge-1", payload.clone()).unwrap();
        assert!(!sealed.windows(6).any(|window| window == b"secret"));
        assert_eq!(seal.open("csi.edge-1", sealed.clone()).unwrap(), payload);
        assert!(seal.open("csi.edge-2", sealed.clone()).is_err());
        assert!(other.open("csi.edge-1", sealed.clone()).is_err());
        assert!(seal.open("csi.edge-1", sealed.slice(..8)).is_err());
        let mut changed = sealed.to_vec();
        changed[14] ^= 1;
        assert!(seal.open("csi.edge-1", changed.into()).is_err());
        assert_ne!(seal.seal("csi.edge-1", payload).unwrap(), sealed, "the nonce is random");
    }
}
