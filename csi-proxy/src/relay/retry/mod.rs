//! Retries calls after failures of the relay.

mod attempts;
mod call_numbers;
mod open;
mod reachability;
mod sending;
mod stream;
mod term;

use std::fmt;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Instant;

use async_trait::async_trait;
use csi_proto::Method;
use tokio::sync::{Mutex, watch};

use self::open::OpenCalls;
pub use self::reachability::{DEFAULT_RECONNECT_GRACE, Missing, NodeStatus, Reachability};
use self::sending::Sending;
pub use self::term::{ClockTerms, Replaced, TermError, TermSource, next_term};
use self::term::{CurrentTerm, NodeAnswers, Refusal, TermStatus};
use super::Relay;
use crate::call::{Call, Fault, NodeId, Replies, Term};

/// Relays the calls of one driver's proxy over another relay, and sends a call again, as the same call, after a
/// failure of the relay.
///
/// - A call is addressed to the current session of its node, as [`Reachability`] reports.
/// - A call that was not sent waits, for at most the reconnect grace in total, while its node or the hub is within its
///   grace.
/// - After a fault that does not [prove](crate::Fault::delivery) that nothing was sent, the call is sent again
///   only if it is read-only or an [operation](crate::dispatcher::operation::Identity), and only to the same
///   instance of the agent under the same term. The call waits up to 30 s for that instance.
/// - A call never waits longer than its caller, and is sent with the remaining time. A call has at most 32
///   attempts, with pauses of up to 2 s.
/// - The final fault reports that nothing was sent only if that holds for every attempt.
/// - An answer of `GetMetadataAllocated` or `GetMetadataDelta` continues after a loss from the last offset received,
///   on any instance.
/// - A call has a [fence](crate::call::Fence). The numbers of calls that ended without an answer are given up.
///
/// Requests of open calls are buffered up to 64 MiB in total: a call beyond this size is sent once and does not
/// wait. A node has at most 1024 open calls; one more ends with [`Fault::Overloaded`](crate::Fault::Overloaded).
/// Cheap to clone.
pub struct RetryRelay<R>(Arc<Shared<R>>);

struct Shared<R> {
    relay: R,
    reachability: Reachability,
    terms: Box<dyn TermSource>,
    term: watch::Sender<CurrentTerm>,
    node_answers: StdMutex<NodeAnswers>,
    /// Held while the term is raised.
    raising: Mutex<()>,
    open: Arc<OpenCalls>,
}

impl<R: Relay> RetryRelay<R> {
    /// Raises the term of the driver's proxy, and relays its calls over `relay`.
    ///
    /// # Errors
    /// If the term cannot be raised.
    pub async fn start(
        relay: R,
        reachability: Reachability,
        terms: impl TermSource + 'static,
    ) -> Result<Self, TermError> {
        let term = watch::Sender::new(CurrentTerm::Raised(terms.raise(None).await?));
        let (terms, node_answers, raising, open) =
            (Box::new(terms), StdMutex::default(), Mutex::default(), Arc::default());
        Ok(Self(Arc::new(Shared { relay, reachability, terms, term, node_answers, raising, open })))
    }
}

impl<R> RetryRelay<R> {
    /// Waits until more than half of the nodes refuse the term of this proxy, because another proxy of the same driver
    /// was started later. From then on no call is sent: the process should exit.
    pub async fn replaced(&self) -> Replaced {
        let mut term = self.0.term.subscribe();
        loop {
            if let Err(replaced) = term.borrow_and_update().term() {
                return replaced;
            }
            // The sender is part of `self`.
            let _ = term.changed().await;
        }
    }
}

impl<R> Clone for RetryRelay<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> fmt::Debug for RetryRelay<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryRelay").field("term", &*self.0.term.borrow()).finish_non_exhaustive()
    }
}

#[async_trait]
impl<R: Relay + 'static> Relay for RetryRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let method = Method::from_path(call.method.as_str());
        let mut sending = Sending::new(Arc::clone(&self.0), call, method)?;
        match sending.send().await?.into_whole() {
            Ok((message, outcome)) => {
                sending.open.answered();
                Ok(Replies::whole(message, outcome))
            }
            Err(parts) => Ok(stream::continued(sending, parts)),
        }
    }
}

impl<R> Shared<R> {
    /// Records that a node has accepted a call with this term.
    fn accepted(&self, node: &NodeId, term: Term, now: Instant) {
        if *self.term.borrow() == CurrentTerm::Raised(term) {
            self.term.send_modify(|current_term| current_term.accepted(term));
        }
        // An answer to an earlier term proves nothing about the current one.
        if *self.term.borrow() == CurrentTerm::Accepted(term) {
            self.node_answers.lock().unwrap_or_else(PoisonError::into_inner).accept(node, now);
        }
    }

    /// Records that a node refuses the term in use.
    fn term_status(&self, node: &NodeId, now: Instant) -> TermStatus {
        let known = self.reachability.known();
        self.node_answers.lock().unwrap_or_else(PoisonError::into_inner).refuse(node, now, known)
    }

    /// Handles the refusal of a call with the term `found` by a node that has recorded `current`. Returns whether to
    /// send the call again.
    async fn refused(&self, node: &NodeId, found: Term, current: Term, now: Instant) -> bool {
        let _one = self.raising.lock().await;
        let is_accepted = *self.term.borrow() == CurrentTerm::Accepted(found);
        let status = if is_accepted { self.term_status(node, now) } else { TermStatus::Contested };
        let mut refusal = Refusal::Outdated;
        self.term.send_modify(|current_term| refusal = current_term.refused(found, current, status));
        match refusal {
            Refusal::Outdated => true,
            Refusal::OneNode => false,
            Refusal::Replaced(replaced) => {
                tracing::error!("{replaced}");
                self.reachability.wake();
                false
            }
            Refusal::Raise => match self.terms.raise(Some(current)).await {
                Ok(term) => {
                    tracing::warn!(%found, %current, %term, "a node has recorded a higher term than this proxy, which has lost its state, raising the term");
                    self.node_answers.lock().unwrap_or_else(PoisonError::into_inner).clear();
                    self.term.send_modify(|current_term| current_term.raised(term));
                    self.reachability.wake();
                    true
                }
                Err(error) => {
                    tracing::error!(%found, %current, error = &error as &dyn std::error::Error, "a node has recorded a higher term than this proxy");
                    false
                }
            },
        }
    }
}

#[cfg(test)]
mod tests;
