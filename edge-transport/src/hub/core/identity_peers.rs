//! Counts the connected peers of each identity.

use std::collections::HashMap;

use crate::hub::identity::Identity;

/// Maximum number of connected peers of an identity whose peers may not call others: the name of a node's
/// certificate or token, and two names below it. A newer session replaces the older one of its peer and does not
/// count.
pub(super) const MAX_PEERS_PER_NODE: usize = 3;

/// The connected peers of each identity; identities without one have no entry.
#[derive(Debug, Default)]
pub(super) struct IdentityPeers(HashMap<Identity, usize>);

impl IdentityPeers {
    pub(super) fn count(&self, identity: &Identity) -> usize {
        self.0.get(identity).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, identity: Identity) {
        *self.0.entry(identity).or_default() += 1;
    }

    pub(super) fn remove(&mut self, identity: &Identity) {
        if let Some(peers) = self.0.get_mut(identity) {
            *peers = peers.saturating_sub(1);
            if *peers == 0 {
                self.0.remove(identity);
            }
        }
    }

    /// Whether no peer is connected.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::frame::PROTOCOL_VERSION;
    use crate::hub::{Core, HubSettings, Policy, Rules, SessionKey};
    use crate::name::{PeerId, SessionId};
    use crate::session::{CloseReason, Remote};

    fn core(policy: impl Policy + 'static) -> Core {
        let settings = HubSettings { max_peers_per_caller: 5, ..HubSettings::default() };
        Core::new(settings, Arc::new(policy))
    }

    fn admit(core: &mut Core, identity: &str, peer: &str, number: u64) -> Result<SessionKey, CloseReason> {
        let remote = Remote {
            peer: PeerId::new(peer).unwrap(),
            session: SessionId { instance: 1, number },
            version: PROTOCOL_VERSION,
            max_frame: 1 << 20,
            services: Arc::from([]),
            features: Vec::new(),
            idle_ping: None,
        };
        core.admit_as(&remote, Identity::Name(PeerId::new(identity).unwrap()))
    }

    fn refused(outcome: Result<SessionKey, CloseReason>, limit: usize) -> bool {
        matches!(outcome, Err(CloseReason::Overloaded { max, .. }) if max == limit)
    }

    /// A node's certificate admits its name and two below; newer sessions replace older ones, and a lost link
    /// makes room.
    #[test]
    fn node_certificate_admits_three_peers() {
        let mut core = core(Rules::callers([PeerId::new("proxy").unwrap()]));
        let first = admit(&mut core, "edge-1", "edge-1", 1).unwrap();
        let key = admit(&mut core, "edge-1", "edge-1/a", 1).unwrap();
        admit(&mut core, "edge-1", "edge-1/b", 1).unwrap();
        assert!(refused(admit(&mut core, "edge-1", "edge-1/c", 1), MAX_PEERS_PER_NODE));
        let newer = admit(&mut core, "edge-1", "edge-1", 2).unwrap();
        core.lost(first);
        assert!(refused(admit(&mut core, "edge-1", "edge-1/c", 1), MAX_PEERS_PER_NODE));
        admit(&mut core, "edge-2", "edge-2", 1).unwrap();
        core.lost(key);
        admit(&mut core, "edge-1", "edge-1/c", 1).unwrap();
        core.lost(newer);
        assert_eq!(core.identity_peers.count(&Identity::Name(PeerId::new("edge-1").unwrap())), 2);
    }

    /// The setting limits the peers of a caller's certificate.
    #[test]
    fn caller_certificate_admits_the_configured_number() {
        let mut core = core(Rules::callers([PeerId::new("proxy").unwrap()]));
        let keys: Vec<SessionKey> =
            (0..5).map(|number| admit(&mut core, "proxy", &format!("proxy/{number}"), 1).unwrap()).collect();
        assert!(refused(admit(&mut core, "proxy", "proxy/5", 1), 5));
        keys.into_iter().for_each(|key| core.lost(key));
        assert!(core.identity_peers.is_empty());
    }

    /// A session that replaces one of another identity counts for its own.
    #[test]
    fn replaced_session_counts_for_the_new_identity() {
        let mut core = core(Rules::allow_all());
        let older = admit(&mut core, "edge-1", "edge-1/a", 1).unwrap();
        let newer = admit(&mut core, "edge-1/a", "edge-1/a", 2).unwrap();
        let counts = |core: &Core| {
            ["edge-1", "edge-1/a"]
                .map(|name| core.identity_peers.count(&Identity::Name(PeerId::new(name).unwrap())))
        };
        assert_eq!(counts(&core), [0, 1]);
        core.lost(older);
        assert_eq!(counts(&core), [0, 1]);
        core.lost(newer);
        assert!(core.identity_peers.is_empty());
    }
}
