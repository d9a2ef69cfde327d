//! Drives [`Startup`] on tokio: asks, keeps, answers.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use tokio::sync::{Mutex as Turn, Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::age::Age;
use super::store::{FactsStore, Kept, LoadError};
use super::view::Status;
use super::{Answer, Effect, Event, Facts, Question, Startup, Subject};
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::replies::Replies;

/// How long one background question may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Learner {
    subject: Subject,
    core: Mutex<Startup>,
    age: Mutex<Age>,
    learnt: watch::Sender<()>,
    returned: Notify,
    online: Notify,
    /// Whether it was said that answers are given without the driver. Once each time that it goes away.
    stale_told: Mutex<bool>,
    store: Option<Arc<dyn FactsStore>>,
    /// Held while the store is written, to the end of that: two at once would take each other's draft away.
    writing: Arc<Turn<()>>,
}

impl Learner {
    pub(crate) fn new(subject: Subject, store: Option<Arc<dyn FactsStore>>, asks_node_info: bool) -> Self {
        let kept = store.as_deref().and_then(|store| load(store, &subject));
        let (facts, age) = match kept {
            Some(Kept { facts, as_of }) => (facts, Age::of_kept(as_of)),
            None => (Facts::default(), Age::default()),
        };
        let core = Startup::new(subject.driver.clone(), facts, Instant::now().into_std());
        let core = Mutex::new(core.asking_node_info(asks_node_info));
        let (age, stale_told) = (Mutex::new(age), Mutex::default());
        let (learnt, returned, online) = (watch::Sender::new(()), Notify::new(), Notify::new());
        Self { subject, core, age, learnt, returned, online, stale_told, store, writing: Arc::default() }
    }

    /// How the answers stand.
    pub(crate) fn status(&self) -> Status {
        let age = self.age().since(SystemTime::now());
        let core = self.core();
        Status { reached: core.reached(), ready: core.is_ready(), complete: core.is_complete(), age }
    }

    fn driver(&self) -> &DriverName {
        &self.subject.driver
    }

    /// Where the node is, if it has said that.
    pub(crate) fn place(&self) -> Option<csi::Topology> {
        self.core().facts().place()
    }

    /// Do not wait for the next round.
    pub(crate) fn refresh(&self) {
        self.returned.notify_one();
    }

    /// A node of the route is online.
    pub(crate) fn online(&self) {
        self.online.notify_one();
    }

    /// Answers from what is known, waiting up to `wait` for what is not.
    pub(crate) async fn answer(&self, question: Question, wait: Duration) -> Replies {
        let mut learnt = self.learnt.subscribe();
        let known = async {
            loop {
                let answer = self.core().answer(question);
                match answer {
                    Answer::Message(message) => {
                        self.tell_stale(question);
                        return Replies::unary(message, Outcome::from_endpoint(crate::Code::OK, ""));
                    }
                    Answer::Status(code, text) => {
                        self.tell_stale(question);
                        return Replies::outcome(Outcome::from_endpoint(code, text));
                    }
                    Answer::Wait => {}
                }
                // The sender lives as long as `self`.
                let _ = learnt.changed().await;
            }
        };
        let late = |_| Replies::outcome(Fault::NotReady { driver: self.driver().clone() });
        timeout(wait, known).await.unwrap_or_else(late)
    }

    /// Asks and asks, until dropped.
    pub(crate) async fn run<F: Future<Output = Result<Bytes, Outcome>>>(&self, ask: impl Fn(Question) -> F) {
        let mut event = None;
        loop {
            let (effects, wakeup) = {
                let mut core = self.core();
                let now = Instant::now().into_std();
                let effects = event.take().map(|event| core.handle(event, now)).unwrap_or_default();
                (effects, core.next_wakeup())
            };
            for effect in effects {
                let now = SystemTime::now();
                match effect {
                    Effect::Ask(question) => {
                        let late = |_| Err(Fault::Deadline { waited: PATIENCE }.into());
                        let answer = timeout(PATIENCE, ask(question)).await.unwrap_or_else(late);
                        event = Some(Event::Answered(question, answer));
                    }
                    Effect::Learnt => {
                        self.age().confirm(now);
                        self.learnt.send_replace(());
                        self.keep_in_time().await;
                    }
                    Effect::Confirmed => {
                        self.age().confirm(now);
                        if self.age().is_due() {
                            self.keep_in_time().await;
                        }
                    }
                    Effect::ForeignName { found } => tracing::warn!(
                        driver = %self.driver(), %found,
                        "the driver's GetPluginInfo gives another name than this endpoint was given; sidecars are told the latter"
                    ),
                    Effect::Unreachable(outcome) => {
                        tracing::warn!(
                            driver = %self.driver(), code = %outcome.code, message = %outcome.loggable(),
                            "the driver cannot be reached; sidecars are told that it is not ready"
                        );
                        // From now on the age counts.
                        if self.age().is_newer_than_disk() {
                            self.keep_in_time().await;
                        }
                    }
                    Effect::Reached => {
                        tracing::info!(driver = %self.driver(), "the driver is reached");
                        *self.stale_told() = false;
                    }
                }
            }
            if let (None, Some(wakeup)) = (&event, wakeup) {
                #[cfg(feature = "metrics")]
                if let Some(age) = self.age().since(SystemTime::now()) {
                    crate::metrics::facts_age(self.driver(), age);
                }
                event = Some(tokio::select! {
                    () = sleep_until(wakeup.into()) => Event::Wake,
                    () = self.returned.notified() => Event::Returned,
                    () = self.online.notified() => Event::Online,
                });
            }
        }
    }

