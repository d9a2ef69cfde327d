//! Who is there, as far as a watcher was told. Pure: updates in, changes out.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only a watch on a runtime takes updates"))]

use std::collections::{BTreeMap, BTreeSet};

use super::wire::{Entry, Update};
use crate::name::{PeerId, SessionId};

/// Most peers that a watcher keeps in mind. Of further ones it is not told.
pub const MAX_KNOWN: usize = 100_000;

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A peer is connected, or is connected with another session than before.
    Up {
        /// Its name.
        peer: PeerId,
        /// Its session.
        session: SessionId,
    },
    /// A peer is not connected any more.
    Down {
        /// Its name.
        peer: PeerId,
        /// The session that was known last.
        session: SessionId,
    },
    /// All who are there have been told of by now. Said after each list: at the beginning, and when the hub was away.
    Current,
}

/// Who is there.
#[derive(Debug, Default)]
pub(super) struct Roster {
    known: BTreeMap<PeerId, SessionId>,
    /// Who was in the list that is being told.
    listed: Option<BTreeSet<PeerId>>,
}

impl Roster {
    /// Takes in what the hub has said. Names that are none are passed over.
    pub(super) fn take(&mut self, update: Update) -> Vec<Change> {
        let mut changes = Vec::new();
        if update.reset {
            self.listed = Some(BTreeSet::new());
        }
        for (peer, session) in update.up.into_iter().filter_map(Entry::read) {
            if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&peer) {
                continue;
            }
            if let Some(listed) = &mut self.listed {
                listed.insert(peer.clone());
            }
            let known = self.known.get(&peer);
            if !known.is_some_and(|known| session.is_ended_by(*known)) {
                self.known.insert(peer.clone(), session);
                changes.push(Change::Up { peer, session });
            }
        }
        for (peer, session) in update.down.into_iter().filter_map(Entry::read) {
            // That of an older session comes late: the peer is connected again.
            let Some(known) = self.known.get(&peer).copied().filter(|known| known.is_ended_by(session))
            else {
                continue;
            };
            if let Some(listed) = &mut self.listed {
                listed.remove(&peer);
            }
            self.known.remove(&peer);
            changes.push(Change::Down { peer, session: known });
        }
        if update.complete
            && let Some(listed) = self.listed.take()
        {
            let known = std::mem::take(&mut self.known).into_iter();
            let (stayed, left) = known.partition::<BTreeMap<_, _>, _>(|(peer, _)| listed.contains(peer));
            self.known = stayed;
            changes.extend(left.into_iter().map(|(peer, session)| Change::Down { peer, session }));
            changes.push(Change::Current);
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

    fn session(number: u64) -> SessionId {
        SessionId { instance: 1 + number / 100, number: number % 100 }
    }

    /// Sessions of the first instance, and from 100 on of the second.
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
        Change::Down { peer: peer(name), session: session(number) }
    }

    #[test]
    fn a_list_says_who_came_and_who_left_meanwhile() {
        let mut roster = Roster::default();
        assert_eq!(roster.take(list(&[("a", 1), ("b", 1)])), [up("a", 1), up("b", 1), Change::Current]);
        assert_eq!(roster.take(list(&[("a", 1), ("c", 1)])), [up("c", 1), down("b", 1), Change::Current]);
    }

    #[test]
    fn every_newer_session_is_up_and_an_older_one_is_ignored() {
        let mut roster = Roster::default();
        roster.take(list(&[("a", 2)]));
        let again = |number| Update { up: entries(&[("a", number)]), ..Update::default() };
        assert_eq!(roster.take(again(2)), []);
        assert_eq!(roster.take(again(1)), []);
        assert_eq!(roster.take(again(3)), [up("a", 3)]);
        assert_eq!(roster.take(again(101)), [up("a", 101)], "another instance");
    }

    #[test]
    fn the_end_of_an_older_session_or_of_another_instance_is_ignored() {
        let mut roster = Roster::default();
        roster.take(list(&[("a", 5)]));
        let ended = |number| Update { down: entries(&[("a", number)]), ..Update::default() };
        assert_eq!(roster.take(ended(4)), []);
        assert_eq!(roster.take(ended(105)), []);
        assert_eq!(roster.take(ended(5)), [down("a", 5)]);
        assert_eq!(roster.take(ended(5)), []);
        roster.take(list(&[("a", 5)]));
        assert_eq!(roster.take(ended(6)), [down("a", 5)], "the sixth came and went in between");
    }

    #[test]
    fn a_list_in_pieces_says_that_nobody_is_missing_before_it_is_complete() {
        let mut roster = Roster::default();
        roster.take(list(&[("a", 1), ("b", 1)]));
        let begun = Update { reset: true, up: entries(&[("a", 1)]), ..Update::default() };
        assert_eq!(roster.take(begun.clone()), []);
        // The list begins anew: the reader was too slow.
        assert_eq!(roster.take(begun), []);
        let down_now = entries(&[("a", 1)]);
        let rest = Update { up: entries(&[("c", 1)]), down: down_now, complete: true, ..Update::default() };
        let expected = [up("c", 1), down("a", 1), down("b", 1), Change::Current];
        assert_eq!(roster.take(rest), expected);
    }

    #[test]
    fn a_name_that_is_not_valid_is_ignored() {
        let mut roster = Roster::default();
        let nobody = Entry { peer: String::new(), ..Entry::new(&peer("a"), session(1)) };
        let down = vec![Entry { peer: "no name".to_owned(), ..nobody.clone() }];
        let mut update = Update { down, ..list(&[("a", 1)]) };
        update.up.push(nobody);
        assert_eq!(roster.take(update), [up("a", 1), Change::Current]);
    }
}
