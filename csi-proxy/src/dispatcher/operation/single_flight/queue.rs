//! The queue of operations that wait for others on their volumes. Per volume local calls are first, then first come,
//! first served.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use csi_proto::Method;

use super::super::identity::Identity;
use super::super::limits::{Limits, share};
use super::Waiter;
use super::event::WaiterId;
use crate::call::{HashMap, Key};

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
    /// The number of its keys that a running operation holds, or that an earlier queued operation has too.
    blocked: usize,
}

/// The queued operations on one key.
#[derive(Debug)]
struct Lane {
    /// Whether a running operation has the key.
    held: bool,
    positions: BTreeSet<Position>,
}

/// The queued operations, each in the lane of every key that it affects. An end or a removal visits each key of that
/// operation once, however many operations wait.
#[derive(Debug, Default)]
pub(super) struct Queue {
    next: u64,
    queued: BTreeMap<Position, Queued>,
    /// The queued operations that nothing blocks.
    unblocked: BTreeSet<Position>,
    lanes: HashMap<Key, Lane>,
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
        let mut lane = self.lanes.get(identity.keys().first()?)?.positions.iter().copied();
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
        let is_short = |key: &Key| self.lanes.get(key).is_none_or(|lane| lane.positions.len() < places);
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
        is_held: impl Fn(&Key) -> bool,
    ) {
        let position = match position {
            Some(position) if waiter.remote || !position.remote => position,
            found => {
                let moved = found.and_then(|position| self.remove(position));
                let new = || Queued { identity, waiters: Vec::new(), blocked: 0 };
                self.append(moved.unwrap_or_else(new), waiter.remote, is_held)
            }
        };
        self.waiters.insert(waiter.id, (position, deadline));
        self.due.insert((deadline, waiter.id));
        if let Some(queued) = self.queued.get_mut(&position) {
            queued.waiters.push(waiter);
        }
    }

    fn append(&mut self, mut queued: Queued, remote: bool, is_held: impl Fn(&Key) -> bool) -> Position {
        let position = Position { remote, number: self.next };
        self.next += 1;
        queued.blocked = 0;
        for key in queued.identity.keys() {
            visited();
            let new = || Lane { held: is_held(key), positions: BTreeSet::new() };
            let lane = self.lanes.entry(key.clone()).or_insert_with(new);
            let front = lane.positions.first().copied();
            let is_behind = front.is_some_and(|front| front < position);
            queued.blocked += usize::from(lane.held || is_behind);
            lane.positions.insert(position);
            if let Some(front) = front.filter(|_| !lane.held && !is_behind) {
                self.set_blocked(front, true);
            }
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

    /// Removes a waiter, and its operation if none of its waiters is left.
    pub(super) fn remove_waiter(&mut self, waiter: WaiterId) {
        let Some((position, deadline)) = self.waiters.remove(&waiter) else { return };
        self.due.remove(&(deadline, waiter));
        let Some(queued) = self.queued.get_mut(&position) else { return };
        queued.waiters.retain(|other| other.id != waiter);
        if queued.waiters.is_empty() {
            self.remove(position);
        }
    }

    /// The first operation in the lane of a key.
    fn front(&self, key: &Key) -> Option<Position> {
        visited();
        self.lanes.get(key)?.positions.first().copied()
    }

    /// A running operation has these keys now.
    pub(super) fn hold(&mut self, keys: &[Key]) {
        self.set_held(keys, true);
    }

    /// No running operation has these keys any more.
    pub(super) fn release(&mut self, keys: &[Key]) {
        self.set_held(keys, false);
    }

    fn set_held(&mut self, keys: &[Key], held: bool) {
        if self.is_empty() {
            return;
        }
        for key in keys {
            visited();
            let Some(lane) = self.lanes.get_mut(key) else { continue };
            lane.held = held;
            // The others are blocked by the first one in any case.
            if let Some(&front) = lane.positions.first() {
                self.set_blocked(front, held);
            }
        }
    }

    /// Counts one key of an operation as blocked, or no longer.
    fn set_blocked(&mut self, position: Position, blocked: bool) {
        let Some(queued) = self.queued.get_mut(&position) else { return };
        queued.blocked = if blocked { queued.blocked + 1 } else { queued.blocked - 1 };
        match queued.blocked {
            0 => self.unblocked.insert(position),
            _ => self.unblocked.remove(&position),
        };
    }

    /// Removes the first operation that nothing blocks.
    pub(super) fn take_unblocked(&mut self) -> Option<Queued> {
        self.take(*self.unblocked.first()?)
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
        self.unblocked.remove(&position);
        for key in queued.identity.keys() {
            visited();
            let Some(lane) = self.lanes.get_mut(key) else { continue };
            let was_first = lane.positions.first() == Some(&position);
            lane.positions.remove(&position);
            match lane.positions.first() {
                None => drop(self.lanes.remove(key)),
                Some(&next) if was_first && !lane.held => self.set_blocked(next, false),
                Some(_) => {}
            }
        }
        Some(queued)
    }
}

/// Counts the visits of keys, which a test bounds.
pub(super) fn visited() {
    #[cfg(test)]
    VISITS.with(|visits| visits.set(visits.get() + 1));
}

#[cfg(test)]
thread_local! {
    pub(super) static VISITS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}
