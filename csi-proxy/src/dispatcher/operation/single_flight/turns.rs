//! Queues operations on busy volumes for a short time.
//!
//! A sidecar that gets `ABORTED` retries a second later, or much later. Operations that arrive in between would
//! run first, although the retried operation may make them useless.

use std::time::{Duration, Instant};

use csi_proto::Method;

use super::super::identity::Identity;
use super::event::{Action, WaiterId};
use super::queue::Queued;
use super::{Core, Waiter};
use crate::call::Fault;
use crate::call::Key;

/// How long before the caller's deadline a queued call is refused: the time that the refusal may take to reach the
/// caller.
const RESPONSE_MARGIN: Duration = Duration::from_millis(500);

/// The maximum queue timeout: a queued call holds a position and a request.
const MAX_WAIT: Duration = Duration::from_secs(60);

impl Core {
    /// Queues a call whose operation cannot begin because of `pending`.
    pub(super) fn wait(&mut self, now: Instant, waiter: Waiter, identity: Identity, pending: Method) {
        let deadline = self.queue_deadline(now, waiter.until);
        let position = self.queue.position_of(&identity);
        if deadline <= now
            || (position.is_none() && !self.queue.has_room(&identity, waiter.remote, &self.limits))
        {
            return self.refuse(waiter.id, &identity, pending);
        }
        self.actions.push_back(Action::Wait { waiter: waiter.id, deadline });
        let (holders, running) = (&self.holders, &self.running);
        let is_held = |key: &Key| holders.get(key).is_some_and(|holder| running.contains_key(holder));
        self.queue.push(position, identity, waiter, deadline, is_held);
    }

    /// The operation that blocks a new one.
    pub(super) fn pending(&self, identity: &Identity, remote: bool) -> Option<Method> {
        self.running(identity.keys())
            .or_else(|| if self.queue.is_empty() { None } else { self.queue.blocker(identity, remote) })
    }

    /// Removes the queued operation that equals a new one which begins, and returns its waiters that may begin.
    pub(super) fn take_equal(&mut self, identity: &Identity) -> Vec<Waiter> {
        let queued = self.queue.position_of(identity).and_then(|position| self.queue.take(position));
        let mut waiters = queued.map(|queued| queued.waiters).unwrap_or_default();
        waiters.retain(|waiter| self.may_begin(waiter, identity));
        waiters
    }

    /// Refuses waiters whose queue timeout has expired.
    pub(super) fn refuse_overdue(&mut self, now: Instant) {
        while let Some((waiter, position)) = self.queue.overdue(now) {
            if let Some(identity) = self.queue.identity(position).cloned() {
                let pending = self.running(identity.keys()).or_else(|| self.queue.blocked_by(position));
                // A queued operation is always blocked by another, or would have begun.
                self.refuse(waiter, &identity, pending.unwrap_or_else(|| identity.method()));
            }
            self.queue.remove_waiter(waiter);
        }
        self.begin_unblocked();
    }

    /// Removes a queued waiter that has left.
    pub(super) fn left_queue(&mut self, waiter: WaiterId) {
        self.queue.remove_waiter(waiter);
        self.begin_unblocked();
    }

    /// Fails all queued waiters.
    pub(super) fn reject_queued(&mut self, fault: &Fault) {
        while let Some(waiter) = self.queue.any_waiter() {
            self.actions.push_back(Action::Fail { waiter, fault: fault.clone() });
            self.queue.remove_waiter(waiter);
        }
    }

    /// Begins the queued operations that nothing blocks any more, if they may still begin.
    pub(super) fn begin_unblocked(&mut self) {
        while let Some(Queued { identity, mut waiters, .. }) = self.queue.take_unblocked() {
            waiters.retain(|waiter| self.may_begin(waiter, &identity));
            if !waiters.is_empty() {
                // The request of a local call, since the places for remote calls of the driver may be taken.
                waiters.sort_by_key(|waiter| waiter.remote);
                self.begin(identity, waiters);
            }
        }
    }

    /// Whether a call may begin: it or its number may have begun before, it may have been given up while queued, or its
    /// proxy may have been replaced. If not, it fails.
    pub(super) fn may_begin(&mut self, waiter: &Waiter, identity: &Identity) -> bool {
        let driver = identity.driver();
        let permitted = match &waiter.fence {
            _ if self.begun.contains(&waiter.call) => Err(Fault::AlreadyBegun { driver: driver.clone() }),
            Some(fence) => self.fence.may_begin(driver, fence),
            None => Ok(()),
        };
        let Err(fault) = permitted else { return true };
        self.actions.push_back(Action::Fail { waiter: waiter.id, fault });
        false
    }

    fn queue_deadline(&self, now: Instant, until: Option<Instant>) -> Instant {
        let longest = now + self.limits.wait.min(MAX_WAIT);
        // A time earlier than the clock can represent: do not wait.
        let last = until.map(|until| until.checked_sub(RESPONSE_MARGIN).unwrap_or(now));
        last.map_or(longest, |last| longest.min(last))
    }

    fn refuse(&mut self, waiter: WaiterId, identity: &Identity, pending: Method) {
        let fault =
            Fault::OperationPending { driver: identity.driver().clone(), running: pending.name().to_owned() };
        self.actions.push_back(Action::Fail { waiter, fault });
    }
}
