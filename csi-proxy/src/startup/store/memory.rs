//! Facts that are kept as long as the process lives.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{FactsStore, KeepError, Kept, LoadError, MAX_RECORD};
use crate::startup::Subject;

/// A store in memory, for tests. All clones are one store, so that a "restart" can be played.
#[derive(Debug, Clone, Default)]
pub struct MemoryFacts(Arc<Mutex<BTreeMap<String, Kept>>>);

impl FactsStore for MemoryFacts {
    fn load(&self, subject: &Subject) -> Result<Option<Kept>, LoadError> {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.get(&subject.to_string()).cloned())
    }

    fn keep(&self, subject: &Subject, kept: &Kept) -> Result<(), KeepError> {
        let found = kept.encode(subject).len();
        if found > MAX_RECORD {
            return Err(KeepError::TooLarge { found, max: MAX_RECORD });
        }
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(subject.to_string(), kept.clone());
        Ok(())
    }
}
