//! A store that fails on purpose, for tests of what stands before it.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use super::{FactsStore, KeepError, Kept, LoadError};
use crate::startup::Subject;

/// Passes everything on to another store, or fails as a disk does. All clones share the fault.
#[derive(Debug, Clone)]
pub struct FaultyFacts<S> {
    inner: S,
    fault: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    loads: Option<io::ErrorKind>,
    keeps: Option<io::ErrorKind>,
    failed: usize,
}

impl<S: FactsStore> FaultyFacts<S> {
    /// A store that does not fail yet.
    #[must_use]
    pub fn new(inner: S) -> Self {
        Self { inner, fault: Arc::default() }
    }

    /// From now on nothing can be kept: [`io::ErrorKind::StorageFull`], [`io::ErrorKind::ReadOnlyFilesystem`] and the like. `None`
    /// ends it.
    pub fn fail_keeps(&self, kind: impl Into<Option<io::ErrorKind>>) {
        self.state().keeps = kind.into();
    }

    /// From now on nothing can be read. `None` ends it.
    pub fn fail_loads(&self, kind: impl Into<Option<io::ErrorKind>>) {
        self.state().loads = kind.into();
    }

    /// How many operations have failed.
    #[must_use]
    pub fn failed(&self) -> usize {
        self.state().failed
    }

    fn fault(&self, which: impl Fn(&State) -> Option<io::ErrorKind>) -> Option<io::Error> {
        let mut state = self.state();
        let kind = which(&state)?;
        state.failed += 1;
        Some(kind.into())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S: FactsStore> FactsStore for FaultyFacts<S> {
    fn load(&self, subject: &Subject) -> Result<Option<Kept>, LoadError> {
        match self.fault(|state| state.loads) {
            Some(source) => Err(LoadError::Io { path: PathBuf::from(subject.to_string()), source }),
            None => self.inner.load(subject),
        }
    }

    fn keep(&self, subject: &Subject, kept: &Kept) -> Result<(), KeepError> {
        let path = || PathBuf::from(subject.to_string());
        match self.fault(|state| state.keeps) {
            Some(source) => Err(KeepError::Io { doing: "write", path: path(), source }),
            None => self.inner.keep(subject, kept),
        }
    }
}
