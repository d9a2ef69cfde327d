//! The rules of Kubernetes for the keys and values of labels.

use crate::kubernetes::node_name::is_subdomain;

/// The maximum length in bytes of a key after its domain, and of a value.
pub(super) const MAX_BYTES: usize = 63;

/// Returns true if a text is a valid key: a name, optionally after a domain and a slash.
pub(super) fn is_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((domain, name)) => is_subdomain(domain) && is_name(name),
        None => is_name(text),
    }
}

/// Returns true if a text is a valid value.
pub(super) fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let alphanumeric = |byte: u8| byte.is_ascii_alphanumeric();
    text.len() <= MAX_BYTES
        && text.bytes().all(|byte| alphanumeric(byte) || b"-_.".contains(&byte))
        && text.bytes().next().is_some_and(alphanumeric)
        && text.bytes().next_back().is_some_and(alphanumeric)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_what_kubernetes_says_it_is() {
        let (long, too_long) = ("a".repeat(MAX_BYTES), "a".repeat(MAX_BYTES + 1));
        for name in ["a", "A_b-c.7", "0", &long] {
            assert!(is_key(name) && is_value(name), "{name}");
            assert!(is_key(&format!("d.example/{name}")), "{name}");
        }
        assert!(is_key(&format!("{}/{long}", "d".repeat(253))));
        assert!(!is_key(&format!("{}/{long}", "d".repeat(254))));
        for wrong in ["rack 7", "-a", "a-", "a/b/c", "ä", "a=b", "a\n", &too_long] {
            assert!(!is_key(wrong) && !is_value(wrong), "{wrong}");
        }
        assert!(is_value("") && !is_key("") && !is_key("d/") && !is_key("/a") && !is_key("D.example/a"));
    }
}
