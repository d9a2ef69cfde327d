//! Nodes may call this one peer of their hub, whatever else they may not.

use edge_transport::hub::{Policy, Requester};
use edge_transport::{PeerId, ServiceName};

use crate::kubernetes::{PEER, SERVICE};

/// Another policy, but everyone may call the hub's peer for Kubernetes, which answers each node about itself only; and that
/// peer calls nobody.
#[derive(Debug, Clone)]
pub(in super::super) struct AskingKubernetes<P>(pub(in super::super) P);

impl<P: Policy> Policy for AskingKubernetes<P> {
    fn may_call(&self, requester: &Requester<'_>, target: &PeerId, service: &ServiceName) -> bool {
        about_kubernetes(requester.peer, target, service)
            .unwrap_or_else(|| self.0.may_call(requester, target, service))
    }
}

/// `None` if the call has nothing to do with the hub's peer.
fn about_kubernetes(from: &PeerId, to: &PeerId, service: &ServiceName) -> Option<bool> {
    match (from.as_str(), to.as_str()) {
        (PEER, _) => Some(false),
        (_, PEER) => Some(service.as_str() == SERVICE),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_peer_may_ask_the_hubs_own_peer_which_calls_nobody() {
        for (from, to, service, expected) in [
            ("edge-1", PEER, SERVICE, Some(true)),
            ("edge-1", PEER, "csi", Some(false)),
            (PEER, "edge-1", "csi", Some(false)),
            (PEER, PEER, SERVICE, Some(false)),
            ("edge-1", "edge-2", SERVICE, None),
            ("csi-proxy", "edge-2", "csi", None),
        ] {
            let (from, to) = (PeerId::new(from).unwrap(), PeerId::new(to).unwrap());
            let found = about_kubernetes(&from, &to, &ServiceName::new(service).unwrap());
            assert_eq!(found, expected, "{from} {to} {service}");
        }
    }
}
