//! References to secrets.

use std::fmt;

/// The namespace and name of a secret. Only the reference is stored, never the value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SecretReference {
    namespace: String,
    name: String,
}

impl SecretReference {
    /// The most bytes of the namespace, and of the name.
    pub const MAX_BYTES: usize = 253;

    /// The most bytes of all keys and values of a secret, the same as the limit of a Kubernetes Secret.
    pub const MAX_VALUE_BYTES: usize = 1024 * 1024;

    /// Checks a reference: a namespace, which may be empty, and a name.
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

/// Why two texts are not a [`SecretReference`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidSecretReference {
    /// There is no name.
    #[error("the secret has no name; set one, or remove the reference")]
    NoName,
    /// More than [`SecretReference::MAX_BYTES`] bytes.
    #[error("the secret's {field} has {found} bytes; at most {} are allowed", SecretReference::MAX_BYTES)]
    TooLong {
        /// `namespace` or `name`.
        field: &'static str,
        /// How many bytes there are.
        found: usize,
    },
    /// A character that would garble logs.
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
