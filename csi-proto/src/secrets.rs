//! Redaction of sensitive fields.
//!
//! Every message with a sensitive field has a `Debug` that prints `***stripped***` in its place, so a message can be
//! logged as a whole. An empty field prints `<empty>`, which helps to find a missing secret. These are sensitive: the
//! fields with option 1059 ([`SECRET_FIELDS`]); `mount_flags`, which only the text of the spec declares sensitive; and
//! the service-account tokens that kubelet puts in the `volume_context` of NodePublishVolume.

use std::collections::BTreeMap;
use std::fmt;

include!("generated/secrets.rs");

/// A field whose value is a secret of the caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SecretField {
    /// The full name of the message, like `csi.v1.CreateVolumeRequest`.
    pub message: &'static str,
    /// The field's name in the schema.
    pub field: &'static str,
}

const STRIPPED: &str = "***stripped***";

/// The key of the service-account tokens that kubelet passes when a CSIDriver has `tokenRequests`.
pub const TOKENS: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// Replaces a sensitive value in the output of `Debug`.
struct Stripped {
    empty: bool,
}

impl Stripped {
    fn of(empty: bool) -> Self {
        Self { empty }
    }
}

impl fmt::Debug for Stripped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.empty { "<empty>" } else { STRIPPED })
    }
}

/// A volume context whose tokens are redacted.
struct WithoutTokens<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for WithoutTokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = self.0.iter().map(|(key, value)| (key, if key == TOKENS { STRIPPED } else { value }));
        f.debug_map().entries(entries).finish()
    }
}
