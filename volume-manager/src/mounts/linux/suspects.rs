//! The paths that hung the last time.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{Semaphore, SemaphorePermit};

/// Lets paths that hung the last time have a quarter of the processes at most, so that a server with a hundred volumes that
/// is down leaves the others their share.
#[derive(Debug)]
pub(super) struct Suspects {
    paths: Mutex<BTreeSet<PathBuf>>,
    turns: Semaphore,
}

/// How many are remembered. What comes after is not treated as suspect.
const MAX_PATHS: usize = 16 * 1024;

impl Suspects {
    pub(super) fn new(processes: usize) -> Self {
        Self { paths: Mutex::default(), turns: Semaphore::new((processes / 4).max(1)) }
    }

    /// Waits for a turn, if one of the paths is suspect.
    pub(super) async fn turn(&self, paths: &[PathBuf]) -> Option<SemaphorePermit<'_>> {
        if paths.iter().any(|path| self.paths().contains(path)) {
            // It is never closed.
            return self.turns.acquire().await.ok();
        }
        None
    }

    /// An operation on the paths has hung.
    pub(super) fn suspect(&self, hung: &[PathBuf]) {
        let mut paths = self.paths();
        for path in hung {
            if paths.len() < MAX_PATHS {
                paths.insert(path.clone());
            }
        }
    }

    /// An operation on the paths was answered.
    pub(super) fn clear(&self, answered: &[PathBuf]) {
        let mut paths = self.paths();
        for path in answered {
            paths.remove(path);
        }
    }

    fn paths(&self) -> MutexGuard<'_, BTreeSet<PathBuf>> {
        // Whole between any two statements.
        self.paths.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn paths_that_hang_share_a_quarter_and_the_others_wait_for_none() {
        let suspects = Suspects::new(8);
        let path = |name: &str| [PathBuf::from(name)];
        suspects.suspect(&[path("/a"), path("/b"), path("/c")].concat());
        let turns = (suspects.turn(&path("/a")).await, suspects.turn(&path("/b")).await);
        assert!(turns.0.is_some() && turns.1.is_some());
        let (third, healthy) = (path("/c"), path("/healthy"));
        tokio::select! {
            biased;
            _ = suspects.turn(&third) => panic!("more than a quarter"),
            turn = suspects.turn(&healthy) => assert!(turn.is_none()),
        }
        suspects.clear(&third);
        assert!(suspects.turn(&third).await.is_none());
    }
}
