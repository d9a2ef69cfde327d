//! An operation on a volume that is busy waits a little for its turn.
//!
//! A sidecar that is told `ABORTED` asks again a second later, or much later. What comes to the volume in between is served first, and
//! may be made useless by what was to come before it.

use std::time::{Duration, Instant};

use csi_proto::Method;

use super::super::identity::Identity;
use super::super::subject::Key;
use super::event::{Action, AskerId};
use super::line::{Place, Waiter};
use super::{Asker, Core};
use crate::fault::Fault;

/// How long before its caller's time is over a call gives up: as long as its refusal may take on its way to the caller.
const WAY_BACK: Duration = Duration::from_millis(500);

/// Longest wait for a turn.
const LONGEST: Duration = Duration::from_secs(60);

impl Core {
    /// A call for an operation that cannot begin, since `pending` is first.
    pub(super) fn wait(
        &mut self,
        now: Instant,
        asker: AskerId,
        identity: Identity,
        until: Option<Instant>,
        pending: Method,
    ) {
        let gives_up = self.gives_up(now, until);
        let place = self.line.place_of(&identity);
        if gives_up <= now || (place.is_none() && !self.line.has_room(&identity, &self.limits)) {
            return self.refuse(asker, &identity, pending);
        }
        let first = place.is_none();
        match place {
            Some(place) => self.line.join(place, asker, gives_up, until),
            None => self.line.stand(asker, identity, gives_up, until),
        }
        self.actions.push_back(Action::Wait { asker, first, gives_up });
    }

    /// What is to be done before an operation that comes now.
    pub(super) fn pending(&self, identity: &Identity) -> Option<Method> {
        self.running(identity.keys())
            .or_else(|| if self.line.is_empty() { None } else { self.line.before(identity) })
    }

    /// Those who have waited long enough are refused.
    pub(super) fn give_up(&mut self, now: Instant) {
        let mut freed = Vec::new();
        while let Some((asker, place)) = self.line.overdue(now) {
            if let Some(waiter) = self.line.waiter(place) {
                let identity = waiter.identity.clone();
                let pending = self.running(identity.keys()).or_else(|| self.line.ahead_of(place));
                // Something is always first, or it would have begun.
                self.refuse(asker, &identity, pending.unwrap_or_else(|| identity.method()));
            }
            freed.extend(self.line.leave(asker));
        }
        self.let_go(&freed);
    }

    /// A caller in the line has gone.
    pub(super) fn left_line(&mut self, asker: AskerId) {
        let gone = self.line.leave(asker);
        self.let_go(gone.as_slice());
    }

    /// Nobody waits for a turn any more.
    pub(super) fn turn_away(&mut self, fault: &Fault) {
        while let Some(asker) = self.line.any() {
            self.actions.push_back(Action::Fail { asker, fault: fault.clone() });
            if let Some(waiter) = self.line.leave(asker) {
                self.actions.push_back(Action::LetGo { asker: waiter.first });
            }
        }
    }

    /// Begins what these keys have kept waiting.
    pub(super) fn take_turns(&mut self, keys: &[Key]) {
        for key in keys {
            let place = self.line.front(key).filter(|place| self.is_its_turn(*place));
            if let Some((waiter, askers)) = place.and_then(|place| self.line.take(place)) {
                let operation = self.begin(waiter.first, waiter.identity, waiter.askers);
                for (asker, waits) in askers {
                    self.askers.insert(asker, Asker::new(operation, waits.until));
                }
            }
        }
    }

    fn is_its_turn(&self, place: Place) -> bool {
        let Some(waiter) = self.line.waiter(place) else { return false };
        self.running(waiter.identity.keys()).is_none() && self.line.ahead_of(place).is_none()
    }

    fn let_go(&mut self, gone: &[Waiter]) {
        for waiter in gone {
            self.actions.push_back(Action::LetGo { asker: waiter.first });
        }
        for waiter in gone {
            self.take_turns(waiter.identity.keys());
        }
    }

    fn gives_up(&self, now: Instant, until: Option<Instant>) -> Instant {
        let patience = now + self.limits.wait.min(LONGEST);
        // Before the beginning of time: not at all.
        let last = until.map(|until| until.checked_sub(WAY_BACK).unwrap_or(now));
        last.map_or(patience, |last| patience.min(last))
    }

    fn refuse(&mut self, asker: AskerId, identity: &Identity, pending: Method) {
        let fault =
            Fault::OperationPending { driver: identity.driver().clone(), running: pending.name().to_owned() };
        self.actions.push_back(Action::Fail { asker, fault });
    }
}
