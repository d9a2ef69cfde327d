//! Who is gone for good, as whoever operates the hub says; who is to hear of it, and what they report.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::broadcast::{self, Receiver};
use tokio::sync::{Mutex as Turn, OwnedMutexGuard};

use crate::name::{PeerId, ServiceName};

/// Most peers that a hub remembers as gone for good.
pub const MAX_GONE: usize = 1024;

/// Reports that a slow receiver may lag behind.
const REPORTS: usize = 1024;

/// Where a hub keeps which peers are gone for good, so that its next life knows it.
///
/// A hub asks before anybody is told that a peer is gone, and before a peer that was gone is let in again. So who is told by a later
/// life of the hub is never told a thing that is over.
pub trait KeepGone: Send + Sync {
    /// Puts these in the place of what was kept before, on the disk when it returns. May block. One call at a time.
    ///
    /// # Errors
    /// If it cannot. What is kept then are these, or those before.
    fn keep(&self, gone: &BTreeSet<PeerId>) -> io::Result<()>;
}

/// What a watcher has done about a peer that is gone for good.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// Who reports, as authenticated.
    pub from: PeerId,
    /// The peer that is gone.
    pub peer: PeerId,
    /// Whether nothing of it is left there.
    pub done: bool,
    /// What was done, for people. Holds no control characters.
    pub words: String,
}

/// A peer cannot be declared gone, or that cannot be taken back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GoneError {
    /// It is there.
    #[error("{peer} is connected, so it is not gone; stop it first")]
    Connected {
        /// The peer.
        peer: PeerId,
    },
    /// Nobody could be told.
    #[error("this hub tells nobody who is there, so nobody would hear of it; build the hub with `presence`")]
    NoPresence,
    /// Too many are.
    #[error(
        "{max} peers are remembered as gone, which is the bound; take back those that everybody has been told of"
    )]
    TooMany {
        /// The bound.
        max: usize,
    },
    /// It cannot be kept for the hub's next life.
    #[error(
        "{peer}: nobody was told, for it cannot be kept: {cause}; a later life of the hub may tell it all the same, and till then the peer is not let in: say it again, or take it back, when the disk can be written"
    )]
    NotKept {
        /// The peer.
        peer: PeerId,
        /// What failed.
        cause: String,
    },
    /// It cannot be taken back for the hub's next life.
    #[error(
        "{peer} may still be kept as gone, since that it is not cannot be kept: {cause}; say it again when the disk can be written"
    )]
    NotTakenBack {
        /// The peer.
        peer: PeerId,
        /// What failed.
        cause: String,
    },
}

/// Who is gone for good, who wants to hear of it, and what they report.
pub(crate) struct Gone {
    state: Mutex<State>,
    /// Held while what is kept is changed.
    turn: Arc<Turn<()>>,
    keeper: Option<Arc<dyn KeepGone>>,
    reports: broadcast::Sender<Report>,
    returned: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Those that are kept and told.
    peers: BTreeSet<PeerId>,
    /// The one that is being declared.
    coming: Option<PeerId>,
    /// Those that could not be declared. What is kept may hold them all the same.
    doubtful: BTreeSet<PeerId>,
    watches: BTreeMap<u64, Arc<Watched>>,
    last_watch: u64,
}

/// What somebody watches.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) source: PeerId,
    /// What it offers itself.
    pub(super) services: Arc<[ServiceName]>,
    pub(super) service: ServiceName,
    /// The only peers that it wants to hear of; empty for all.
    pub(super) only: BTreeSet<PeerId>,
}

impl Watched {
    /// Whether it wants to hear of a peer.
    pub(super) fn wants(&self, peer: &PeerId) -> bool {
        self.only.is_empty() || self.only.contains(peer)
    }
}

impl Gone {
    /// Knows these from before, and has changes kept if there is somebody who does.
    pub(crate) fn new(peers: BTreeSet<PeerId>, keeper: Option<Arc<dyn KeepGone>>) -> Self {
        let state = Mutex::new(State { peers, ..State::default() });
        let (reports, _) = broadcast::channel(REPORTS);
        Self { state, turn: Arc::default(), keeper, reports, returned: AtomicU64::new(0) }
    }

