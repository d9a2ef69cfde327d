//! Who wants to know when a peer is back.

use std::collections::{BTreeSet, HashMap};

use super::SessionKey;
use crate::name::PeerId;

/// Peers that one requester may wait for. A call to one more waits for as long as it can, and ends without a word.
const MAX_AWAITED: usize = 256;

/// Requesters with calls that wait for a peer which is not connected.
#[derive(Debug, Default)]
pub(super) struct Returning {
    requesters: HashMap<PeerId, BTreeSet<SessionKey>>,
    awaited: HashMap<SessionKey, BTreeSet<PeerId>>,
}

impl Returning {
    pub(super) fn wait(&mut self, requester: SessionKey, peer: &PeerId) {
        let awaited = self.awaited.entry(requester).or_default();
        if awaited.len() < MAX_AWAITED && awaited.insert(peer.clone()) {
            self.requesters.entry(peer.clone()).or_default().insert(requester);
        }
    }

    /// The peer is back. Returns who is to be told, in order.
    pub(super) fn returned(&mut self, peer: &PeerId) -> BTreeSet<SessionKey> {
        let requesters = self.requesters.remove(peer).unwrap_or_default();
        for requester in &requesters {
            if let Some(awaited) = self.awaited.get_mut(requester) {
                awaited.remove(peer);
                if awaited.is_empty() {
                    self.awaited.remove(requester);
                }
            }
        }
        requesters
    }

    /// The requester's link is gone. It says itself what it waits for when it is back.
    pub(super) fn gone(&mut self, requester: SessionKey) {
        for peer in self.awaited.remove(&requester).unwrap_or_default() {
            if let Some(requesters) = self.requesters.get_mut(&peer) {
                requesters.remove(&requester);
                if requesters.is_empty() {
                    self.requesters.remove(&peer);
                }
            }
        }
    }

    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.requesters.is_empty() && self.awaited.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_when_peers_are_back_or_requesters_gone() {
        let mut returning = Returning::default();
        let (a, b) = (SessionKey::after(1), SessionKey::after(2));
        let peer = |index: usize| PeerId::new(format!("edge-{index}")).unwrap();
        returning.wait(a, &peer(1));
        returning.wait(a, &peer(2));
        returning.wait(b, &peer(1));
        assert_eq!(returning.returned(&peer(1)), BTreeSet::from([a, b]));
        assert_eq!(returning.returned(&peer(1)), BTreeSet::new());
        returning.gone(a);
        assert!(returning.is_empty());
        for index in 0..2 * MAX_AWAITED {
            returning.wait(b, &peer(index));
        }
        assert_eq!(returning.requesters.len(), MAX_AWAITED);
        returning.gone(b);
        assert!(returning.is_empty());
    }
}
