//! The terms of a driver's proxy: one for its start, which it raises for single nodes.
//!
//! A node that refuses the term of the start has recorded a higher one, or lies. A higher one has three possible
//! causes:
//!
//! - *This proxy lost its stored terms*, and its clock was set back. Its term is then raised above the node's. If other
//!   nodes have accepted the term, the node must refuse for a while first.
//! - *Another caller with the driver's certificate*, or an older proxy that still runs, raised the term at the node.
//!   Likewise, at once if the term is beyond every clock.
//! - *A later proxy* was started. Then this one must not raise its term, and ends when most nodes refuse it.
//!
//! A term is raised for the node that refused, so a node that lies delays only the calls to itself.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::call::{HashMap, NodeId, Term};

/// Source of the terms of one driver's proxy.
#[async_trait]
pub trait TermSource: Send + Sync {
    /// Returns a term higher than all previous terms of this source, including earlier runs of the process. The term
    /// is durable before this returns. Nodes refuse a term that is far above [`Term::CLOCK_MAX`]. Awaited once, without a time
    /// limit, at the start of a relay; [`next_term`] computes the value. A dropped future may have raised the term.
    ///
    /// # Errors
    /// If the term cannot be made durable, or no higher term exists.
    async fn raise(&self) -> Result<Term, TermError>;
}

/// A term could not be raised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TermError {
    /// The store of terms failed.
    #[error("the term of this proxy cannot be raised")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No higher term exists.
    #[error("the term of this proxy cannot be raised above {above}")]
    Exhausted {
        /// The term that the new term must exceed.
        above: Term,
    },
}

/// The next term: at least the milliseconds since 1970, so that a source that lost its state is above its earlier
/// terms unless the clock was set back. A clock that is beyond [`Term::CLOCK_MAX`] counts as that time.
///
/// # Errors
/// If no higher term is left.
pub fn next_term(previous: Option<Term>, now: SystemTime) -> Result<Term, TermError> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = u64::try_from(since.as_millis()).unwrap_or(u64::MAX).max(1);
    let clock = Term::new(millis).unwrap_or(Term::MAX).min(Term::CLOCK_MAX);
    match previous {
        Some(above) if above >= Term::MAX => Err(TermError::Exhausted { above }),
        Some(previous) => Ok(clock.max(previous.next())),
        None => Ok(clock),
    }
}

/// Terms in memory that increase with the system clock over restarts.
///
/// If the clock was set back, nodes refuse the first call, and the term is raised above theirs.
#[derive(Debug, Default)]
pub struct ClockTerms(Mutex<Option<Term>>);

#[async_trait]
impl TermSource for ClockTerms {
    async fn raise(&self) -> Result<Term, TermError> {
        let mut previous = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let term = next_term(*previous, SystemTime::now())?;
        *previous = Some(term);
        Ok(term)
    }
}

/// Another proxy of the same driver has started later: most nodes refuse the calls of this one, which must exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this proxy was replaced: a node has accepted term {current} of the same driver, this proxy has term {found}; run one proxy per driver"
)]
#[non_exhaustive]
pub struct Replaced {
    /// The term of this proxy.
    pub found: Term,
    /// The highest term recorded at the node.
    pub current: Term,
}

/// A term that is later than now by more than this is not the term of a later proxy.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5 * 60);

/// How long a node that never accepted must refuse until its term is not that of a later proxy, unless a node that had
/// accepted refuses too. A later proxy calls all nodes when it starts.
const REFUSAL_CHECK: Duration = Duration::from_secs(30);

/// The number of refusing nodes below which the proxy of several nodes does not end: one node may lie.
const MIN_REFUSING: usize = 2;

/// How long a node that had accepted must refuse, while no other node that had accepted does, until its term is not that of
/// a later proxy: the driver information of each connected node is refreshed meanwhile.
const ALL_ASKED: Duration = Duration::from_secs(360);

/// How long the only node that answers must refuse until the proxy ends. It may lie, and harms no other node; or an older
/// proxy has raised its term there, and the next start of this one has a higher term.
const LONE_REFUSAL: Duration = Duration::from_secs(60);

/// The terms of this proxy, and which nodes refuse them.
#[derive(Debug)]
pub(super) struct Terms {
    /// The term of the start.
    first: Term,
    /// The time of the start.
    started: Instant,
    /// Whether the proxy has only one node.
    one_node: bool,
    /// Whether any node accepted the term of the start.
    first_accepted: bool,
    /// The nodes that accepted or refused a call.
    nodes: HashMap<NodeId, NodeTerm>,
    /// Set when a later proxy supersedes this one. Then no call is sent.
    replaced: Option<Replaced>,
}

#[derive(Debug)]
struct NodeTerm {
    /// The term of the calls to this node.
    term: Term,
    /// Whether the term was raised for this node.
    raised: bool,
    /// Whether the node ever accepted a call of this proxy.
    accepted: bool,
    /// Since when the node refuses all calls, and the term that it had recorded at the last one.
    refused: Option<(Instant, Term)>,
}

/// The reaction to a refused call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The refused term is not in use any more: send again.
    Outdated,
    /// The term was raised for this node: send again.
    Raised {
        /// The new term.
        term: Term,
        /// Whether the term was never raised for this node before.
        first: bool,
    },
    /// The call ends.
    Refused {
        /// Whether the node accepted the previous call, or this is its first.
        first: bool,
    },
    /// Send no more calls.
    Replaced(Replaced),
}

