//! The values of secrets, for the time of one call.

use std::collections::BTreeMap;
use std::fmt;
use std::hint::black_box;

/// The values of a secret. Neither printed nor copied by anything here, and overwritten when dropped.
///
/// The overwriting is the best that safe code can do: the request on its way to the driver is a copy which HTTP/2
/// drops without it.
#[derive(Default, PartialEq, Eq)]
pub struct SecretValues(BTreeMap<String, String>);

impl SecretValues {
    pub(super) fn bytes(&self) -> usize {
        self.0.iter().map(|(key, value)| key.len() + value.len()).sum()
    }

    /// A copy for a request.
    pub(super) fn to_message(&self) -> BTreeMap<String, String> {
        self.0.clone()
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &str> {
        self.0.values().map(String::as_str)
    }

    /// A copy for the next call; only the one who keeps secrets has a use for it.
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

pub(super) fn overwrite(text: String) {
    let mut bytes = text.into_bytes();
    bytes.fill(0);
    // So that the compiler takes the zeros for read.
    black_box(&bytes);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_not_printed() {
        let values: SecretValues = [("user", "root"), ("key", "hunter2")].into_iter().collect();
        assert_eq!(format!("{values:?}"), "SecretValues(2 stripped)");
    }
}
