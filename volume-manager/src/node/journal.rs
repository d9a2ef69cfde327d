//! The store at work: one commit or reopening at a time, on a thread that may block.

use std::time::{Duration, Instant};

use tokio::task::JoinHandle;

use crate::store::{Change, Store, StoreError};

/// How a piece of work ended.
#[derive(Debug)]
pub(super) struct Done {
    /// What was done.
    pub(super) work: Kind,
    /// How it ended.
    pub(super) outcome: Result<(), StoreError>,
    /// How long it took.
    pub(super) took: Duration,
}

/// What a store can be at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Commit,
    Reopen,
}

/// Owns the store, and lends it to a thread while it works.
pub(super) struct Journal {
    store: Option<Box<dyn Store>>,
    at_work: Option<JoinHandle<(Box<dyn Store>, Done)>>,
}

impl Journal {
    pub(super) fn new(store: Box<dyn Store>) -> Self {
        Self { store: Some(store), at_work: None }
    }

    /// Begins a commit. The core asks for one thing at a time.
    pub(super) fn commit(&mut self, changes: Vec<Change>) {
        self.begin(Kind::Commit, move |store| store.commit(&changes));
    }

    /// Begins to open the store again.
    pub(super) fn reopen(&mut self) {
        self.begin(Kind::Reopen, Store::reopen);
    }

    fn begin(
        &mut self,
        work: Kind,
        run: impl FnOnce(&mut Box<dyn Store>) -> Result<(), StoreError> + Send + 'static,
    ) {
        let Some(mut store) = self.store.take() else {
            debug_assert!(false, "the store is at work");
            return;
        };
        self.at_work = Some(tokio::task::spawn_blocking(move || {
            let began = Instant::now();
            let outcome = run(&mut store);
            (store, Done { work, outcome, took: began.elapsed() })
        }));
    }

    /// The end of the work; pending if there is none. Nothing is lost if this is dropped.
    pub(super) async fn done(&mut self) -> Done {
        let Some(handle) = &mut self.at_work else { return std::future::pending().await };
        match handle.await {
            Ok((store, done)) => {
                self.at_work = None;
                self.store = Some(store);
                done
            }
            // The runtime is going, and this future with it.
            Err(error) if error.is_cancelled() => std::future::pending().await,
            // A store that panicked cannot be trusted: better to end loudly than to hang.
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
}
