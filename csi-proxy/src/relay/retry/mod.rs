//! Retries calls after failures of the relay.

mod attempts;
mod call_numbers;
mod open;
mod reachability;
mod sending;
mod stream;
mod term;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use csi_proto::Method;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::open::OpenCalls;
#[cfg(feature = "edge-transport")]
pub(super) use self::reachability::HubId;
pub use self::reachability::{
    DEFAULT_RECONNECT_GRACE, HubPresence, Missing, NodeChange, NodeStatus, Reachability,
};
use self::sending::{Sending, now};
pub use self::term::{ClockTerms, Replaced, TermError, TermSource, next_term};
use self::term::{Refusal, Terms};
use super::Relay;
use crate::call::{Call, Fault, NodeId, Replies, Term};

/// Relays the calls of one driver's proxy over another relay, and sends a call again, as the same call, after a
/// failure of the relay.
///
/// - A call is addressed to the current session of its node, as [`Reachability`] reports.
/// - A call that was not sent waits, for at most the reconnect grace in total, while its node or the hub is within its
///   grace.
/// - After a fault that does not [prove](crate::Fault::delivery) that nothing was sent, the call is sent again
///   only if it is read-only or an operation, and only to the same
///   instance of the agent under the same term. The call waits up to 30 s for that instance.
/// - A call never waits longer than its caller, and is sent with the remaining time. A call has at most 32
///   attempts, with pauses of up to 2 s.
/// - The final fault reports that nothing was sent only if that holds for every attempt.
/// - An answer of `GetMetadataAllocated` or `GetMetadataDelta` continues after a loss from the last offset received,
///   on any instance.
/// - A call has a fence. The numbers of calls that ended without an answer are given up.
/// - A node that has recorded a higher term gets a raised one, if the recorded term cannot be that of a later proxy.
///   The raised term is for that node only, so that a node that lies harms only the calls to itself.
///
/// Requests of open calls are buffered up to 64 MiB in total: a call beyond this size is sent once and does not
/// wait. A node has at most 1024 open calls; one more ends with [`Fault::Overloaded`](crate::Fault::Overloaded).
/// Cheap to clone.
pub struct RetryRelay<R>(Arc<Shared<R>>);

struct Shared<R> {
    relay: R,
    reachability: Reachability,
    terms: watch::Sender<Terms>,
    open: Arc<OpenCalls>,
    /// The tasks that report to the reachability, which end with the last clone.
    _tasks: JoinSet<()>,
}

impl<R: Relay> RetryRelay<R> {
    /// Raises the term of the driver's proxy, and relays its calls over `relay`.
    ///
    /// # Errors
    /// If the term cannot be raised.
    pub async fn start(
        relay: R,
        reachability: Reachability,
        terms: impl TermSource,
    ) -> Result<Self, TermError> {
        Self::start_with(relay, reachability, terms, JoinSet::new()).await
    }

    /// Like [`Self::start`], with tasks that end with the last clone.
    pub(super) async fn start_with(
        relay: R,
        reachability: Reachability,
        terms: impl TermSource,
        tasks: JoinSet<()>,
    ) -> Result<Self, TermError> {
        let started = now();
        let terms = watch::Sender::new(Terms::new(terms.raise().await?, started));
        Ok(Self(Arc::new(Shared { relay, reachability, terms, open: Arc::default(), _tasks: tasks })))
    }
}

impl<R> RetryRelay<R> {
    /// Sets that all calls are for one node. Then the proxy is [replaced](Self::replaced) if that node refuses it.
    #[must_use]
    pub fn for_one_node(self) -> Self {
        self.0.terms.send_modify(Terms::set_one_node);
        self
    }

    /// Waits until the nodes refuse this proxy, because another proxy of the same driver was started later: most of the
    /// nodes that it called, and at least two unless it is [for one](Self::for_one_node). From then on no call is sent:
    /// the process should exit.
    pub async fn replaced(&self) -> Replaced {
        let mut terms = self.0.terms.subscribe();
        loop {
            if let Some(replaced) = terms.borrow_and_update().replaced() {
                return replaced;
            }
            // The sender is part of `self`.
            let _ = terms.changed().await;
        }
    }

    /// The nodes that refused their last call because they have recorded a higher term than this proxy, sorted, with
    /// those terms. Either another proxy of the driver called the node, or the node lies.
    #[must_use]
    pub fn refusing_nodes(&self) -> Vec<(NodeId, Term)> {
        let terms = self.0.terms.borrow();
        let mut nodes: Vec<_> = terms.refusing().map(|(node, term)| (node.clone(), term)).collect();
        nodes.sort();
        nodes
    }
}

impl<R> Clone for RetryRelay<R> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<R> fmt::Debug for RetryRelay<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetryRelay").field("terms", &*self.0.terms.borrow()).finish_non_exhaustive()
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
    fn accepted(&self, node: &NodeId, term: Term) {
        if !self.terms.borrow().is_accepted(node, term) {
            // Nothing waits for this.
            self.terms.send_if_modified(|terms| {
                terms.accepted(node, term);
                false
            });
        }
    }

    /// Handles the refusal of a call with the term `found` by a node that has recorded `current`. Returns whether to
    /// send the call again.
    fn refused(&self, node: &NodeId, found: Term, current: Term) -> bool {
        match self.refusal(|terms| terms.refused(node, found, current, now())) {
            Refusal::Outdated => true,
            Refusal::Raised { term, first } => {
                if first {
                    tracing::warn!(%node, %found, %current, %term, "a node has recorded a higher term than this proxy, which is not that of a later proxy, raising the term for this node");
                }
                self.reachability.wake();
                true
            }
            Refusal::Refused { first } => {
                if first {
                    tracing::error!(%node, %found, %current, "a node refuses this proxy: another proxy of the driver has called the node, or the node lies; calls to this node fail");
                }
                false
            }
            Refusal::Replaced(replaced) => {
                tracing::error!(%node, "{replaced}");
                self.reachability.wake();
                false
            }
        }
    }

    /// Handles the refusal of the number of an open call that has not begun. Returns whether to send the call again.
    fn number_refused(&self, node: &NodeId, found: Term) -> bool {
        match self.refusal(|terms| terms.number_refused(node, found)) {
            Refusal::Outdated => true,
            Refusal::Raised { term, first } => {
                if first {
                    tracing::error!(%node, %found, %term, "a node refuses an open call as closed: another caller uses the term of this proxy, or the node lies; raising the term for this node");
                }
                self.reachability.wake();
                true
            }
            Refusal::Refused { .. } | Refusal::Replaced(_) => false,
        }
    }

    /// Handles a refusal. Wakes [`RetryRelay::replaced`] only if the proxy was replaced.
    fn refusal(&self, handle: impl FnOnce(&mut Terms) -> Refusal) -> Refusal {
        let mut refusal = Refusal::Outdated;
        self.terms.send_if_modified(|terms| {
            refusal = handle(terms);
            matches!(refusal, Refusal::Replaced(_))
        });
        refusal
    }
}

#[cfg(test)]
mod tests;
