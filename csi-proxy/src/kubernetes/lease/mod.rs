//! A Lease (`coordination.k8s.io/v1`) that makes one of several proxies of a driver the active one, and gives it the term.

mod core;
mod object;
#[cfg(test)]
mod tests;

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use fastrand::Rng;
use kube::Client;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use self::core::{Action, Core, Event, Now, Stop, Timing};
use self::object::LeaseObject;
use super::request::RequestError;
use crate::call::Term;
use crate::relay::{TermError, TermSource};

/// The default duration of a Lease.
pub const DEFAULT_LEASE_DURATION: Duration = Duration::from_secs(15);
/// The minimum duration of a Lease. A renewal then has 2 s, twice.
pub const MIN_LEASE_DURATION: Duration = Duration::from_secs(6);
/// The maximum duration of a Lease. A longer one of another holder counts as this one.
pub const MAX_LEASE_DURATION: Duration = Duration::from_secs(300);

/// A Lease was lost. The process must stop dispatching and exit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseLost {
    /// No renewal succeeded in time.
    #[error("the lease was not renewed within {deadline:?}; check the connection to the API server")]
    NotRenewed {
        /// How long the Lease is held without a renewal.
        deadline: Duration,
    },
    /// Another process has written the Lease.
    #[error("the lease has another holder: {holder:?}")]
    Taken {
        /// The identity in the Lease; empty if it was released.
        holder: String,
    },
    /// The Lease was deleted.
    #[error("the lease was deleted")]
    Deleted,
}

/// A Lease cannot be acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The term of the Lease cannot be raised.
    #[error("the lease cannot be acquired; correct its annotation {}", object::TERM_ANNOTATION)]
    Term(#[source] TermError),
    /// The Lease was lost at once.
    #[error("the lease was acquired and lost")]
    Lost(#[source] LeaseLost),
}

/// The duration of a Lease is not usable.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid duration of the lease: {found:?}; expected whole seconds, {MIN_LEASE_DURATION:?} to {MAX_LEASE_DURATION:?}"
)]
#[non_exhaustive]
pub struct InvalidLeaseDuration {
    /// The duration.
    pub found: Duration,
}

/// A candidate for a Lease, before it starts.
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until it acquires"]
pub struct LeaseBuilder {
    api: LeaseObject,
    identity: String,
    timing: Timing,
}

impl LeaseBuilder {
    /// Sets how long the Lease belongs to a process that does not renew it, in whole seconds; default 15 s. The process renews
    /// it every two fifteenths of that, and counts it as lost after two thirds. All candidates should have the same duration.
    ///
    /// # Errors
    /// If the duration is out of range, or has a fraction of a second.
    pub fn with_duration(mut self, duration: Duration) -> Result<Self, InvalidLeaseDuration> {
        let is_valid =
            (MIN_LEASE_DURATION..=MAX_LEASE_DURATION).contains(&duration) && duration.subsec_nanos() == 0;
        if !is_valid {
            return Err(InvalidLeaseDuration { found: duration });
        }
        self.timing = Timing::new(duration);
        Ok(self)
    }

    /// Waits until this process holds the Lease, without a time limit: failed requests are logged and repeated. Then a task of
    /// the current runtime renews it. A dropped future may have acquired the Lease, which then expires.
    ///
    /// # Errors
    /// If no higher term is left, or the Lease was lost at once.
    pub async fn acquire(self) -> Result<Lease, LeaseError> {
        let Self { api, identity, timing } = self;
        let core = Core::new(identity, timing, Rng::with_seed(random()));
        let mut driver = Driver { api, core, timing, next: Action::Read, failing: false };
        driver.next = driver.on(Event::Wake);
        let (term, until) = loop {
            if let Some(held) = driver.core.held() {
                break held;
            }
            match driver.step(std::future::pending()).await {
                None => {}
                Some(Stop::Lost(lost)) => return Err(LeaseError::Lost(lost)),
                Some(Stop::NoTerm { above }) => return Err(LeaseError::Term(TermError::Exhausted { above })),
                Some(Stop::Released) => {
                    return Err(LeaseError::Lost(LeaseLost::Taken { holder: String::new() }));
                }
            }
        };
        tracing::info!(lease = %driver.api, %term, "lease acquired");
        let held = Arc::new(watch::Sender::new(Held { until: until.into(), stop: None }));
        let (release, mut released) = watch::channel(false);
        let mut task = JoinSet::new();
        let sender = Arc::clone(&held);
        task.spawn(async move {
            let stop = loop {
                let stop = driver.step(async { drop(released.wait_for(|released| *released).await) }).await;
                if let Some(stop) = stop {
                    break stop;
                }
                let until = driver.core.held().map_or_else(Instant::now, |(_, until)| until.into());
                sender.send_modify(|held| held.until = until);
            };
            sender.send_modify(|held| held.stop = Some(stop));
        });
        let is_raised = AtomicBool::new(false);
        Ok(Lease(Arc::new(Shared { _task: task, term, timing, held, release, is_raised })))
    }
}