    /// Whether the next life of the hub will know what this one is told.
    pub(crate) fn is_kept(&self) -> bool {
        self.keeper.is_some()
    }

    /// Remembers a peer, and has that kept. `is_connected` is asked once no link of it is let in unnoticed any more.
    pub(crate) async fn declare(
        self: &Arc<Self>,
        peer: &PeerId,
        is_connected: impl FnOnce() -> bool,
    ) -> Result<(), GoneError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let mut next = {
            let mut state = self.state();
            if state.peers.contains(peer) {
                return Ok(());
            }
            // A disk that is broken is no way around the bound, and saying it again needs no further place.
            let is_new = !state.doubtful.contains(peer);
            if is_new && state.peers.len() + state.doubtful.len() >= MAX_GONE {
                return Err(GoneError::TooMany { max: MAX_GONE });
            }
            state.coming = Some(peer.clone());
            state.peers.clone()
        };
        if is_connected() {
            self.state().coming = None;
            return Err(GoneError::Connected { peer: peer.clone() });
        }
        next.insert(peer.clone());
        let kept = self.keep(turn, next, None).await;
        kept.map_err(|cause| GoneError::NotKept { peer: peer.clone(), cause: cause.to_string() })
    }

    /// Forgets a peer, since it `came` or an operator says so, and has that kept. Says whether it was remembered.
    pub(crate) async fn retract(self: &Arc<Self>, peer: &PeerId, came: bool) -> Result<bool, GoneError> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        let mut next = {
            let state = self.state();
            if !state.holds(peer) {
                return Ok(false);
            }
            state.peers.clone()
        };
        let known = next.remove(peer);
        let kept = self.keep(turn, next, (came && known).then_some(peer)).await;
        kept.map_err(|cause| GoneError::NotTakenBack { peer: peer.clone(), cause: cause.to_string() })?;
        Ok(known)
    }

    /// Puts these in the place of those before; one is not among them any more since it has `come`. Goes on if nobody waits for it any
    /// more, as when the link of that one is lost meanwhile.
    async fn keep(
        self: &Arc<Self>,
        turn: OwnedMutexGuard<()>,
        next: BTreeSet<PeerId>,
        come: Option<&PeerId>,
    ) -> io::Result<()> {
        let Some(keeper) = &self.keeper else {
            self.settle(next, true, come);
            return Ok(());
        };
        let (gone, keeper, come) = (Arc::clone(self), Arc::clone(keeper), come.cloned());
        let written = tokio::task::spawn_blocking(move || {
            let kept = keeper.keep(&next);
            gone.settle(next, kept.is_ok(), come.as_ref());
            drop(turn);
            kept
        });
        written.await.map_err(io::Error::other)?
    }

    /// What is kept was to be changed, and was or was not. Who has come has it said, whatever becomes of its link.
    fn settle(&self, next: BTreeSet<PeerId>, kept: bool, come: Option<&PeerId>) {
        self.state().settle(next, kept);
        if let Some(peer) = come.filter(|_| kept) {
            tracing::warn!(%peer, "a peer is back that was declared gone for good; it comes as a new one");
            self.returned.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a peer may not be let in before it is [retracted](Self::retract).
    pub(crate) fn holds(&self, peer: &PeerId) -> bool {
        self.state().holds(peer)
    }

    /// Those that are gone, by name.
    pub(crate) fn peers(&self) -> Vec<PeerId> {
        self.state().peers.iter().cloned().collect()
    }

    /// Whether one is, and whoever asks is to be told.
    pub(super) fn is_declared(&self, peer: &PeerId) -> bool {
        self.state().peers.contains(peer)
    }

    /// How many have come back.
    pub(crate) fn returned(&self) -> u64 {
        self.returned.load(Ordering::Relaxed)
    }

    /// How many are.
    pub(crate) fn count(&self) -> usize {
        self.state().peers.len()
    }

    /// What is watched, by whom.
    pub(super) fn watches(&self) -> Vec<Arc<Watched>> {
        self.state().watches.values().cloned().collect()
    }

    /// The reports that come from now on.
    pub(crate) fn reports(&self) -> Receiver<Report> {
        self.reports.subscribe()
    }

    pub(super) fn report(&self, report: Report) {
        // Nobody may be interested.
        let _ = self.reports.send(report);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn holds(&self, peer: &PeerId) -> bool {
        self.peers.contains(peer) || self.doubtful.contains(peer) || self.coming.as_ref() == Some(peer)
    }

    /// What is kept was to be changed, and was or was not.
    fn settle(&mut self, next: BTreeSet<PeerId>, kept: bool) {
        let coming = self.coming.take();
        if kept {
            self.peers = next;
            self.doubtful.clear();
        } else {
            self.doubtful.extend(coming);
        }
    }
}

/// A watch counts as one until this is dropped.
pub(super) struct Watching {
    gone: Arc<Gone>,
    number: u64,
}

impl Watching {
    pub(super) fn begin(gone: Arc<Gone>, watched: Arc<Watched>) -> Self {
        let number = {
            let mut state = gone.state();
            state.last_watch += 1;
            let number = state.last_watch;
            state.watches.insert(number, watched);
            number
        };
        Self { gone, number }
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.gone.state().watches.remove(&self.number);
    }
}

impl std::fmt::Debug for Gone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gone").field("peers", &self.count()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver as Turns, channel};
    use std::time::Duration;

    use super::*;

    /// Writes when it is told to.
    struct Slow(Mutex<Turns<()>>);

    impl KeepGone for Slow {
        fn keep(&self, _: &BTreeSet<PeerId>) -> io::Result<()> {
            self.0.lock().unwrap().recv().map_err(io::Error::other)
        }
    }

    #[tokio::test]
    async fn a_peer_that_came_is_counted_though_its_link_is_lost_while_the_disk_is_written() {
        let [first, second] = ["edge-1", "edge-2"].map(|name| PeerId::new(name).unwrap());
        let (write, turns) = channel();
        let keeper = Arc::new(Slow(Mutex::new(turns)));
        let gone = Arc::new(Gone::new(BTreeSet::from([first.clone()]), Some(keeper)));
        let left = tokio::time::timeout(Duration::ZERO, gone.retract(&first, true)).await;
        assert!(left.is_err(), "nobody waits for the disk any more");
        (0..2).for_each(|_| write.send(()).unwrap());
        gone.declare(&second, || false).await.unwrap();
        assert_eq!((gone.peers(), gone.returned()), (vec![second.clone()], 1));
        write.send(()).unwrap();
        assert!(gone.retract(&second, false).await.unwrap());
        assert_eq!(gone.returned(), 1, "an operator took it back");
    }

    /// Fails once.
    struct FailsOnce(AtomicU64);

    impl KeepGone for FailsOnce {
        fn keep(&self, _: &BTreeSet<PeerId>) -> io::Result<()> {
            match self.0.fetch_add(1, Ordering::SeqCst) {
                0 => Err(io::Error::other("disk full")),
                _ => Ok(()),
            }
        }
    }

    #[tokio::test]
    async fn the_last_that_fits_can_be_said_again_when_the_disk_can_be_written() {
        let peer = |index: usize| PeerId::new(format!("edge-{index}")).unwrap();
        let keeper = Arc::new(FailsOnce(AtomicU64::new(0)));
        let gone = Arc::new(Gone::new((1..MAX_GONE).map(peer).collect(), Some(keeper)));
        let (last, further) = (peer(MAX_GONE), peer(MAX_GONE + 1));
        let failed = gone.declare(&last, || false).await;
        assert!(matches!(failed, Err(GoneError::NotKept { .. })), "{failed:?}");
        assert_eq!(gone.declare(&further, || false).await, Err(GoneError::TooMany { max: MAX_GONE }));
        assert_eq!(gone.declare(&last, || false).await, Ok(()));
        assert_eq!(gone.count(), MAX_GONE);
    }
}
