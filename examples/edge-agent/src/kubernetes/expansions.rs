//! Expands volumes whose claims request a larger size.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;
use volume_manager::node::{ExpandError, Volumes};

use super::plan::Expansion;

/// The wait before a failed expansion is retried.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The state of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Running,
    Done(u64),
    Failed { retry_at: Instant },
}

/// The requested expansions. Each stays while its claim requests it.
#[derive(Debug, Default)]
pub(super) struct Expansions {
    wanted: BTreeMap<Expansion, State>,
    running: JoinSet<(Expansion, Result<u64, ExpandError>)>,
}

impl Expansions {
    /// Replaces the requested expansions. Starts the new ones, and those whose retry is due.
    pub(super) fn set_wanted(&mut self, volumes: &Volumes, wanted: &[Expansion], now: Instant) {
        self.wanted.retain(|expansion, _| wanted.contains(expansion));
        for expansion in wanted {
            match self.wanted.get(expansion) {
                Some(State::Running | State::Done(_)) => continue,
                Some(State::Failed { retry_at }) if *retry_at > now => continue,
                Some(State::Failed { .. }) | None => {}
            }
            self.wanted.insert(expansion.clone(), State::Running);
            let (volumes, expansion) = (volumes.clone(), expansion.clone());
            self.running.spawn(async move {
                let ended = volumes.expand(&expansion.key, expansion.bytes).await;
                (expansion, ended)
            });
        }
    }

    /// Returns when the next failed expansion is to be retried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let failed = self.wanted.values().filter_map(|state| match state {
            State::Failed { retry_at } => Some(*retry_at),
            State::Running | State::Done(_) => None,
        });
        failed.min()
    }

    /// Waits for the next expansion to end. This method is cancel safe.
    pub(super) async fn ended(&mut self) {
        let Some(ended) = self.running.join_next().await else { return std::future::pending().await };
        // A job that panicked keeps its state until its claim requests another size.
        if let Ok((expansion, result)) = ended
            && let Some(state) = self.wanted.get_mut(&expansion)
        {
            *state = state_after(&expansion, result, Instant::now());
        }
    }

    /// Returns the finished expansions with the resulting sizes in bytes.
    pub(super) fn done(&self) -> BTreeMap<Expansion, u64> {
        let done = self.wanted.iter().filter_map(|(expansion, state)| match state {
            State::Done(bytes) => Some((expansion.clone(), *bytes)),
            State::Running | State::Failed { .. } => None,
        });
        done.collect()
    }
}

fn state_after(expansion: &Expansion, result: Result<u64, ExpandError>, now: Instant) -> State {
    let Expansion { key, namespace, name, bytes, .. } = expansion;
    match result {
        Ok(bytes) | Err(ExpandError::Shrink { found: bytes, .. }) => {
            tracing::info!(volume = %key, claim = %format_args!("{namespace}/{name}"), bytes, "expanded");
            State::Done(bytes)
        }
        // The driver needs no call on the node: the controller has expanded the volume.
        Err(ExpandError::Unsupported { .. }) => State::Done(*bytes),
        Err(error) => {
            tracing::warn!(claim = %format_args!("{namespace}/{name}"), "cannot expand the volume, retrying: {error}");
            State::Failed { retry_at: now + RETRY_DELAY }
        }
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::{DriverName, VolumeId};
    use volume_manager::VolumeKey;

    use super::*;

    #[tokio::test]
    async fn retries_failed_expansions_only() {
        let key =
            VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new("v").unwrap() };
        let (namespace, name, uid) = ("ns".to_owned(), "data".to_owned(), "9f0c".to_owned());
        let expansion = Expansion { key: key.clone(), namespace, name, uid, bytes: 5 };
        let now = Instant::now();
        let after = |result| state_after(&expansion, result, now);
        assert_eq!(after(Ok(6)), State::Done(6));
        assert_eq!(after(Err(ExpandError::Shrink { key: key.clone(), found: 8, asked: 5 })), State::Done(8));
        assert_eq!(after(Err(ExpandError::Unsupported { driver: key.driver.clone() })), State::Done(5));
        assert_eq!(after(Err(ExpandError::Unknown { key })), State::Failed { retry_at: now + RETRY_DELAY });
    }
}