/// A Lease that this process has acquired. Cheap to clone. When the last clone is dropped, the renewals end, and another
/// process takes the Lease after its duration.
///
/// Its [`TermSource`] has one term, for one relay.
///
/// A pause of the whole host that its monotonic clock does not count, as of a suspended virtual machine, is not noticed
/// before the next renewal. Nodes refuse the calls of that time when they have the term of the next holder.
#[derive(Debug, Clone)]
pub struct Lease(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Ends first, so that it does not take the end of the channel for a release.
    _task: JoinSet<()>,
    term: Term,
    timing: Timing,
    held: Arc<watch::Sender<Held>>,
    release: watch::Sender<bool>,
    is_raised: AtomicBool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    /// Until when the Lease is held without another renewal.
    until: Instant,
    /// Why the renewals have ended.
    stop: Option<Stop>,
}

impl Lease {
    /// A candidate for the Lease of this name. To the identity, for example the name of the pod, a random number is added: no
    /// other run of a process may have the same.
    pub fn builder(client: Client, namespace: &str, name: &str, identity: &str) -> LeaseBuilder {
        let identity = format!("{identity}_{:016x}", random());
        let api = LeaseObject::new(client, namespace, name);
        LeaseBuilder { api, identity, timing: Timing::new(DEFAULT_LEASE_DURATION) }
    }

    /// The term of this acquisition: higher than that of every earlier one.
    #[must_use]
    pub fn term(&self) -> Term {
        self.0.term
    }

    /// Whether this process holds the Lease now. Compares with the clock, so it does not depend on a task that may be late.
    #[must_use]
    pub fn is_held(&self) -> bool {
        let held = self.0.held.borrow();
        held.stop.is_none() && !*self.0.release.borrow() && Instant::now() < held.until
    }

    /// Waits until the Lease is lost; forever if it was released. It is reported before another process may acquire it.
    pub async fn lost(&self) -> LeaseLost {
        let mut held = self.0.held.subscribe();
        loop {
            let Held { until, stop } = held.borrow_and_update().clone();
            match stop {
                Some(Stop::Lost(lost)) => return lost,
                Some(_) => std::future::pending().await,
                None => {}
            }
            tokio::select! {
                biased;
                // The sender is in `self`.
                _ = held.changed() => {}
                () = sleep_until(until) => return LeaseLost::NotRenewed { deadline: self.0.timing.deadline },
            }
        }
    }

    /// Releases the Lease, so that another process can acquire it at once: call this when nothing is dispatched any more.
    /// Waits at most for two requests; without an answer the Lease expires.
    pub async fn release(&self) {
        self.0.release.send_replace(true);
        let mut held = self.0.held.subscribe();
        let ended = held.wait_for(|held| held.stop.is_some());
        if timeout(2 * self.0.timing.request, ended).await.is_err() {
            tracing::warn!("the lease is not released; it expires");
        }
    }
}

#[async_trait]
impl TermSource for Lease {
    /// The term of this Lease, once.
    async fn raise(&self) -> Result<Term, TermError> {
        if self.0.is_raised.swap(true, Ordering::Relaxed) {
            return Err(TermError::Store(Box::new(TermUsed)));
        }
        if !self.is_held() {
            let lost = LeaseLost::NotRenewed { deadline: self.0.timing.deadline };
            return Err(TermError::Store(Box::new(lost)));
        }
        Ok(self.0.term)
    }
}

/// A lease has one term.
#[derive(Debug, thiserror::Error)]
#[error("the term of the lease is in use by another relay; acquire the lease once for each relay")]
struct TermUsed;

/// Executes the steps of the core.
struct Driver {
    api: LeaseObject,
    core: Core,
    timing: Timing,
    next: Action,
    /// Whether the last request failed.
    failing: bool,
}

impl Driver {
    /// Executes the next step. A wait ends early when `release` does. Returns why the candidate stops.
    async fn step(&mut self, release: impl Future<Output = ()>) -> Option<Stop> {
        // A holder does not wait for an answer that comes too late.
        let limit = match self.core.held() {
            Some((_, until)) => {
                Instant::from(until).saturating_duration_since(Instant::now()).min(self.timing.request)
            }
            None => self.timing.request,
        };
        let event = match &self.next {
            Action::Stop(stop) => return Some(stop.clone()),
            Action::Wait(until) => {
                tokio::select! {
                    () = sleep_until((*until).into()) => Event::Wake,
                    () = release => Event::Release,
                }
            }
            Action::Read => {
                let read = self.api.read(limit).await;
                self.answered(read.map(Event::Read))
            }
            Action::Write(write) => {
                let written = self.api.write(write, limit).await;
                self.answered(written.map(|written| if written { Event::Written } else { Event::Refused }))
            }
        };
        self.next = self.on(event);
        None
    }

    fn on(&mut self, event: Event) -> Action {
        let now = Now { instant: Instant::now().into_std(), wall: SystemTime::now() };
        self.core.on(event, now)
    }

    /// Logs the first of several failures, and the first answer after it.
    fn answered(&mut self, answer: Result<Event, RequestError>) -> Event {
        let was_failing = std::mem::replace(&mut self.failing, answer.is_err());
        match answer {
            Ok(event) => {
                if was_failing {
                    tracing::info!(lease = %self.api, "the API server answers again");
                }
                event
            }
            Err(error) => {
                if !was_failing {
                    tracing::warn!(lease = %self.api, %error, "cannot read or write the lease, retrying");
                }
                Event::Failed
            }
        }
    }
}

/// A number that no other run of a process has: the keys of the standard library's hasher are random.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