impl Terms {
    pub(super) fn new(first: Term, started: Instant) -> Self {
        let (nodes, replaced) = (HashMap::default(), None);
        Self { first, started, one_node: false, first_accepted: false, nodes, replaced }
    }

    /// Sets that the proxy has only one node.
    pub(super) const fn set_one_node(&mut self) {
        self.one_node = true;
    }

    /// The term of the next call to a node.
    pub(super) fn term(&self, node: &NodeId) -> Result<Term, Replaced> {
        match self.replaced {
            Some(replaced) => Err(replaced),
            None => Ok(self.nodes.get(node).map_or(self.first, |node| node.term)),
        }
    }

    pub(super) const fn replaced(&self) -> Option<Replaced> {
        self.replaced
    }

    /// The nodes that refused their last call because of its term, with the terms that they have recorded.
    pub(super) fn refusing(&self) -> impl Iterator<Item = (&NodeId, Term)> {
        self.nodes.iter().filter_map(|(node, known)| Some((node, known.refused?.1)))
    }

    /// Whether [`Self::accepted`] would change nothing.
    pub(super) fn is_accepted(&self, node: &NodeId, term: Term) -> bool {
        self.nodes.get(node).is_some_and(|known| known.is_accepted(term))
    }

    /// Records that a node has accepted a call with this term.
    pub(super) fn accepted(&mut self, node: &NodeId, term: Term) {
        let known = self.node(node);
        if known.term == term {
            (known.accepted, known.refused) = (true, None);
            self.first_accepted |= term == self.first;
        }
    }

    /// Handles the refusal of a call with the term `found` by a node that has recorded `current`.
    pub(super) fn refused(&mut self, node: &NodeId, found: Term, current: Term, now: Instant) -> Refusal {
        if let Some(replaced) = self.replaced {
            return Refusal::Replaced(replaced);
        }
        let (first, first_accepted) = (self.first, self.first_accepted);
        let others = || self.nodes.iter().filter(|(other, known)| *other != node && known.accepted);
        let is_replaced_elsewhere = others().any(|(_, known)| known.refused.is_some());
        let others_accept = !is_replaced_elsewhere && others().count() > 0;
        let beyond_clocks = self.is_beyond_clocks(current, now);
        let known = self.node(node);
        if found < known.term {
            return Refusal::Outdated;
        }
        let is_no_later_proxy = match (known.accepted, known.raised) {
            (true, raised) => {
                (beyond_clocks && !raised) || (others_accept && known.has_refused_for(ALL_ASKED, now))
            }
            (false, _) => {
                beyond_clocks
                    || !first_accepted
                    || (known.has_refused_for(REFUSAL_CHECK, now) && !is_replaced_elsewhere)
            }
        };
        if is_no_later_proxy && let Some(refusal) = known.raise(first, current) {
            return refusal;
        }
        let first = known.refused.is_none();
        let since = known.refused.map_or(now, |(since, _)| since);
        known.refused = Some((since, current));
        let refusing = self.refusing().count();
        let is_enough = refusing >= MIN_REFUSING || self.one_node || now >= since + LONE_REFUSAL;
        if 2 * refusing > self.nodes.len() && is_enough {
            let replaced = Replaced { found, current };
            self.replaced = Some(replaced);
            return Refusal::Replaced(replaced);
        }
        Refusal::Refused { first }
    }

    /// Handles the refusal of a number that is open at this proxy, and has not begun under this term: another caller
    /// has closed it. Numbers start again with a higher term.
    pub(super) fn number_refused(&mut self, node: &NodeId, term: Term) -> Refusal {
        let first = self.first;
        let known = self.node(node);
        if term < known.term {
            return Refusal::Outdated;
        }
        let is_refusing = known.refused.is_some();
        let raised = if is_refusing { None } else { known.raise(first, term) };
        raised.unwrap_or(Refusal::Refused { first: false })
    }

    fn node(&mut self, node: &NodeId) -> &mut NodeTerm {
        let term = self.first;
        let unknown = NodeTerm { term, raised: false, accepted: false, refused: None };
        self.nodes.entry(node.clone()).or_insert(unknown)
    }

    /// Whether no proxy that started later can have this term.
    fn is_beyond_clocks(&self, term: Term, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.started) + CLOCK_TOLERANCE;
        let latest = self.first.get().saturating_add(u64::try_from(since.as_millis()).unwrap_or(u64::MAX));
        term.get() > latest
    }
}

impl NodeTerm {
    fn is_accepted(&self, term: Term) -> bool {
        self.term != term || (self.accepted && self.refused.is_none())
    }

    fn has_refused_for(&self, time: Duration, now: Instant) -> bool {
        self.refused.is_some_and(|(since, _)| now >= since + time)
    }

    /// Raises the term for this node above `above`; `None` if no term is left.
    fn raise(&mut self, first: Term, above: Term) -> Option<Refusal> {
        let term = first.raised_above(above.max(self.term))?;
        let was_raised = std::mem::replace(&mut self.raised, true);
        (self.term, self.refused) = (term, None);
        Some(Refusal::Raised { term, first: !was_raised })
    }
}

#[cfg(test)]
mod tests;
