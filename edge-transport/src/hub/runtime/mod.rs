//! The hub on tokio: listeners in front of the routing table.

mod accept;
mod auth;
mod builder;
mod connection;
mod receive_budget;
mod silent;
mod slots;
mod source_usage;
mod warn_limit;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::{Notify, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::auth::Authentication;
pub use self::builder::HubBuilder;
use self::receive_budget::ReceiveBudget;
use self::warn_limit::WarnLimit;
use super::core::SessionMap;
use super::{Core, HubSettings, HubStats, PeerInfo, Presence, Requester, SessionKey};
use crate::frame::Hello;
use crate::name::{PeerId, ServiceName};
use crate::peer::Peer;

/// A running hub. Cheap to clone; the hub runs until [`Hub::close`] or [`Hub::drain`], or until its runtime ends.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

/// Maximum number of links that check an identity before other tasks run, and the pause after them.
const CHECKS_AT_ONCE: usize = 128;
const CHECK_PAUSE: Duration = Duration::from_millis(1);

/// Number of peers that are asked to leave at once, and the pause after them: 500 a second.
const ASKED_AT_ONCE: usize = 10;
const ASK_PAUSE: Duration = Duration::from_millis(20);

struct Shared {
    table: Mutex<Table>,
    presence: broadcast::Sender<Presence>,
    settings: HubSettings,
    authentication: Authentication,
    hello: Arc<Hello>,
    /// Frames that a link reads before its task yields.
    read_batch: usize,
    receive_budget: Arc<ReceiveBudget>,
    stop_accepting: CancellationToken,
    /// Ends the presence watches, once the nodes have been asked to leave.
    stop_watches: CancellationToken,
    /// Notified when a peer has left, or will not leave for another hub.
    left: Notify,
    tasks: TaskTracker,
    addresses: Vec<String>,
    /// Of links whose handshake failed, and of those that were refused after it.
    warnings: (WarnLimit, WarnLimit),
    /// Addresses of the listeners that have failed; at most one entry for each listener.
    failed_listeners: Mutex<Vec<String>>,
    /// The peer that provides the hub's own services.
    local: OnceLock<Peer>,
    /// Rises when the sessions must check whether their identities are still valid.
    identity_checks: AtomicU64,
}

/// The routing table and the wakers of the links.
struct Table {
    core: Core,
    wakers: SessionMap<Waker>,
}

impl Table {
    /// Wakes the links that a transition affects.
    fn wake(&mut self) {
        while let Some(key) = self.core.poll_wake() {
            if let Some(waker) = self.wakers.remove(&key) {
                waker.wake();
            }
        }
    }
}

impl Shared {
    /// The name under which the hub provides its own services.
    fn local_name(&self) -> Option<&PeerId> {
        self.local.get().map(Peer::name)
    }