    /// Keeps the time up to which the facts were true, if the store has another.
    pub(crate) async fn settle(&self) {
        if self.age().is_newer_than_disk() {
            self.keep().await;
        }
    }

    /// A disk that hangs is waited for once: sidecars are to hear meanwhile whether the driver is there.
    async fn keep_in_time(&self) {
        let idle = self.writing.try_lock().is_ok();
        if idle && timeout(PATIENCE, self.keep()).await.is_err() {
            tracing::warn!(driver = %self.driver(), "the disk takes long to keep what the driver offers; not waiting for it");
        }
    }

    async fn keep(&self) {
        let Some(store) = self.store.clone() else { return };
        let turn = Arc::clone(&self.writing).lock_owned().await;
        let Some(as_of) = self.age().as_of() else { return };
        let (subject, kept) = (self.subject.clone(), Kept { facts: self.core().facts().clone(), as_of });
        let kept = tokio::task::spawn_blocking(move || {
            let kept = store.keep(&subject, &kept);
            drop(turn);
            kept
        });
        let kept = kept.await;
        let error = match kept {
            Ok(Ok(())) => None,
            Ok(Err(error)) => Some(error.to_string()),
            Err(error) => Some(error.to_string()),
        };
        let first = self.age().written(as_of, error.is_none());
        if let Some(error) = error {
            let driver = self.driver();
            if first {
                tracing::warn!(%driver, error, "what the driver offers could not be kept for the next start; trying again");
            } else {
                tracing::debug!(%driver, error, "what the driver offers could still not be kept");
            }
        }
    }

    /// Says once that an answer is given while the driver cannot be asked, and how old it is.
    fn tell_stale(&self, question: Question) {
        let reached = self.core().reached();
        if question == Question::Probe || reached == Some(true) {
            return;
        }
        let Some(age) = self.age().since(SystemTime::now()) else { return };
        #[cfg(feature = "metrics")]
        crate::metrics::stale_answer(self.driver());
        if std::mem::replace(&mut *self.stale_told(), true) {
            return;
        }
        let (driver, age) = (self.driver(), Duration::from_secs(age.as_secs()));
        if reached.is_some() {
            tracing::warn!(%driver, ?age, "answering sidecars with what the driver said when it was last reached");
        } else {
            tracing::info!(%driver, ?age, "answering sidecars with what was kept of the driver, which is being asked");
        }
    }

    fn core(&self) -> MutexGuard<'_, Startup> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn age(&self) -> MutexGuard<'_, Age> {
        self.age.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stale_told(&self) -> MutexGuard<'_, bool> {
        self.stale_told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Learner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Learner").field("subject", &self.subject).finish_non_exhaustive()
    }
}

/// What was kept. Nothing, if it cannot be used: then it is learnt again.
fn load(store: &dyn FactsStore, subject: &Subject) -> Option<Kept> {
    store.load(subject).unwrap_or_else(|error: LoadError| {
        let driver = &subject.driver;
        tracing::warn!(%driver, %error, "what was kept of the driver cannot be used; learning it again");
        None
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use super::super::store::KeepError;
    use super::*;

    /// Keeps nothing until the other end is dropped.
    #[derive(Debug)]
    struct Hangs(Mutex<mpsc::Receiver<()>>);

    impl FactsStore for Hangs {
        fn load(&self, _: &Subject) -> Result<Option<Kept>, LoadError> {
            Ok(None)
        }

        fn keep(&self, _: &Subject, _: &Kept) -> Result<(), KeepError> {
            let _ = self.0.lock().unwrap().recv();
            Ok(())
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_keeps_nobody_from_asking_the_driver() {
        let (release, hangs) = mpsc::channel();
        let subject = Subject { driver: DriverName::new("vendor").unwrap(), node: None };
        let learner = Learner::new(subject, Some(Arc::new(Hangs(Mutex::new(hangs)))), false);
        let asked = AtomicUsize::new(0);
        // Every answer of the start has a form in which nothing is set.
        let ask = |_| {
            asked.fetch_add(1, Ordering::Relaxed);
            std::future::ready(Ok(Bytes::new()))
        };
        let hours = async {
            let mut counts = Vec::new();
            for _ in 0..3 * 3600 {
                tokio::time::advance(Duration::from_secs(1)).await;
                counts.push(asked.load(Ordering::Relaxed));
            }
            counts
        };
        let counts = tokio::select! {
            () = learner.run(ask) => unreachable!("it never ends"),
            counts = hours => counts,
        };
        drop(release);
        let [first, second, third] = [0, 1, 2].map(|hour| counts[(hour + 1) * 3600 - 1]);
        assert!(first > 10 && second > first + 10 && third > second + 10, "{first}, {second}, {third}");
    }
}
