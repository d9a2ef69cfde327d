//! The thread that writes a journal, behind the work.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime};

use tokio::sync::watch;

use super::pending::{CommitNumber, Pending};
use super::{Contents, Journal, JournalError, JournalSettings};
use crate::operation::{Entry, Key, OperationId};

/// A journal and its thread, which ends with this, after a last commit.
#[derive(Debug)]
pub(crate) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    progress: watch::Sender<Progress>,
}

#[derive(Debug)]
struct State {
    pending: Pending,
    reopening: bool,
    ending: bool,
}

/// What is on the disk.
#[derive(Debug, Clone, Default)]
struct Progress {
    done: CommitNumber,
    failed: Option<Arc<str>>,
    /// How many reopenings have ended.
    reopened: u64,
}

impl Writer {
    /// Starts the thread over a journal that holds this.
    pub(crate) fn start(
        journal: Box<dyn Journal>,
        settings: JournalSettings,
        contents: &Contents,
    ) -> Result<Self, io::Error> {
        let state =
            State { pending: Pending::new(settings, &contents.restored), reopening: false, ending: false };
        let (state, wake, progress) = (Mutex::new(state), Condvar::new(), watch::Sender::default());
        let shared = Arc::new(Shared { state, wake, progress });
        let at_work = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("csi-journal".to_owned())
            .spawn(move || Work { shared: at_work, journal }.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Tells it of several things in a row, between which the thread does not run.
    pub(crate) fn recorder(&self) -> Recorder<'_> {
        Recorder { shared: &self.shared, state: self.shared.lock(), now: None }
    }

    /// The commit after which everything so far is on the disk.
    pub(crate) fn flush(&self) -> Wait {
        self.shared.urge(&mut self.shared.lock(), true)
    }

    /// Why the journal has failed, until it is reopened.
    pub(crate) fn failure(&self) -> Option<String> {
        self.shared.lock().pending.failure().map(str::to_owned)
    }

    /// Has the journal opened anew if it has failed, and has it hold what `entries` says, which is asked once no more entries come
    /// in between.
    pub(crate) async fn reopen(
        &self,
        entries: impl FnOnce(&dyn Fn(Vec<Entry>) -> Wait) -> Wait,
    ) -> Result<(), String> {
        if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
            return Err("its thread has ended".to_owned());
        }
        let mut progress = self.shared.progress.subscribe();
        let before = progress.borrow().reopened;
        {
            let mut state = self.shared.lock();
            if state.pending.failure().is_none() {
                return Ok(());
            }
            state.reopening = true;
            self.shared.wake.notify_one();
        }
        let ended = progress.wait_for(|progress| progress.reopened > before).await;
        if let Some(reason) = ended.map_err(|_| "its thread has ended".to_owned())?.failed.clone() {
            return Err(reason.to_string());
        }
        entries(&|entries| {
            let mut state = self.shared.lock();
            state.pending.reopened(Instant::now(), entries);
            self.shared.urge(&mut state, true)
        })
        .done()
        .await
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().ending = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // It has said by itself how it ended.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn urge(&self, state: &mut State, required: bool) -> Wait {
        let commit = state.pending.urge();
        self.wake.notify_one();
        Wait { commit, required, progress: self.progress.subscribe() }
    }
}

/// What the writer is told while nobody else tells it anything. To be held for a moment only.
#[derive(Debug)]
pub(crate) struct Recorder<'a> {
    shared: &'a Shared,
    state: MutexGuard<'a, State>,
    now: Option<Instant>,
}

impl Recorder<'_> {
    /// Takes an entry, to be written soon.
    pub(crate) fn record(&mut self, entry: Entry) {
        let idle = self.state.pending.due().is_none();
        let now = *self.now.get_or_insert_with(Instant::now);
        self.state.pending.record(now, entry);
        if idle && self.state.pending.due().is_some() {
            self.shared.wake.notify_one();
        }
    }

    /// The commit that an operation on these keys must wait for before its driver is called.
    pub(crate) fn before_run(&mut self, operation: OperationId, keys: &[Key]) -> Option<Wait> {
        let void = self.state.pending.holds_answer_about(operation, keys);
        (void || self.state.pending.is_eager()).then(|| self.shared.urge(&mut self.state, void))
    }

    /// The commit that an answer about these keys must wait for.
    pub(crate) fn before_answer(&mut self, operation: OperationId, keys: &[Key]) -> Option<Wait> {
        let void = self.state.pending.holds_answer_about(operation, keys);
        void.then(|| self.shared.urge(&mut self.state, true))
    }
}

