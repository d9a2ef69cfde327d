//! Which names speak for which others.

use crate::name::PeerId;

/// The names that a claimed one may be proven by: itself, and those above it. `proxy` covers `proxy/replica-2`, so that
/// replicas with one certificate or token do not fence each other. A name with a colon covers itself only: the path of a URI is
/// no authority over longer ones.
pub(crate) fn covered_by(claimed: &PeerId) -> impl Iterator<Item = &str> {
    let name = claimed.as_str();
    let above = name.match_indices('/').map(|(end, _)| &name[..end]).filter(|above| !above.contains(':'));
    above.chain(std::iter::once(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_covers_itself_and_what_lies_below_it_and_nothing_beside_it() {
        for (name, claimed, expected) in [
            ("proxy", "proxy", true),
            ("proxy", "proxy/a", true),
            ("proxy", "proxy/a/b", true),
            ("proxy/a", "proxy/a/b", true),
            ("proxy", "proxy2", false),
            ("proxy", "prox", false),
            ("proxy/a", "proxy", false),
            ("spiffe://edge/ns/a", "spiffe://edge/ns/a", true),
            ("spiffe://edge/ns/a", "spiffe://edge/ns/a/sa/node-7", false),
            ("spiffe:", "spiffe://edge", false),
        ] {
            let claimed = PeerId::new(claimed).unwrap();
            assert_eq!(covered_by(&claimed).any(|above| above == name), expected, "{name} {claimed}");
        }
    }
}
