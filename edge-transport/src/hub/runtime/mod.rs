//! The hub on tokio: listeners in front of the routing table.

mod accept;
mod auth;
mod builder;
mod connection;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::auth::Authentication;
pub use self::builder::{HubBuilder, HubError};
use super::core::BySession;
use super::{Core, HubSettings, HubStats, PeerInfo, Presence, Requester};
use crate::frame::Hello;
use crate::name::{PeerId, ServiceName};
use crate::peer::Peer;

/// A running hub. Cheap to clone; the hub runs until [`Hub::close`] or [`Hub::drain`], or until its runtime ends.
#[derive(Clone)]
pub struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    table: Mutex<Table>,
    presence: broadcast::Sender<Presence>,
    settings: HubSettings,
    authentication: Authentication,
    hello: Hello,
    stop_accepting: CancellationToken,
    tasks: TaskTracker,
    addresses: Vec<String>,
    /// What answers calls to the hub itself.
    own: OnceLock<Peer>,
}

/// The routing table, and who waits for frames from it.
struct Table {
    core: Core,
    wakers: BySession<Waker>,
}

impl Table {
    /// Wakes the links that a transition has something for.
    fn wake(&mut self) {
        while let Some(key) = self.core.poll_wake() {
            if let Some(waker) = self.wakers.remove(&key) {
                waker.wake();
            }
        }
    }
}

impl Shared {
    /// The name under which the hub answers calls itself.
    fn own_name(&self) -> Option<&PeerId> {
        self.own.get().map(Peer::name)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No function of the table leaves it half changed when it panics on its own invariants; going on beats ending all calls.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One transition of the routing table, and then what it asks for.
    fn with_core<T>(&self, transition: impl FnOnce(&mut Core) -> T) -> T {
        let mut table = self.table();
        let result = transition(&mut table.core);
        table.wake();
        while let Some(event) = table.core.poll_presence() {
            // No receiver is no error.
            let _ = self.presence.send(event);
        }
        result
    }
}

/// A hub that may have ended.
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

    /// Connected peers, in no order.
    #[must_use]
    pub fn peers(&self) -> Vec<PeerInfo> {
        self.shared.table().core.peers()
    }

    /// What comes and goes from now on. A receiver that falls more than 1024 events behind is told so and should ask
    /// [`Hub::peers`] again.
    #[must_use]
    pub fn presence(&self) -> broadcast::Receiver<Presence> {
        self.shared.presence.subscribe()
    }

    /// Connected peers, and what comes and goes from exactly then on.
    pub(crate) fn follow(&self) -> (Vec<PeerInfo>, broadcast::Receiver<Presence>) {
        // Events are sent under the same lock.
        let table = self.shared.table();
        (table.core.peers(), self.shared.presence.subscribe())
    }

    /// Counts, and what is open now.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        self.shared.table().core.stats()
    }

    /// Cancelled when the hub ends.
    pub(crate) fn stopping(&self) -> CancellationToken {
        self.shared.stop_accepting.clone()
    }

    pub(crate) fn may_call(
        &self,
        (peer, services): (&PeerId, &[ServiceName]),
        target: &PeerId,
        service: &ServiceName,
    ) -> bool {
        self.shared.table().core.permits(&Requester { peer, services }, target, service)
    }

    /// Takes no new links and no new calls, waits for open calls as long as `drain_timeout` of the settings, then closes.
    pub async fn drain(&self, reason: &str) {
        self.shared.stop_accepting.cancel();
        self.shared.with_core(|core| core.drain(reason));
        self.shared.tasks.close();
        let bound = self.shared.settings.session.drain_timeout + Duration::from_secs(1);
        let own = async {
            if let Some(own) = self.shared.own.get() {
                own.drain(reason).await;
            }
        };
        let all = async { tokio::join!(own, self.shared.tasks.wait()) };
        if tokio::time::timeout(bound, all).await.is_err() {
            self.close().await;
        }
    }

    /// Closes every link at once; open calls end with `LINK_LOST`.
    pub async fn close(&self) {
        self.shared.stop_accepting.cancel();
        self.shared.with_core(Core::close_all);
        if let Some(own) = self.shared.own.get() {
            own.close().await;
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
