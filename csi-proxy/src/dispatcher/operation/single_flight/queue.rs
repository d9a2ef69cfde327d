//! Operations that wait for others on their volumes. First come, first served, for each volume.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use csi_proto::Method;

use super::super::identity::Identity;
use super::super::limits::Limits;
use super::super::subject::Key;
use super::Waiter;
use super::event::WaiterId;

/// A place in the queue. The operation that came first has the lowest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u64);

/// An operation that waits to be begun.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) identity: Identity,
    /// At least one, in the order in which they came.
    pub(super) waiters: Vec<Waiter>,
}

/// All operations that wait, each in the lane of every key that it is about.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: u64,
    queued: BTreeMap<Place, Queued>,
    lanes: HashMap<Key, VecDeque<Place>>,
    waiters: HashMap<WaiterId, (Place, Instant)>,
    due: BTreeSet<(Instant, WaiterId)>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// How many waiters there are.
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Where this operation waits already.
    pub(super) fn place_of(&self, identity: &Identity) -> Option<Place> {
        let mut lane = self.lanes.get(identity.keys().first()?)?.iter().copied();
        lane.find(|place| self.queued.get(place).is_some_and(|queued| queued.identity == *identity))
    }

    /// What waits before an operation that would come now.
    pub(super) fn before(&self, identity: &Identity) -> Option<Method> {
        identity.keys().iter().find_map(|key| self.method_at(self.front(key)?))
    }

    /// What waits before the operation of this place.
    pub(super) fn ahead_of(&self, place: Place) -> Option<Method> {
        let keys = self.queued.get(&place)?.identity.keys();
        keys.iter().find_map(|key| self.method_at(self.front(key).filter(|front| *front != place)?))
    }

    fn method_at(&self, place: Place) -> Option<Method> {
        self.identity(place).map(Identity::method)
    }

    pub(super) fn has_room(&self, identity: &Identity, limits: &Limits) -> bool {
        let is_short = |key: &Key| self.lanes.get(key).is_none_or(|lane| lane.len() < limits.queued_on_one);
        self.queued.len() < limits.queued && identity.keys().iter().all(is_short)
    }

    /// A waiter joins an operation that waits, or the operation gets a place at the end.
    pub(super) fn push(
        &mut self,
        place: Option<Place>,
        identity: Identity,
        waiter: Waiter,
        gives_up: Instant,
    ) {
        let place = place.unwrap_or_else(|| {
            let place = Place(self.next);
            self.next += 1;
            for key in identity.keys() {
                self.lanes.entry(key.clone()).or_default().push_back(place);
            }
            place
        });
        self.waiters.insert(waiter.id, (place, gives_up));
        self.due.insert((gives_up, waiter.id));
        let queued = self.queued.entry(place);
        queued.or_insert_with(|| Queued { identity, waiters: Vec::new() }).waiters.push(waiter);
    }

    /// The next waiter that has waited long enough, and where.
    pub(super) fn overdue(&self, now: Instant) -> Option<(WaiterId, Place)> {
        let (_, waiter) = *self.due.first().filter(|(gives_up, _)| *gives_up <= now)?;
        Some((waiter, self.waiters.get(&waiter)?.0))
    }

    /// Any of the waiters.
    pub(super) fn any(&self) -> Option<WaiterId> {
        self.due.first().map(|(_, waiter)| *waiter)
    }

    /// The operation of a place.
    pub(super) fn identity(&self, place: Place) -> Option<&Identity> {
        self.queued.get(&place).map(|queued| &queued.identity)
    }

    /// Takes a waiter out. With the operation, if it was the last one.
    pub(super) fn leave(&mut self, waiter: WaiterId) -> Option<Queued> {
        let (place, gives_up) = self.waiters.remove(&waiter)?;
        self.due.remove(&(gives_up, waiter));
        let queued = self.queued.get_mut(&place)?;
        queued.waiters.retain(|other| other.id != waiter);
        if queued.waiters.is_empty() { self.remove(place) } else { None }
    }

    /// The operation that is first in the lane of a key.
    pub(super) fn front(&self, key: &Key) -> Option<Place> {
        self.lanes.get(key)?.front().copied()
    }

    /// Takes an operation out whose turn has come.
    pub(super) fn take(&mut self, place: Place) -> Option<Queued> {
        let queued = self.remove(place)?;
        for waiter in &queued.waiters {
            if let Some((_, gives_up)) = self.waiters.remove(&waiter.id) {
                self.due.remove(&(gives_up, waiter.id));
            }
        }
        Some(queued)
    }

    fn remove(&mut self, place: Place) -> Option<Queued> {
        let queued = self.queued.remove(&place)?;
        for key in queued.identity.keys() {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.retain(|other| *other != place);
                if lane.is_empty() {
                    self.lanes.remove(key);
                }
            }
        }
        Some(queued)
    }
}
