//! Who is there, as far as a watcher was told. Pure: updates in, changes out.

#![cfg_attr(not(feature = "runtime"), allow(dead_code, reason = "only a watch on a runtime takes updates"))]

use std::collections::{BTreeMap, BTreeSet};

use super::wire::Update;
use crate::name::{Epoch, PeerId};

/// Most peers that a watcher keeps in mind. Of further ones it is not told.
pub const MAX_KNOWN: usize = 100_000;

/// What has changed.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// A peer is there, or is there in a new life.
    Up(PeerId),
    /// A peer is not there any more.
    Down(PeerId),
    /// All who are there have been told of by now. Said after each list: at the beginning, and when the hub was away.
    Current,
}

/// Who is there.
#[derive(Debug, Default)]
pub(super) struct Roster {
    known: BTreeMap<PeerId, Epoch>,
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
        for entry in update.up {
            let Ok(peer) = PeerId::new(&entry.peer) else { continue };
            let epoch = Epoch::new(entry.epoch);
            if self.known.len() >= MAX_KNOWN && !self.known.contains_key(&peer) {
                continue;
            }
            if let Some(listed) = &mut self.listed {
                listed.insert(peer.clone());
            }
            if self.known.insert(peer.clone(), epoch) != Some(epoch) {
                changes.push(Change::Up(peer));
            }
        }
        for peer in update.down.into_iter().filter_map(|name| PeerId::new(name).ok()) {
            if let Some(listed) = &mut self.listed {
                listed.remove(&peer);
            }
            if self.known.remove(&peer).is_some() {
                changes.push(Change::Down(peer));
            }
        }
        if update.complete
            && let Some(listed) = self.listed.take()
        {
            let left: Vec<_> = self.known.keys().filter(|peer| !listed.contains(*peer)).cloned().collect();
            for peer in left {
                self.known.remove(&peer);
                changes.push(Change::Down(peer));
            }
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

    fn up(names: &[(&str, u64)]) -> Vec<Entry> {
        names.iter().map(|(peer, epoch)| Entry { peer: (*peer).to_owned(), epoch: *epoch }).collect()
    }

    fn list(names: &[(&str, u64)]) -> Update {
        Update { reset: true, up: up(names), complete: true, ..Update::default() }
    }

    #[test]
    fn a_list_tells_who_came_and_who_left_meanwhile_and_nothing_of_those_who_stayed() {
        let mut roster = Roster::default();
        let changes = roster.take(list(&[("a", 1), ("b", 1)]));
        assert_eq!(changes, [Change::Up(peer("a")), Change::Up(peer("b")), Change::Current]);
        let changes = roster.take(list(&[("a", 1), ("c", 1)]));
        assert_eq!(changes, [Change::Up(peer("c")), Change::Down(peer("b")), Change::Current]);
    }

    #[test]
    fn a_new_life_is_told_and_a_new_link_of_the_same_life_is_not() {
        let mut roster = Roster::default();
        roster.take(list(&[("a", 1)]));
        let again = |epoch| Update { up: up(&[("a", epoch)]), ..Update::default() };
        assert_eq!(roster.take(again(1)), []);
        assert_eq!(roster.take(again(2)), [Change::Up(peer("a"))]);
    }

    #[test]
    fn a_list_in_pieces_tells_of_nobody_as_missing_before_it_is_complete() {
        let mut roster = Roster::default();
        roster.take(list(&[("a", 1), ("b", 1)]));
        let begun = Update { reset: true, up: up(&[("a", 1)]), ..Update::default() };
        assert_eq!(roster.take(begun.clone()), []);
        // The list begins anew: the reader was too slow.
        assert_eq!(roster.take(begun), []);
        let rest =
            Update { up: up(&[("c", 1)]), down: vec!["a".to_owned()], complete: true, ..Update::default() };
        let changes = roster.take(rest);
        let expected =
            [Change::Up(peer("c")), Change::Down(peer("a")), Change::Down(peer("b")), Change::Current];
        assert_eq!(changes, expected);
    }

    #[test]
    fn a_name_that_is_not_valid_is_ignored() {
        let mut roster = Roster::default();
        let update = Update { down: vec!["no name".to_owned()], ..list(&[("", 1), ("a", 1)]) };
        assert_eq!(roster.take(update), [Change::Up(peer("a")), Change::Current]);
    }
}
