//! The queue of operations that wait for others on their volumes. First come, first served, per volume.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Instant;

use csi_proto::Method;

use super::super::identity::Identity;
use super::super::limits::Limits;
use super::Waiter;
use super::event::WaiterId;
use crate::call::Key;

/// A position in the queue. Earlier operations have lower positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position(u64);

/// An operation that has not begun.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) identity: Identity,
    /// At least one waiter, in order of arrival.
    pub(super) waiters: Vec<Waiter>,
}

/// The queued operations, each in the lane of every key that it affects.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: u64,
    queued: BTreeMap<Position, Queued>,
    lanes: HashMap<Key, VecDeque<Position>>,
    waiters: HashMap<WaiterId, (Position, Instant)>,
    due: BTreeSet<(Instant, WaiterId)>,
}

impl Queue {
    pub(super) fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    /// The number of waiters.
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// The position of an equal queued operation.
    pub(super) fn position_of(&self, identity: &Identity) -> Option<Position> {
        let mut lane = self.lanes.get(identity.keys().first()?)?.iter().copied();
        lane.find(|position| self.queued.get(position).is_some_and(|queued| queued.identity == *identity))
    }

    /// A queued operation that blocks a new one.
    pub(super) fn blocker(&self, identity: &Identity) -> Option<Method> {
        identity.keys().iter().find_map(|key| self.method_at(self.front(key)?))
    }

    /// A queued operation that blocks the one at this position.
    pub(super) fn blocked_by(&self, position: Position) -> Option<Method> {
        let keys = self.queued.get(&position)?.identity.keys();
        keys.iter().find_map(|key| self.method_at(self.front(key).filter(|front| *front != position)?))
    }

    fn method_at(&self, position: Position) -> Option<Method> {
        self.identity(position).map(Identity::method)
    }

    pub(super) fn has_room(&self, identity: &Identity, limits: &Limits) -> bool {
        let is_short =
            |key: &Key| self.lanes.get(key).is_none_or(|lane| lane.len() < limits.queued_per_subject);
        self.queued.len() < limits.queued && identity.keys().iter().all(is_short)
    }

    /// Adds a waiter to a queued operation, or appends the operation.
    pub(super) fn push(
        &mut self,
        position: Option<Position>,
        identity: Identity,
        waiter: Waiter,
        deadline: Instant,
    ) {
        let position = position.unwrap_or_else(|| {
            let position = Position(self.next);
            self.next += 1;
            for key in identity.keys() {
                self.lanes.entry(key.clone()).or_default().push_back(position);
            }
            position
        });
        self.waiters.insert(waiter.id, (position, deadline));
        self.due.insert((deadline, waiter.id));
        let queued = self.queued.entry(position);
        queued.or_insert_with(|| Queued { identity, waiters: Vec::new() }).waiters.push(waiter);
    }

    /// The next waiter whose queue timeout has expired, and its position.
    pub(super) fn overdue(&self, now: Instant) -> Option<(WaiterId, Position)> {
        let (_, waiter) = *self.due.first().filter(|(deadline, _)| *deadline <= now)?;
        Some((waiter, self.waiters.get(&waiter)?.0))
    }

    /// An arbitrary waiter.
    pub(super) fn any_waiter(&self) -> Option<WaiterId> {
        self.due.first().map(|(_, waiter)| *waiter)
    }

    /// The operation at a position.
    pub(super) fn identity(&self, position: Position) -> Option<&Identity> {
        self.queued.get(&position).map(|queued| &queued.identity)
    }

    /// Removes a waiter. Returns the operation if none of its waiters is left.
    pub(super) fn remove_waiter(&mut self, waiter: WaiterId) -> Option<Queued> {
        let (position, deadline) = self.waiters.remove(&waiter)?;
        self.due.remove(&(deadline, waiter));
        let queued = self.queued.get_mut(&position)?;
        queued.waiters.retain(|other| other.id != waiter);
        if queued.waiters.is_empty() { self.remove(position) } else { None }
    }

    /// The first operation in the lane of a key.
    pub(super) fn front(&self, key: &Key) -> Option<Position> {
        self.lanes.get(key)?.front().copied()
    }

    /// Removes an operation that may begin.
    pub(super) fn take(&mut self, position: Position) -> Option<Queued> {
        let queued = self.remove(position)?;
        for waiter in &queued.waiters {
            if let Some((_, deadline)) = self.waiters.remove(&waiter.id) {
                self.due.remove(&(deadline, waiter.id));
            }
        }
        Some(queued)
    }

    fn remove(&mut self, position: Position) -> Option<Queued> {
        let queued = self.queued.remove(&position)?;
        for key in queued.identity.keys() {
            if let Some(lane) = self.lanes.get_mut(key) {
                lane.retain(|other| *other != position);
                if lane.is_empty() {
                    self.lanes.remove(key);
                }
            }
        }
        Some(queued)
    }
}
