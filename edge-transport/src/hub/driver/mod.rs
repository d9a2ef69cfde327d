//! The hub on tokio: listeners in front of the routing table.

mod accept;
mod auth;
mod builder;
mod connection;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Duration;

use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use self::auth::Authentication;
pub use self::builder::{HubBuilder, HubError};
use super::core::BySession;
use super::{Core, HubSettings, HubStats, PeerInfo, Presence};
use crate::frame::Hello;

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

    /// Counts, and what is open now.
    #[must_use]
    pub fn stats(&self) -> HubStats {
        self.shared.table().core.stats()
    }

    /// Takes no new links and no new calls, waits for open calls as long as `drain_timeout` of the settings, then closes.
    pub async fn drain(&self, reason: &str) {
        self.shared.stop_accepting.cancel();
        self.shared.with_core(|core| core.drain(reason));
        self.shared.tasks.close();
        let bound = self.shared.settings.session.drain_timeout + Duration::from_secs(1);
        if tokio::time::timeout(bound, self.shared.tasks.wait()).await.is_err() {
            self.close().await;
        }
    }

    /// Closes every link at once; open calls end with `LINK_LOST`.
    pub async fn close(&self) {
        self.shared.stop_accepting.cancel();
        self.shared.with_core(Core::close_all);
        self.shared.tasks.close();
        self.shared.tasks.wait().await;
    }
}

impl std::fmt::Debug for Hub {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("addresses", &self.shared.addresses).finish_non_exhaustive()
    }
}