/// A commit that something waits for.
#[derive(Debug)]
pub(crate) struct Wait {
    commit: CommitNumber,
    required: bool,
    progress: watch::Receiver<Progress>,
}

impl Wait {
    /// Waits until the commit is on the disk, or the journal has failed and it makes no difference.
    pub(crate) async fn done(mut self) -> Result<(), String> {
        let over = |progress: &Progress| progress.failed.is_some() || progress.done >= self.commit;
        let failed = match self.progress.wait_for(over).await {
            Ok(progress) if progress.done >= self.commit => None,
            Ok(progress) => progress.failed.as_deref().map(str::to_owned),
            Err(_) => Some("its thread has ended".to_owned()),
        };
        match failed {
            Some(reason) if self.required => Err(reason),
            _ => Ok(()),
        }
    }
}

struct Work {
    shared: Arc<Shared>,
    journal: Box<dyn Journal>,
}

impl Work {
    fn run(mut self) {
        self.measure();
        while let Some(task) = self.next() {
            match task {
                Task::Commit(batch) => {
                    let began = Instant::now();
                    let changes = batch.changes(SystemTime::now());
                    let outcome = self.journal.commit(&changes);
                    self.committed(changes.len(), began, outcome);
                }
                Task::Reopen => {
                    let outcome = self.journal.reopen();
                    self.reopened(outcome);
                }
            }
        }
    }

    /// Waits for what is to be done next; `None` at the end.
    fn next(&self) -> Option<Task> {
        let mut state = self.shared.lock();
        loop {
            if std::mem::take(&mut state.reopening) {
                return Some(Task::Reopen);
            }
            if state.ending {
                state.pending.urge();
            }
            if let Some(batch) = state.pending.take(Instant::now()) {
                return Some(Task::Commit(batch));
            }
            if state.ending {
                return None;
            }
            state = match state.pending.due() {
                None => self.shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let left = due.saturating_duration_since(Instant::now());
                    self.shared.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn committed(&self, changes: usize, began: Instant, outcome: Result<(), JournalError>) {
        let taken = began.elapsed();
        let mut state = self.shared.lock();
        match outcome {
            Ok(()) => {
                state.pending.done();
                let done = state.pending.taken();
                self.shared.progress.send_modify(|progress| progress.done = done);
                tracing::debug!(changes, ?taken, "journal of operations written");
            }
            Err(error) => self.fail(&mut state, &error.to_string()),
        }
        drop(state);
        #[cfg(feature = "metrics")]
        crate::metrics::journal_committed(taken);
        self.measure();
    }

    fn fail(&self, state: &mut State, reason: &str) {
        state.pending.failed(reason.to_owned());
        self.shared.progress.send_modify(|progress| progress.failed = Some(reason.into()));
        tracing::error!(
            reason,
            "the journal of operations has failed; calls go on without it until it is reopened"
        );
        #[cfg(feature = "metrics")]
        crate::metrics::journal_failed(true);
    }

    fn reopened(&self, outcome: Result<(), JournalError>) {
        let failed = outcome.err().map(|error| Arc::from(error.to_string()));
        if failed.is_none() {
            tracing::info!("the journal of operations works again");
            #[cfg(feature = "metrics")]
            crate::metrics::journal_failed(false);
        }
        self.shared.progress.send_modify(|progress| {
            progress.failed = failed;
            progress.reopened += 1;
        });
    }

    fn measure(&self) {
        #[cfg(feature = "metrics")]
        crate::metrics::journal_bytes(self.journal.bytes());
    }
}

impl Drop for Work {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.fail(&mut self.shared.lock(), "its thread has panicked");
        }
    }
}

enum Task {
    Commit(super::Batch),
    Reopen,
}
