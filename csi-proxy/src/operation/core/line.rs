//! Who waits for what is done to their volumes. First come, first served, for each volume.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use csi_proto::Method;

use super::super::by_key::ByKey;
use super::super::counted::ByCount;
use super::super::identity::Identity;
use super::super::limits::Limits;
use super::super::subject::Key;
use super::event::AskerId;

/// A place in the line. Who came first has the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

/// An operation that waits to be begun.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) identity: Identity,
    /// The call whose request is to be used, here or gone.
    pub(super) first: AskerId,
    /// Calls that wait for it, in the order in which they came. At least one.
    pub(super) askers: Vec<AskerId>,
}

/// A call in the line.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waits {
    place: Place,
    gives_up: Instant,
    /// When its caller stops waiting.
    pub(super) until: Option<Instant>,
}

/// All operations that wait, each in the lane of every key that it is about.
#[derive(Debug, Default)]
pub(super) struct Line {
    next: u64,
    waiters: BTreeMap<Place, Waiter>,
    lanes: ByKey<VecDeque<Place>>,
    askers: ByCount<AskerId, Waits>,
    due: BTreeSet<(Instant, AskerId)>,
}

impl Line {
    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// How many calls wait.
    pub(super) fn len(&self) -> usize {
        self.askers.len()
    }

    /// Where this operation waits already.
    pub(super) fn place_of(&self, identity: &Identity) -> Option<Place> {
        let lane = self.lanes.get(identity.keys().first()?)?;
        lane.iter()
            .copied()
            .find(|place| self.waiters.get(place).is_some_and(|waiter| waiter.identity == *identity))
    }

    /// What waits before an operation that would come now.
    pub(super) fn before(&self, identity: &Identity) -> Option<Method> {
        identity.keys().iter().find_map(|key| self.method_at(*self.lanes.get(key)?.front()?))
    }

    /// What waits before the operation of this place.
    pub(super) fn ahead_of(&self, place: Place) -> Option<Method> {
        let keys = self.waiters.get(&place)?.identity.keys();
        let other = |key| self.lanes.get(key)?.front().filter(|front| **front != place);
        keys.iter().find_map(|key| self.method_at(*other(key)?))
    }

    fn method_at(&self, place: Place) -> Option<Method> {
        self.waiters.get(&place).map(|waiter| waiter.identity.method())
    }

    pub(super) fn has_room(&self, identity: &Identity, limits: &Limits) -> bool {
        let is_short = |key: &Key| self.lanes.get(key).is_none_or(|lane| lane.len() < limits.waiting_on_one);
        self.waiters.len() < limits.waiting && identity.keys().iter().all(is_short)
    }

    /// A place at the end.
    pub(super) fn stand(
        &mut self,
        asker: AskerId,
        identity: Identity,
        gives_up: Instant,
        until: Option<Instant>,
    ) {
        let place = Place(self.next);
        self.next += 1;
        for key in identity.keys() {
            self.lanes.entry(key.clone()).or_default().push_back(place);
        }
        self.waiters.insert(place, Waiter { identity, first: asker, askers: Vec::new() });
        self.join(place, asker, gives_up, until);
    }

    /// One more call for an operation that waits.
    pub(super) fn join(&mut self, place: Place, asker: AskerId, gives_up: Instant, until: Option<Instant>) {
        let Some(waiter) = self.waiters.get_mut(&place) else { return };
        waiter.askers.push(asker);
        self.askers.insert(asker, Waits { place, gives_up, until });
        self.due.insert((gives_up, asker));
    }

    /// The next call that has waited long enough, and what it waits for.
    pub(super) fn overdue(&self, now: Instant) -> Option<(AskerId, Place)> {
        let (_, asker) = *self.due.first().filter(|(gives_up, _)| *gives_up <= now)?;
        Some((asker, self.askers.get(&asker)?.place))
    }

    /// Any of the calls.
    pub(super) fn any(&self) -> Option<AskerId> {
        self.due.first().map(|(_, asker)| *asker)
    }

    /// The operation of a place.
    pub(super) fn waiter(&self, place: Place) -> Option<&Waiter> {
        self.waiters.get(&place)
    }

    /// Takes a call out. With the operation, if nobody waits for it any more.
    pub(super) fn leave(&mut self, asker: AskerId) -> Option<Waiter> {
        let Waits { place, gives_up, .. } = self.askers.remove(&asker)?;
        self.due.remove(&(gives_up, asker));
        let waiter = self.waiters.get_mut(&place)?;
        waiter.askers.retain(|other| *other != asker);
        if waiter.askers.is_empty() { self.remove(place) } else { None }
    }

    /// Who is first in the lane of a key.
    pub(super) fn front(&self, key: &Key) -> Option<Place> {
        self.lanes.get(key)?.front().copied()
    }

    /// Takes an operation out that is to begin, with those who wait for it.
    pub(super) fn take(&mut self, place: Place) -> Option<(Waiter, Vec<(AskerId, Waits)>)> {
        let waiter = self.remove(place)?;
        let out = |asker: &AskerId| {
            let waits = self.askers.remove(asker)?;
            self.due.remove(&(waits.gives_up, *asker));
            Some((*asker, waits))
        };
        let askers = waiter.askers.iter().filter_map(out).collect();
        Some((waiter, askers))
    }

    fn remove(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        for key in waiter.identity.keys() {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.retain(|other| *other != place);
                if lane.is_empty() {
                    self.lanes.remove(key);
                }
            }
        }
        Some(waiter)
    }
}
