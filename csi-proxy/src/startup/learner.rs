//! Drives [`Startup`] on tokio: asks, keeps, answers.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::{Answer, Effect, Event, Facts, Question, Startup, Subject};
use crate::fault::Fault;
use crate::outcome::Outcome;
use crate::replies::Replies;

/// How long one background question may take.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Learner {
    subject: Subject,
    core: Mutex<Startup>,
    learnt: watch::Sender<()>,
    returned: Notify,
    /// Where the facts are kept.
    file: Option<PathBuf>,
}

impl Learner {
    pub(crate) fn new(subject: Subject, file: Option<PathBuf>) -> Self {
        let facts = file.as_deref().map(|file| read(file, &subject)).unwrap_or_default();
        let core = Startup::new(subject.driver.clone(), facts, Instant::now().into_std());
        Self {
            subject,
            core: Mutex::new(core),
            learnt: watch::Sender::new(()),
            returned: Notify::new(),
            file,
        }
    }

    fn driver(&self) -> &DriverName {
        &self.subject.driver
    }

    /// Do not wait for the next round.
    pub(crate) fn refresh(&self) {
        self.returned.notify_one();
    }

    /// Answers from what is known, waiting up to `wait` for what is not.
    pub(crate) async fn answer(&self, question: Question, wait: Duration) -> Replies {
        let mut learnt = self.learnt.subscribe();
        let known = async {
            loop {
                match self.core().answer(question) {
                    Answer::Message(message) => {
                        return Replies::unary(message, Outcome::from_endpoint(crate::Code::OK, ""));
                    }
                    Answer::Status(code, text) => {
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
                match effect {
                    Effect::Ask(question) => {
                        let late = |_| Err(Fault::Deadline { waited: PATIENCE }.into());
                        let answer = timeout(PATIENCE, ask(question)).await.unwrap_or_else(late);
                        event = Some(Event::Answered(question, answer));
                    }
                    Effect::Learnt => {
                        self.learnt.send_replace(());
                        self.keep().await;
                    }
                    Effect::ForeignName { found } => tracing::warn!(
                        driver = %self.driver(), %found,
                        "the driver's GetPluginInfo gives another name than this endpoint was given; sidecars are told the latter"
                    ),
                    Effect::Unreachable(outcome) => tracing::warn!(
                        driver = %self.driver(), code = %outcome.code, message = outcome.message,
                        "the driver cannot be reached; sidecars are told that it is not ready"
                    ),
                    Effect::Reached => tracing::info!(driver = %self.driver(), "the driver is reached"),
                }
            }
            if let (None, Some(wakeup)) = (&event, wakeup) {
                event = Some(tokio::select! {
                    () = sleep_until(wakeup.into()) => Event::Wake,
                    () = self.returned.notified() => Event::Returned,
                });
            }
        }
    }

    async fn keep(&self) {
        let Some(file) = self.file.clone() else { return };
        let bytes = self.core().facts().encode(&self.subject);
        let kept =
            tokio::task::spawn_blocking(move || write(&file, &bytes).map_err(|error| (file, error))).await;
        if let Ok(Err((file, error))) = kept {
            tracing::warn!(file = %file.display(), %error, "what the driver offers could not be kept for the next start");
        }
    }

    fn core(&self) -> MutexGuard<'_, Startup> {
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was kept. Nothing, if it cannot be used: then it is learnt again.
fn read(file: &Path, subject: &Subject) -> Facts {
    let facts = match std::fs::read(file) {
        Ok(bytes) => Facts::decode(&bytes, subject).map_err(|error| error.to_string()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Facts::default(),
        Err(error) => Err(error.to_string()),
    };
    facts.unwrap_or_else(|error| {
        tracing::warn!(file = %file.display(), error, "what was kept of the driver cannot be used; learning it again");
        Facts::default()
    })
}

/// All or nothing, also if the power goes.
fn write(file: &Path, bytes: &[u8]) -> io::Result<()> {
    let fresh = file.with_extension("new");
    let mut to = std::fs::File::create(&fresh)?;
    io::Write::write_all(&mut to, bytes)?;
    to.sync_all()?;
    std::fs::rename(&fresh, file)
}
