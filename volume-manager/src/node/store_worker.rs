//! Runs the store on a blocking thread, one commit or reopening at a time.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::store::{Change, Store, StoreError};

/// A finished task of the store.
#[derive(Debug)]
pub(super) struct FinishedTask {
    /// The kind of task.
    pub(super) kind: TaskKind,
    /// The result.
    pub(super) outcome: Result<(), StoreError>,
    /// The duration.
    pub(super) took: Duration,
}

/// The kinds of tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TaskKind {
    Commit,
    Reopen,
}

/// Owns the store, and moves it to a thread while a task runs.
pub(super) struct StoreWorker {
    store: Option<Store>,
    running: Option<JoinHandle<(Store, FinishedTask)>>,
}

impl StoreWorker {
    pub(super) fn new(store: Store) -> Self {
        Self { store: Some(store), running: None }
    }

    /// Starts a commit. The core requests one task at a time.
    pub(super) fn commit(&mut self, changes: Vec<Change>) {
        self.begin(TaskKind::Commit, move |store| store.commit(&changes));
    }

    /// Starts to reopen the store.
    pub(super) fn reopen(&mut self) {
        self.begin(TaskKind::Reopen, Store::reopen);
    }

    fn begin(
        &mut self,
        kind: TaskKind,
        run: impl FnOnce(&mut Store) -> Result<(), StoreError> + Send + 'static,
    ) {
        let Some(mut store) = self.store.take() else {
            debug_assert!(false, "the store is busy");
            return;
        };
        self.running = Some(tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let outcome = run(&mut store);
            (store, FinishedTask { kind, outcome, took: began.elapsed() })
        }));
    }

    /// Waits for the running task; pending if there is none. Cancel safe.
    pub(super) async fn done(&mut self) -> FinishedTask {
        let Some(handle) = &mut self.running else { return std::future::pending().await };
        match handle.await {
            Ok((store, done)) => {
                self.running = None;
                self.store = Some(store);
                done
            }
            // The runtime shuts down, and this future with it.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            // A store that panicked cannot be trusted, and a panic is better than a hang.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