    /// Makes every link check whether its peer's identity is still valid. The links check in groups, because verifying the
    /// certificates of all peers at once would delay their calls.
    async fn check_identities(&self) {
        self.identity_checks.fetch_add(1, Ordering::AcqRel);
        let keys: Vec<SessionKey> = self.table().wakers.keys().copied().collect();
        for keys in keys.chunks(CHECKS_AT_ONCE) {
            {
                let table = self.table();
                keys.iter().filter_map(|key| table.wakers.get(key)).for_each(Waker::wake_by_ref);
            }
            tokio::time::sleep(CHECK_PAUSE).await;
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // The table checks its invariants before it changes, so that it stays consistent after a panic. Continuing is better
        // than ending all calls.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes one transition of the routing table and its effects.
    fn with_core<T>(&self, transition: impl FnOnce(&mut Core) -> T) -> T {
        let mut table = self.table();
        let result = transition(&mut table.core);
        table.wake();
        while let Some(event) = table.core.poll_presence() {
            // The send fails only without receivers.
            let _ = self.presence.send(event);
        }
        result
    }
}

/// A weak handle of a hub.
#[derive(Clone)]
pub(crate) struct WeakHub(Weak<Shared>);

impl WeakHub {
    pub(crate) fn upgrade(&self) -> Option<Hub> {
        self.0.upgrade().map(|shared| Hub { shared })
    }
}

impl Hub {
    /// Builds a hub.
    pub fn builder() -> HubBuilder {
        HubBuilder::new()
    }

    /// The addresses of the listeners, in the order in which they were given.
    #[must_use]
    pub fn addresses(&self) -> &[String] {
        &self.shared.addresses
    }

    /// The addresses of the listeners that have failed and no longer accept links. A failed listener does not
    /// recover: restart the process. Empty while the hub works, also after [`Hub::drain`] and [`Hub::close`],
    /// which end all listeners on purpose.
    #[must_use]
    pub fn failed_listeners(&self) -> Vec<String> {
        self.shared.failed_listeners.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Connected peers, in no particular order.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.table().core.peers()
    }

    /// Subscribes to presence events, of a type in [`advanced`](crate::advanced); a peer watches them with a
    /// [`Watch`](crate::presence::Watch). A receiver that lags by more than 1024 events gets an error and should read
    /// [`Hub::peers`] again.
    #[must_use]
    pub fn presence(&self) -> broadcast::Receiver<Presence> {
        self.shared.presence.subscribe()
    }

    /// The services of a connected peer.
    pub(crate) fn services_of(&self, peer: &PeerId) -> Option<Arc<[ServiceName]>> {
        self.shared.table().core.services_of(peer)
    }

    /// Returns the connected peers and a receiver of all later events.
    pub(crate) fn peers_and_events(&self) -> (Vec<PeerInfo>, broadcast::Receiver<Presence>) {
        // Events are sent under the same lock.
        let table = self.shared.table();
        (table.core.peers(), self.shared.presence.subscribe())
    }

    /// Returns the statistics.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        let (receiving_bytes, receive_waits) = self.shared.receive_budget.stats();
        HubStats { receiving_bytes, receive_waits, ..self.shared.table().core.stats() }
    }

    /// Makes the link of this peer, if there is one, prove that it is alive.
    pub(crate) fn challenge(&self, peer: &PeerId) {
        self.shared.with_core(|core| core.challenge(peer));
    }

    /// Returns the token that is cancelled when the presence watches must end.
    pub(crate) fn stop_watches(&self) -> CancellationToken {
        self.shared.stop_watches.clone()
    }

    pub(crate) fn may_call(
        &self,
        (peer, services): (&PeerId, &[ServiceName]),
        target: &PeerId,
        service: &ServiceName,
    ) -> bool {
        self.shared.table().core.permits(&Requester { peer, services }, target, service)
    }

    /// Drains and closes the hub: accepts no new links, and asks the peers with services to leave, in random order and 500 a
    /// second, so that their next hub can admit them. For at most half of `drain_timeout` of the settings, calls to those that
    /// have not been asked yet still go through this hub. Then it accepts no new calls, and waits for open ones until
    /// `drain_timeout` is over.
    pub async fn drain(&self, reason: &str) {
        let began = tokio::time::Instant::now();
        self.shared.stop_accepting.cancel();
        let time = self.shared.settings.session.drain_timeout / 2;
        let moved = async {
            let movable = self.shared.table().core.movable();
            self.ask_to_leave(movable, reason, time).await;
            while !self.shared.table().core.movable().is_empty() {
                self.shared.left.notified().await;
            }
        };
        let _ = tokio::time::timeout(time, moved).await;
        self.shared.stop_watches.cancel();
        self.shared.with_core(|core| core.drain(reason));
        self.shared.tasks.close();
        let bound = self.shared.settings.session.drain_timeout + Duration::from_secs(1);
        let local = async {
            if let Some(local) = self.shared.local.get() {
                local.drain(reason).await;
            }
        };
        let all = async { tokio::join!(local, self.shared.tasks.wait()) };
        if tokio::time::timeout_at(began + bound, all).await.is_err() {
            self.close().await;
        }
    }

    /// Asks a share of the peers with services, between 0 and 1, to leave for another hub: chosen at random, 500 a second. A
    /// peer connects to another hub before it leaves; one that reaches no other hub connects to this one again. Returns how
    /// many were asked.
    pub async fn rebalance(&self, share: f64, reason: &str) -> usize {
        let mut peers = self.shared.table().core.movable();
        // A share outside of its bounds means none or all.
        let asked = (peers.len() as f64 * share.clamp(0.0, 1.0)).round() as usize;
        peers.truncate(asked);
        self.ask_to_leave(peers, reason, Duration::MAX).await;
        asked
    }

    /// Asks peers to leave, 500 a second, or faster if they would take longer than `within`.
    async fn ask_to_leave(&self, keys: Vec<SessionKey>, reason: &str, within: Duration) {
        let reason: Arc<str> = reason.into();
        let steps = (within.as_millis() / ASK_PAUSE.as_millis()).max(1);
        let at_once = keys.len().div_ceil(usize::try_from(steps).unwrap_or(usize::MAX)).max(ASKED_AT_ONCE);
        for (step, keys) in keys.chunks(at_once).enumerate() {
            if step > 0 {
                tokio::time::sleep(ASK_PAUSE).await;
            }
            self.shared.with_core(|core| keys.iter().for_each(|key| core.ask_to_leave(*key, &reason)));
        }
    }

    /// Closes every link at once; open calls end with `LINK_LOST`.
    pub async fn close(&self) {
        self.shared.stop_accepting.cancel();
        self.shared.stop_watches.cancel();
        self.shared.with_core(Core::close_all);
        if let Some(local) = self.shared.local.get() {
            local.close().await;
        }
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("addresses", &self.shared.addresses).finish_non_exhaustive()
    }
}
