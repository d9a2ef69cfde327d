//! References to secrets.

use std::fmt;

/// The namespace and name of a secret. Only the reference is stored, never the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretReference {
    namespace: String,
    name: String,
}

impl SecretReference {
    /// The maximum size of the namespace, and of the name, in bytes.
    pub const MAX_BYTES: usize = 253;

    /// The maximum size of all keys and values of a secret in bytes, the same as the limit of a Kubernetes Secret.
    pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

    /// Creates a reference from a namespace, which may be empty, and a name.
    ///
    /// # Errors
    /// If the name is empty, or either is too long or contains a control character.
    pub fn new(
        namespace: impl Into<String>,
        name: impl Into<String>,
    ) -> Result<Self, InvalidSecretReference> {
        let reference = Self { namespace: namespace.into(), name: name.into() };
        if reference.name.is_empty() {
            return Err(InvalidSecretReference::NoName);
        }
        for (field, text) in [("namespace", &reference.namespace), ("name", &reference.name)] {
            if text.len() > Self::MAX_BYTES {
                return Err(InvalidSecretReference::TooLong { field, found: text.len() });
            }
            if text.chars().any(char::is_control) {
                return Err(InvalidSecretReference::ControlCharacter { field });
            }
        }
        Ok(reference)
    }

    /// The namespace; may be empty.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Display for SecretReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Why a namespace and a name are not a valid [`SecretReference`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSecretReference {
    /// The name is empty.
    #[error("the secret has no name; set one, or remove the reference")]
    NoName,
    /// The namespace or the name has more than [`SecretReference::MAX_BYTES`] bytes.
    #[error("the secret's {field} has {found} bytes; at most {} are allowed", SecretReference::MAX_BYTES)]
    TooLong {
        /// `namespace` or `name`.
        field: &'static str,
        /// The size of the field in bytes.
        found: usize,
    },
    /// The namespace or the name contains a control character, which would garble logs.
    #[error("the secret's {field} contains a control character; remove it")]
    ControlCharacter {
        /// `namespace` or `name`.
        field: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reference_needs_a_name_and_has_bounds() {
        assert_eq!(SecretReference::new("ns", "s").unwrap().to_string(), "ns/s");
        assert_eq!(SecretReference::new("ns", ""), Err(InvalidSecretReference::NoName));
        let long = SecretReference::new("n".repeat(254), "s");
        assert_eq!(long, Err(InvalidSecretReference::TooLong { field: "namespace", found: 254 }));
        let garbled = SecretReference::new("ns", "s\n");
        assert_eq!(garbled, Err(InvalidSecretReference::ControlCharacter { field: "name" }));
    }
}
