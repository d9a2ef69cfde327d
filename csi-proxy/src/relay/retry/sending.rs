//! Drives the attempts of one call.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use csi_proto::{Delivery, Method};
use tokio::sync::futures::OwnedNotified;

use super::Shared;
use super::attempts::{Attempts, Next, Repeat};
use super::open::OpenCall;
use crate::call::{Call, Fault, NodeSession, Replies, Term};
use crate::dispatcher::operation::Identity;
use crate::relay::{Relay, opened};

/// How long before the deadline of its caller an unsendable call ends, so that the caller receives the fault instead
/// of cancelling the call, which would leave its delivery unknown.
const MARGIN: Duration = Duration::from_millis(200);

/// One call, from its first attempt to its answer.
pub(super) struct Sending<R> {
    shared: Arc<Shared<R>>,
    /// The call. Its body is empty after the first attempt if the request may not be buffered.
    pub(super) call: Call,
    pub(super) method: Option<Method>,
    /// The deadline of the caller.
    end: Option<Instant>,
    /// When the call ends unless an attempt is running.
    wait_end: Option<Instant>,
    attempts: Attempts,
    /// The session of the last attempt.
    session: Option<NodeSession>,
    /// The term of an attempt that may have begun. Under another term the node would treat the next attempt as another
    /// call, and begin it concurrently.
    begun_under: Option<Term>,
    /// Whether the request is for the rest of a stream.
    is_rest: bool,
    pub(super) open: OpenCall,
}

impl<R: Relay> Sending<R> {
    pub(super) fn new(shared: Arc<Shared<R>>, call: Call, method: Option<Method>) -> Result<Self, Fault> {
        let within = |time: Option<Duration>| time.and_then(|time| now().checked_add(time));
        let end = within(call.remaining);
        let wait_end = within(call.remaining.map(|remaining| remaining - MARGIN.min(remaining / 2)));
        let attempts = Attempts::new(call.id, call.node.clone(), shared.reachability.grace(), wait_end);
        let open = shared.open.open(&call)?;
        let (session, begun_under) = (None, None);
        Ok(Self { shared, call, method, end, wait_end, attempts, session, begun_under, is_rest: false, open })
    }

    /// Sends the call until the node answers.
    pub(super) async fn send(&mut self) -> Result<Replies, Fault> {
        let mut change: Option<Pin<Box<OwnedNotified>>> = None;
        loop {
            let term = match self.shared.terms.borrow().term(&self.call.node) {
                Ok(term) => term,
                Err(replaced) => {
                    let driver = self.call.driver.clone();
                    let stale = Fault::StaleTerm { driver, found: replaced.found, current: replaced.current };
                    return Err(self.attempts.end_with(stale));
                }
            };
            if let Some(found) = self.begun_under.filter(|begun| *begun != term) {
                let stale = Fault::StaleTerm { driver: self.call.driver.clone(), found, current: term };
                return Err(self.attempts.end_with(stale));
            }
            let status = self.shared.reachability.status(&self.call.node);
            match self.attempts.next(status, now()) {
                Next::Fail(fault) => return Err(fault),
                Next::Wait { or, .. } if !self.open.may_be_buffered() => return Err(or),
                Next::Wait { until, .. } => match change.take() {
                    // Check the status once more: it may have changed before this call waited for changes.
                    None => change = Some(Box::pin(self.shared.reachability.changed())),
                    Some(changed) => {
                        // Check the status again after a change or a timeout.
                        let _ = tokio::time::timeout_at(until.into(), changed).await;
                    }
                },
                Next::Send(session) => {
                    let call = self.next_attempt(session, term)?;
                    let answer = self.shared.relay.relay(call).await;
                    let begun = match answer {
                        Ok(replies) => begun(self.method, replies).await,
                        Err(fault) => Err(fault),
                    };
                    match begun {
                        Ok(replies) => {
                            self.shared.accepted(&self.call.node, term);
                            self.session = Some(session);
                            return Ok(replies);
                        }
                        Err(fault) => self.failed(fault, session, term)?,
                    }
                }
            }
        }
    }

    /// Requests the rest of a stream, since its answer ended with this fault.
    pub(super) fn lost(&mut self, fault: Fault, rest: Bytes) -> Result<(), Fault> {
        let (Some(session), true) = (self.session, self.open.may_be_buffered()) else { return Err(fault) };
        (self.call.body, self.is_rest, self.begun_under) = (rest, true, None);
        self.attempts.failed(fault, session, || Repeat::AnyInstance, now())
    }

    /// Resets the attempts after a received part of a stream.
    pub(super) fn progressed(&mut self) {
        let Call { id, node, .. } = &self.call;
        self.attempts = Attempts::new(*id, node.clone(), self.shared.reachability.grace(), self.wait_end);
    }

    /// Creates the call of the next attempt.
    fn next_attempt(&mut self, session: NodeSession, term: Term) -> Result<Call, Fault> {
        let body = match self.open.may_be_buffered() {
            true => self.call.body.clone(),
            false => std::mem::take(&mut self.call.body),
        };
        let Call { id, node, driver, method, metadata, .. } = &self.call;
        let mut call = Call::new(*id, node.clone(), driver.clone(), method.clone(), body)
            .with_metadata(metadata.clone())
            .with_fence(self.open.fence(term)?);
        call.session = Some(session);
        call.remaining = self.end.map(|end| end.saturating_duration_since(now()));
        Ok(call)
    }

    /// Ends the call, unless it can be sent again.
    fn failed(&mut self, fault: Fault, session: NodeSession, term: Term) -> Result<(), Fault> {
        let again = match fault {
            Fault::StaleTerm { current, .. } => self.shared.refused(&self.call.node, term, current),
            // A call that may have begun is refused under its number, which is right.
            Fault::StaleCall { .. } if self.begun_under.is_none() => {
                self.shared.number_refused(&self.call.node, term)
            }
            _ => false,
        };
        if again && self.open.may_be_buffered() && self.attempts.count_refusal() {
            return Ok(());
        }
        if !self.open.may_be_buffered() {
            return Err(fault);
        }
        let (kind, may_have_begun) = (fault.kind(), fault.delivery() == Delivery::Unknown);
        let Self { call, method, is_rest, attempts, .. } = self;
        let repeat = || match *method {
            _ if *is_rest => Repeat::AnyInstance,
            Some(method) if !method.is_mutating() => Repeat::SameInstance,
            Some(method) if matches!(Identity::of(&call.driver, method, &call.body), Ok(Some(_))) => {
                Repeat::SameInstance
            }
            _ => Repeat::Never,
        };
        attempts.failed(fault, session, repeat, now())?;
        if may_have_begun && !*is_rest {
            self.begun_under = Some(term);
        }
        tracing::info!(call = %self.call.id, method = %self.call.method, node = %self.call.node, fault = kind, "retrying call");
        Ok(())
    }
}

/// The clock of the runtime, which tests may pause.
pub(super) fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// Returns the answer, or the fault that ended it before anything was passed on. A unary answer is passed on as a
/// whole.
async fn begun(method: Option<Method>, replies: Replies) -> Result<Replies, Fault> {
    if method.is_none_or(Method::is_server_streaming) {
        return opened(replies).await;
    }
    let (message, outcome) = replies.read_unary().await;
    match outcome.fault() {
        Some(fault) => Err(fault.clone()),
        None => Ok(Replies::whole(message, outcome)),
    }
}
