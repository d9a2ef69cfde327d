//! The set of connected peers at a watcher. Pure: each update returns the changes.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only a watch on a runtime applies updates"))]

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{Entry, Update};
use crate::name::{PeerId, SessionId};

/// Maximum number of peers that a watcher tracks. Further ones are ignored.
pub const MAX_PEERS: usize = 100_000;

/// A change of the connected peers.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A peer is connected, or is connected with a new session. Each list repeats the connected peers.
    Up {
        /// The peer's name.
        peer: PeerId,
        /// The peer's session.
        session: SessionId,
    },
    /// A peer is no longer connected.
    Down {
        /// The peer's name.
        peer: PeerId,
        /// The peer's last known session.
        session: SessionId,
        /// Whether the session was drained, by the peer or by the hub, and not lost.
        drained: bool,
    },
    /// All connected peers have been reported. Follows each list: at the start and after a reconnect.
    Synced,
    /// The hub does not report its peers. The watch is repeated, up to every 30 s.
    Failed {
        /// The cause, and what the hub needs.
        cause: String,
    },
}

/// The known peers and their sessions.
#[derive(Debug, Default)]
pub(super) struct PeerSet {
    known: BTreeMap<PeerId, SessionId>,
    /// Peers in the list that is being received.
    listed: Option<BTreeSet<PeerId>>,
}

impl PeerSet {
    /// Applies an update of the hub. Entries with invalid names are ignored.
    pub(super) fn apply(&mut self, update: Update) -> Vec<Change> {
        let mut changes = Vec::new();
        if update.reset {
            self.listed = Some(BTreeSet::new());
        }
        for (peer, session) in update.up.into_iter().filter_map(Entry::read) {
            if self.known.len() >= MAX_PEERS && !self.known.contains_key(&peer) {
                continue;
            }
            if let Some(listed) = &mut self.listed {
                listed.insert(peer.clone());
            }
            let known = self.known.get(&peer).copied();
            let is_new = !known.is_some_and(|known| session.is_ended_by(known));
            // Another hub may have reported the peer since the last list.
            if is_new || (self.listed.is_some() && known == Some(session)) {
                self.known.insert(peer.clone(), session);
                changes.push(Change::Up { peer, session });
            }
        }
        for entry in update.down {
            let drained = entry.drained;
            let Some((peer, session)) = entry.read() else { continue };
            // The end of an older session may arrive late, after the peer has reconnected.
            let Some(known) = self.known.get(&peer).copied().filter(|known| known.is_ended_by(session))
            else {
                continue;
            };
            if let Some(listed) = &mut self.listed {
                listed.remove(&peer);
            }
            self.known.remove(&peer);
            changes.push(Change::Down { peer, session: known, drained });
        }
        if update.complete
            && let Some(listed) = self.listed.take()
        {
            let known = std::mem::take(&mut self.known).into_iter();
            let (stayed, left) = known.partition::<BTreeMap<_, _>, _>(|(peer, _)| listed.contains(peer));
            self.known = stayed;
            let down = |(peer, session)| Change::Down { peer, session, drained: false };
            changes.extend(left.into_iter().map(down));
            changes.push(Change::Synced);
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::Entry;
    use super::*;

    fn peer(name: &str) -> PeerId {
        PeerId::new(name).unwrap()
    }

    /// Numbers below 100 are sessions of the first instance, numbers from 100 of the second.
    fn session(number: u64) -> SessionId {
        SessionId { instance: 1 + number / 100, number: number % 100 }
    }

    fn entries(names: &[(&str, u64)]) -> Vec<Entry> {
        names.iter().map(|(name, number)| Entry::new(&peer(name), session(*number))).collect()
    }

    fn list(names: &[(&str, u64)]) -> Update {
        Update { reset: true, up: entries(names), complete: true, ..Update::default() }
    }

    fn up(name: &str, number: u64) -> Change {
        Change::Up { peer: peer(name), session: session(number) }
    }

    fn down(name: &str, number: u64) -> Change {
        Change::Down { peer: peer(name), session: session(number), drained: false }
    }

    #[test]
    fn list_reports_added_and_removed_peers() {
        let mut peer_set = PeerSet::default();
        assert_eq!(peer_set.apply(list(&[("a", 1), ("b", 1)])), [up("a", 1), up("b", 1), Change::Synced]);
        let next = peer_set.apply(list(&[("a", 1), ("c", 1)]));
        assert_eq!(next, [up("a", 1), up("c", 1), down("b", 1), Change::Synced]);
    }

    #[test]
    fn newer_session_is_up_and_older_is_ignored() {
        let mut peer_set = PeerSet::default();
        peer_set.apply(list(&[("a", 2)]));
        let again = |number| Update { up: entries(&[("a", number)]), ..Update::default() };
        assert_eq!(peer_set.apply(again(2)), []);
        assert_eq!(peer_set.apply(again(1)), []);
        assert_eq!(peer_set.apply(again(3)), [up("a", 3)]);
        assert_eq!(peer_set.apply(again(101)), [up("a", 101)], "another instance");
    }

    #[test]
    fn ignores_end_of_older_session_or_other_instance() {
        let mut peer_set = PeerSet::default();
        peer_set.apply(list(&[("a", 5)]));
        let ended = |number| Update { down: entries(&[("a", number)]), ..Update::default() };
        assert_eq!(peer_set.apply(ended(4)), []);
        assert_eq!(peer_set.apply(ended(105)), []);
        assert_eq!(peer_set.apply(ended(5)), [down("a", 5)]);
        assert_eq!(peer_set.apply(ended(5)), []);
        peer_set.apply(list(&[("a", 5)]));
        assert_eq!(peer_set.apply(ended(6)), [down("a", 5)], "the sixth session was short");
    }

    #[test]
    fn reports_removed_peers_only_after_the_whole_list() {
        let mut peer_set = PeerSet::default();
        peer_set.apply(list(&[("a", 1), ("b", 1)]));
        let begun = Update { reset: true, up: entries(&[("a", 1)]), ..Update::default() };
        assert_eq!(peer_set.apply(begun.clone()), [up("a", 1)]);
        // The list restarts: the reader was too slow.
        assert_eq!(peer_set.apply(begun), [up("a", 1)]);
        let down_now = entries(&[("a", 1)]);
        let rest = Update { up: entries(&[("c", 1)]), down: down_now, complete: true, ..Update::default() };
        let expected = [up("c", 1), down("a", 1), down("b", 1), Change::Synced];
        assert_eq!(peer_set.apply(rest), expected);
    }

    #[test]
    fn ignores_invalid_names() {
        let mut peer_set = PeerSet::default();
        let unnamed = Entry { peer: String::new(), ..Entry::new(&peer("a"), session(1)) };
        let down = vec![Entry { peer: "no name".to_owned(), ..unnamed.clone() }];
        let mut update = Update { down, ..list(&[("a", 1)]) };
        update.up.push(unnamed);
        assert_eq!(peer_set.apply(update), [up("a", 1), Change::Synced]);
    }
}
