//! The term of a driver's proxy: the number of its start.

mod node_answers;

use std::sync::Mutex;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

pub(super) use self::node_answers::{NodeAnswers, TermStatus};
use crate::call::Term;

/// Source of the terms of one driver's proxy.
#[async_trait]
pub trait TermSource: Send + Sync {
    /// Returns a term higher than all previous terms of this source, including earlier runs of the process, and
    /// higher than `above`. The term is durable before this returns.
    ///
    /// # Errors
    /// If the term cannot be made durable, or no higher term exists.
    async fn raise(&self, above: Option<Term>) -> Result<Term, TermError>;
}

/// A term could not be raised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TermError {
    /// The store of terms failed.
    #[error("the term of this proxy cannot be raised")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No higher term exists, or `above` is higher than any proxy can have by the clock of this one.
    #[error("the term of this proxy cannot be raised above {above}; no proxy can have it")]
    Exhausted {
        /// The term that the new term must exceed.
        above: Term,
    },
}

/// No term is raised above this one.
const MAX_TERM: u64 = 1 << 62;

/// How far a term of a node may be ahead of this proxy's clock. Farther than any wrong clock, and so near that a node
/// that lies leaves enough higher terms.
const MAX_AHEAD: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// The next term: at least the milliseconds since 1970, so that a source that lost its state is above its earlier
/// terms unless the clock was set back.
///
/// # Errors
/// If no higher term is left, or `above` is more than 100 years ahead of `now`: a node that reports such a term lies.
pub fn next_term(previous: Option<Term>, above: Option<Term>, now: SystemTime) -> Result<Term, TermError> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(MAX_TERM).min(MAX_TERM);
    let clock = millis(since);
    if let Some(above) = above.filter(|above| above.get() > millis(since.saturating_add(MAX_AHEAD))) {
        return Err(TermError::Exhausted { above });
    }
    let least = previous.max(above);
    match least {
        Some(above) if above.get() >= MAX_TERM => Err(TermError::Exhausted { above }),
        Some(least) => Ok(Term::new(clock).map_or_else(|| least.next(), |clock| clock.max(least.next()))),
        None => Ok(Term::new(clock).unwrap_or(Term::FIRST)),
    }
}

/// Terms in memory that increase with the system clock over restarts.
///
/// If the clock was set back, nodes refuse the first call, and the term is raised above theirs.
#[derive(Debug, Default)]
pub struct ClockTerms(Mutex<Option<Term>>);

#[async_trait]
impl TermSource for ClockTerms {
    async fn raise(&self, above: Option<Term>) -> Result<Term, TermError> {
        let mut previous = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let term = next_term(*previous, above, SystemTime::now())?;
        *previous = Some(term);
        Ok(term)
    }
}

/// Another proxy of the same driver has started later: a node refuses the calls of this one, which must exit.
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

/// The term of this proxy, and whether it is still valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CurrentTerm {
    /// No node has accepted a call with this term yet.
    Raised(Term),
    /// A node has accepted a call with this term.
    Accepted(Term),
    /// The term of a later proxy supersedes this one, and no call is sent.
    Replaced(Replaced),
}

/// The reaction to a refused term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// The refused term is not in use any more: send again.
    Outdated,
    /// This proxy has lost its stored terms: raise the term above that of the node, and send again.
    Raise,
    /// Only this node refuses the term: the call ends.
    OneNode,
    /// Send no more calls.
    Replaced(Replaced),
}

impl CurrentTerm {
    pub(super) fn term(self) -> Result<Term, Replaced> {
        match self {
            Self::Raised(term) | Self::Accepted(term) => Ok(term),
            Self::Replaced(replaced) => Err(replaced),
        }
    }

    /// Records that a node has accepted a call with this term.
    pub(super) fn accepted(&mut self, term: Term) {
        if *self == Self::Raised(term) {
            *self = Self::Accepted(term);
        }
    }

    /// Handles the refusal of a call with the term `found` by a node that has recorded `current`, given the answers of
    /// all nodes.
    pub(super) fn refused(&mut self, found: Term, current: Term, status: TermStatus) -> Refusal {
        match *self {
            Self::Raised(term) | Self::Accepted(term) if found < term => Refusal::Outdated,
            Self::Raised(_) => Refusal::Raise,
            Self::Accepted(_) if status == TermStatus::Contested => Refusal::OneNode,
            Self::Accepted(_) if status == TermStatus::Confirmed => Refusal::Raise,
            Self::Accepted(_) => {
                let replaced = Replaced { found, current };
                *self = Self::Replaced(replaced);
                Refusal::Replaced(replaced)
            }
            Self::Replaced(replaced) => Refusal::Replaced(replaced),
        }
    }

    /// Records a raised term.
    pub(super) fn raised(&mut self, term: Term) {
        if let Self::Raised(_) | Self::Accepted(_) = self {
            *self = Self::Raised(term);
        }
    }
}

#[cfg(test)]
mod tests;
