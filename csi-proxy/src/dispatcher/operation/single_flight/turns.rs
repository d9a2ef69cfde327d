//! An operation on a volume that is busy waits a little for its turn.
//!
//! A sidecar that gets `ABORTED` asks again a second later, or much later. What comes to the volume in between is
//! served first, and may be made useless by what was to come before it.

use std::time::{Duration, Instant};

use csi_proto::Method;

use super::super::identity::Identity;
use super::super::subject::Key;
use super::event::{Action, WaiterId};
use super::queue::{Place, Queued};
use super::{Core, Waiter};
use crate::call::Fault;

/// How long before its caller's time is over a call gives up: as long as its refusal may take on its way to the caller.
const WAY_BACK: Duration = Duration::from_millis(500);

/// Longest wait for a turn: a call that waits holds a place and a request.
const LONGEST: Duration = Duration::from_secs(60);

impl Core {
    /// A call for an operation that cannot begin, since `pending` is first.
    pub(super) fn wait(&mut self, now: Instant, waiter: Waiter, identity: Identity, pending: Method) {
        let gives_up = self.gives_up(now, waiter.until);
        let place = self.queue.place_of(&identity);
        if gives_up <= now || (place.is_none() && !self.queue.has_room(&identity, &self.limits)) {
            return self.refuse(waiter.id, &identity, pending);
        }
        self.actions.push_back(Action::Wait { waiter: waiter.id, gives_up });
        self.queue.push(place, identity, waiter, gives_up);
    }

    /// What is to be done before an operation that comes now.
    pub(super) fn pending(&self, identity: &Identity) -> Option<Method> {
        self.running(identity.keys())
            .or_else(|| if self.queue.is_empty() { None } else { self.queue.before(identity) })
    }

    /// Refuses what has waited long enough.
    pub(super) fn give_up(&mut self, now: Instant) {
        let mut gone = Vec::new();
        while let Some((waiter, place)) = self.queue.overdue(now) {
            if let Some(identity) = self.queue.identity(place).cloned() {
                let pending = self.running(identity.keys()).or_else(|| self.queue.ahead_of(place));
                // Something is always first, or it would have begun.
                self.refuse(waiter, &identity, pending.unwrap_or_else(|| identity.method()));
            }
            gone.extend(self.queue.leave(waiter));
        }
        for queued in gone {
            self.take_turns(queued.identity.keys());
        }
    }

    /// A waiter has left that waited for its turn.
    pub(super) fn left_queue(&mut self, waiter: WaiterId) {
        if let Some(queued) = self.queue.leave(waiter) {
            self.take_turns(queued.identity.keys());
        }
    }

    /// No turn comes any more.
    pub(super) fn turn_away(&mut self, fault: &Fault) {
        while let Some(waiter) = self.queue.any() {
            self.actions.push_back(Action::Fail { waiter, fault: fault.clone() });
            self.queue.leave(waiter);
        }
    }

    /// Begins what these keys have kept waiting, if it may still begin.
    pub(super) fn take_turns(&mut self, keys: &[Key]) {
        let mut freed = keys.to_vec();
        while let Some(key) = freed.pop() {
            let place = self.queue.front(&key).filter(|place| self.is_its_turn(*place));
            let Some(Queued { identity, mut waiters }) = place.and_then(|place| self.queue.take(place))
            else {
                continue;
            };
            waiters.retain(|waiter| self.may_begin(waiter, &identity));
            if waiters.is_empty() {
                freed.extend_from_slice(identity.keys());
            } else {
                self.begin(identity, waiters);
            }
        }
    }

    /// Whether a call may begin: its number may have begun before, and if it has waited it may have been given up meanwhile, or its proxy
    /// replaced. If not, it fails.
    pub(super) fn may_begin(&mut self, waiter: &Waiter, identity: &Identity) -> bool {
        let Some(fence) = &waiter.fence else { return true };
        let Err(fault) = self.fences.may_begin(identity.driver(), fence) else { return true };
        self.actions.push_back(Action::Fail { waiter: waiter.id, fault });
        false
    }

    fn is_its_turn(&self, place: Place) -> bool {
        let Some(identity) = self.queue.identity(place) else { return false };
        self.running(identity.keys()).is_none() && self.queue.ahead_of(place).is_none()
    }

    fn gives_up(&self, now: Instant, until: Option<Instant>) -> Instant {
        let patience = now + self.limits.wait.min(LONGEST);
        // Before the beginning of time: not at all.
        let last = until.map(|until| until.checked_sub(WAY_BACK).unwrap_or(now));
        last.map_or(patience, |last| patience.min(last))
    }

    fn refuse(&mut self, waiter: WaiterId, identity: &Identity, pending: Method) {
        let fault =
            Fault::OperationPending { driver: identity.driver().clone(), running: pending.name().to_owned() };
        self.actions.push_back(Action::Fail { waiter, fault });
    }
}
