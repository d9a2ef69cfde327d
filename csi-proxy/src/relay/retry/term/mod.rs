//! The term of a driver's proxy: which of its starts this is.

use std::sync::Mutex;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;

use crate::call::Term;

/// Where the terms of one driver's proxy come from.
#[async_trait]
pub trait TermSource: Send + Sync {
    /// A term that is higher than all that this source has given before, in earlier runs of the process too, and higher than `above`. It is
    /// durable when it is returned.
    ///
    /// # Errors
    /// If the term cannot be made durable, or there is none above that.
    async fn raise(&self, above: Option<Term>) -> Result<Term, TermError>;
}

/// A term could not be raised.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TermError {
    /// Where terms are kept failed.
    #[error("the term of this proxy cannot be raised")]
    Store(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// There is no term above that one, or it is so high that no proxy can have had it.
    #[error("the term of this proxy cannot be raised above {above}; expected at most {MAX_TERM}")]
    Exhausted {
        /// The term.
        above: Term,
    },
}

/// No higher term is believed: so whatever a node reports, there are terms left.
const MAX_TERM: u64 = 1 << 62;

/// The term after those: at least the milliseconds since 1970, so that a source that has lost what it kept is still above its earlier terms,
/// unless the clock was set back.
///
/// # Errors
/// If there is no term left.
pub fn next_term(previous: Option<Term>, above: Option<Term>, now: SystemTime) -> Result<Term, TermError> {
    let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
    let clock = u64::try_from(since.as_millis()).unwrap_or(MAX_TERM).min(MAX_TERM);
    let least = previous.max(above);
    match least {
        Some(above) if above.get() >= MAX_TERM => Err(TermError::Exhausted { above }),
        Some(least) => Ok(Term::new(clock).map_or_else(|| least.next(), |clock| clock.max(least.next()))),
        None => Ok(Term::new(clock).unwrap_or(Term::FIRST)),
    }
}

/// Terms that are kept in memory alone and rise from run to run with the system's clock.
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

/// Another proxy of the same driver has begun after this one: a node refuses the calls of this one, which ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "this proxy was replaced: a node has had calls of a later start of a proxy of the same driver (term {current}; this one has {found}). Run one proxy for each driver"
)]
#[non_exhaustive]
pub struct Replaced {
    /// The term of this proxy.
    pub found: Term,
    /// The highest term that the node knows.
    pub current: Term,
}

/// The term that is in use. Pure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InUse {
    /// No node has taken a call with it yet.
    Raised(Term),
    /// A node has.
    Accepted(Term),
    /// It counts no more, and no call is sent.
    Replaced(Replaced),
}

/// What follows from a node's refusal of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It was an earlier term than the one in use: send again.
    Outdated,
    /// What this proxy knew of its terms is lost: raise the term above the node's, and send again.
    Raise,
    /// Send nothing any more.
    Replaced(Replaced),
}

impl InUse {
    pub(super) fn term(self) -> Result<Term, Replaced> {
        match self {
            Self::Raised(term) | Self::Accepted(term) => Ok(term),
            Self::Replaced(replaced) => Err(replaced),
        }
    }

    /// A node has taken a call with this term.
    pub(super) fn accepted(&mut self, term: Term) {
        if *self == Self::Raised(term) {
            *self = Self::Accepted(term);
        }
    }

    /// A node has refused a call with the term `found`, since it knows the term `current`.
    pub(super) fn refused(&mut self, found: Term, current: Term) -> Refusal {
        match *self {
            Self::Raised(term) | Self::Accepted(term) if found < term => Refusal::Outdated,
            Self::Raised(_) => Refusal::Raise,
            Self::Accepted(_) => {
                let replaced = Replaced { found, current };
                *self = Self::Replaced(replaced);
                Refusal::Replaced(replaced)
            }
            Self::Replaced(replaced) => Refusal::Replaced(replaced),
        }
    }

    /// The term was raised.
    pub(super) fn raised(&mut self, term: Term) {
        if let Self::Raised(_) = self {
            *self = Self::Raised(term);
        }
    }
}

#[cfg(test)]
mod tests;
