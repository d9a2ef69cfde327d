//! Who may call whom.

use std::collections::HashSet;

use crate::name::{PeerId, ServiceName};

/// Who asks for a call.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Requester<'a> {
    /// Its name, which the hub has authenticated.
    pub peer: &'a PeerId,
    /// The services that it offers, as it says itself.
    pub services: &'a [ServiceName],
}

/// Decides whether a call may pass. Asked once per call, with names that the hub has authenticated; must not block.
pub trait Policy: Send + Sync {
    /// Whether `requester` may call `service` of `target`.
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool;
}

/// Every authenticated peer may call every other.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "has nothing to add")]
pub struct AllowAll;

impl Policy for AllowAll {
    fn may_call(&self, _: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        true
    }
}

/// A peer that offers services is a node, and nodes call nobody. Keeps nodes apart that behave; since a peer says itself what it
/// offers, a node that was taken over can leave that out: where this matters, name the callers with [`OnlyCallers`].
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "has nothing to add")]
pub struct NodesCallNobody;

impl Policy for NodesCallNobody {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        requester.services.is_empty()
    }
}

/// Only these peers may call, and what lies below their names (`proxy/replica-2` for `proxy`).
#[derive(Debug, Clone, Default)]
pub struct OnlyCallers {
    names: HashSet<PeerId>,
}

impl OnlyCallers {
    /// Lets these names call, and nobody else.
    pub fn new(names: impl IntoIterator<Item = PeerId>) -> Self {
        Self { names: names.into_iter().collect() }
    }
}

impl Policy for OnlyCallers {
    fn may_call(&self, requester: &Requester<'_>, _: &PeerId, _: &ServiceName) -> bool {
        let name = requester.peer.as_str();
        let mut above = name.match_indices('/').map(|(end, _)| &name[..end]);
        self.names.contains(name) || (!name.contains(':') && above.any(|above| self.names.contains(above)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn may(policy: &dyn Policy, peer: &str, services: &[&str]) -> bool {
        let (peer, target) = (PeerId::new(peer).unwrap(), PeerId::new("edge-9").unwrap());
        let services: Vec<_> = services.iter().map(|name| ServiceName::new(name).unwrap()).collect();
        let service = ServiceName::new("csi").unwrap();
        policy.may_call(&Requester { peer: &peer, services: &services }, &target, &service)
    }

    #[test]
    fn who_offers_a_service_calls_nobody() {
        assert!(may(&NodesCallNobody, "proxy", &[]));
        assert!(!may(&NodesCallNobody, "edge-1", &["csi"]));
    }

    #[test]
    fn only_the_named_and_what_lies_below_them_may_call() {
        let callers = OnlyCallers::new(["proxy", "spiffe://edge/a"].map(|name| PeerId::new(name).unwrap()));
        for (peer, expected) in [
            ("proxy", true),
            ("proxy/replica-2", true),
            ("proxy/a/b", true),
            ("proxy2", false),
            ("edge-1", false),
            ("edge-1/proxy", false),
            ("spiffe://edge/a", true),
            ("spiffe://edge/a/b", false),
        ] {
            assert_eq!(may(&callers, peer, &[]), expected, "{peer}");
        }
    }
}
