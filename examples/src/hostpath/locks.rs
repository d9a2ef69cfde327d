//! One operation at a time on a volume: a second one is told to come back.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use super::error::CallError;

/// What is being worked on. Holds one entry for each running call, of which there is a bounded number.
#[derive(Debug, Clone, Default)]
pub struct OperationLocks {
    busy: Arc<Mutex<BTreeSet<String>>>,
}

/// The right to work on one thing, given back when dropped.
#[derive(Debug)]
#[must_use]
pub struct OperationGuard {
    key: String,
    busy: Arc<Mutex<BTreeSet<String>>>,
}

impl OperationLocks {
    /// Takes the right to work on `key`, like `volume vol-1` or `volume name pvc-1`.
    ///
    /// # Errors
    /// [`CallError::Pending`] if another call has it.
    pub fn acquire(&self, key: String) -> Result<OperationGuard, CallError> {
        let mut busy = self.busy.lock().unwrap_or_else(PoisonError::into_inner);
        if !busy.insert(key.clone()) {
            return Err(CallError::Pending { what: key });
        }
        Ok(OperationGuard { key, busy: self.busy.clone() })
    }
}

impl Drop for OperationGuard {
    fn drop(&mut self) {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_operation_is_refused_until_the_first_has_ended() {
        let locks = OperationLocks::default();
        let first = locks.acquire("volume a".into()).unwrap();
        assert!(matches!(locks.acquire("volume a".into()), Err(CallError::Pending { .. })));
        assert!(locks.acquire("volume b".into()).is_ok());
        drop(first);
        assert!(locks.acquire("volume a".into()).is_ok());
    }
}
