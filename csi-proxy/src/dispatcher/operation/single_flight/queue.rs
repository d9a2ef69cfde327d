//! The queue of operations that wait for others on their volumes. Per volume local calls are first, then first come,
//! first served.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use csi_proto::Method;

use super::super::HashMap;
use super::super::identity::Identity;
use super::super::limits::{Limits, share};
use super::Waiter;
use super::event::WaiterId;
use crate::call::Key;

/// A position in the queue. Earlier operations have lower positions. One order for all lanes, so that the lowest
/// position is the first in each of its lanes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Position {
    /// Whether no local call has waited here.
    remote: bool,
    number: u64,
}

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
    lanes: HashMap<Key, BTreeSet<Position>>,
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

    /// A queued operation that blocks a new one. A remote one does not block a local one.
    pub(super) fn blocker(&self, identity: &Identity, remote: bool) -> Option<Method> {
        let ahead = |position: &Position| remote || !position.remote;
        identity.keys().iter().find_map(|key| self.method_at(self.front(key).filter(ahead)?))
    }

    /// A queued operation that blocks the one at this position.
    pub(super) fn blocked_by(&self, position: Position) -> Option<Method> {
        let keys = self.queued.get(&position)?.identity.keys();
        keys.iter().find_map(|key| self.method_at(self.front(key).filter(|front| *front != position)?))
    }

    fn method_at(&self, position: Position) -> Option<Method> {
        self.identity(position).map(Identity::method)
    }

    pub(super) fn has_room(&self, identity: &Identity, remote: bool, limits: &Limits) -> bool {
        let places = share(limits.queued_per_subject, remote);
        let is_short = |key: &Key| self.lanes.get(key).is_none_or(|lane| lane.len() < places);
        self.queued.len() < share(limits.queued, remote) && identity.keys().iter().all(is_short)
    }

    /// Adds a waiter to a queued operation, or appends the operation. An operation that gets its first local waiter moves
    /// ahead of the remote ones.
    pub(super) fn push(
        &mut self,
        position: Option<Position>,
        identity: Identity,
        waiter: Waiter,
        deadline: Instant,
    ) {
        let position = match position {
            Some(position) if waiter.remote || !position.remote => position,
            found => {
                let moved = found.and_then(|position| self.remove(position));
                self.append(moved.unwrap_or(Queued { identity, waiters: Vec::new() }), waiter.remote)
            }
        };
        self.waiters.insert(waiter.id, (position, deadline));
        self.due.insert((deadline, waiter.id));
        if let Some(queued) = self.queued.get_mut(&position) {
            queued.waiters.push(waiter);
        }
    }

    fn append(&mut self, queued: Queued, remote: bool) -> Position {
        let position = Position { remote, number: self.next };
        self.next += 1;
        for key in queued.identity.keys() {
            self.lanes.entry(key.clone()).or_default().insert(position);
        }
        for waiter in &queued.waiters {
            if let Some((at, _)) = self.waiters.get_mut(&waiter.id) {
                *at = position;
            }
        }
        self.queued.insert(position, queued);
        position
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
    fn front(&self, key: &Key) -> Option<Position> {
        self.lanes.get(key)?.first().copied()
    }

    /// The first operations in the lanes of these keys.
    pub(super) fn fronts(&self, keys: &[Key]) -> BTreeSet<Position> {
        keys.iter().filter_map(|key| self.front(key)).collect()
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
                lane.remove(&position);
                if lane.is_empty() {
                    self.lanes.remove(key);
                }
            }
        }
        Some(queued)
    }
}
