//! Service-account tokens, as kubelet hands them to drivers.

use std::fmt::{self, Write as _};

use super::secret_values::overwrite;

/// The key of the tokens, in the volume context or among the secrets.
pub(super) const KEY: &str = "csi.storage.k8s.io/serviceAccount.tokens";

/// A token that was issued for a pod. Not printed, and overwritten when dropped.
#[derive(PartialEq, Eq)]
pub struct ServiceAccountToken {
    audience: String,
    token: String,
    expires: String,
}

impl ServiceAccountToken {
    /// A token for an audience, valid until a time in RFC 3339, such as `2026-01-31T12:00:00Z`.
    #[must_use]
    pub fn new(audience: impl Into<String>, token: impl Into<String>, expires: impl Into<String>) -> Self {
        Self { audience: audience.into(), token: token.into(), expires: expires.into() }
    }

    pub(super) fn token(&self) -> &str {
        &self.token
    }
}

impl Drop for ServiceAccountToken {
    fn drop(&mut self) {
        overwrite(std::mem::take(&mut self.token));
    }
}

impl fmt::Debug for ServiceAccountToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServiceAccountToken")
            .field("audience", &self.audience)
            .field("expires", &self.expires)
            .finish_non_exhaustive()
    }
}

/// The tokens as kubelet writes them: a JSON object by audience.
pub(super) fn json(tokens: &[ServiceAccountToken]) -> String {
    let mut json = String::from("{");
    for (index, token) in tokens.iter().enumerate() {
        json.push_str(if index == 0 { "" } else { "," });
        quote(&mut json, &token.audience);
        json.push_str(":{\"token\":");
        quote(&mut json, &token.token);
        json.push_str(",\"expirationTimestamp\":");
        quote(&mut json, &token.expires);
        json.push('}');
    }
    json.push('}');
    json
}

fn quote(json: &mut String, text: &str) {
    json.push('"');
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            // Writing into a String cannot fail.
            character if character.is_control() => drop(write!(json, "\\u{:04x}", u32::from(character))),
            character => json.push(character),
        }
    }
    json.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_a_json_object_by_audience_and_are_not_printed() {
        assert_eq!(json(&[]), "{}");
        let tokens = [
            ServiceAccountToken::new("", "t\"1\\", "2026-01-31T12:00:00Z"),
            ServiceAccountToken::new("vault\n", "t2", "2026-01-31T13:00:00Z"),
        ];
        assert_eq!(
            json(&tokens),
            r#"{"":{"token":"t\"1\\","expirationTimestamp":"2026-01-31T12:00:00Z"},"vault\u000a":{"token":"t2","expirationTimestamp":"2026-01-31T13:00:00Z"}}"#
        );
        assert!(!format!("{tokens:?}").contains("t2"));
    }
}
