//! A caller at several hubs: one peer for each.

mod members;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until, timeout};

use self::members::{Action, Members, Report};
use super::{Peer, PeerBuilder, PeerState, Refusal};
use crate::link::Dialer;

/// How often the names of hubs are resolved.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(5);

/// The shortest time between two resolutions, after the loss of a hub.
const MIN_RESOLVE_INTERVAL: Duration = Duration::from_millis(500);

/// The hubs of a caller, each with a peer of its own: started by
/// [`PeerBuilder::start_at_each_hub`](crate::peer::PeerBuilder::start_at_each_hub). A node is connected to one hub, so that a
/// call is made by the peer at that hub.
///
/// A name means all its addresses. It is resolved every 5 s and after the loss of a hub; a peer at an address that the name no
/// longer has is closed once its link has ended. Cheap to clone; the last clone ends the set and, unless they are held
/// elsewhere, its peers. A [`Peer`] is a set of one.
#[derive(Debug, Clone)]
pub struct HubSet {
    hubs: watch::Receiver<Hubs>,
    /// Ends with the last clone. None for a set of one.
    task: Option<Arc<AbortOnDrop>>,
}

/// The peers by address, and the names that could not be resolved, with the causes.
#[derive(Debug, Default)]
struct Hubs {
    peers: BTreeMap<Arc<str>, Peer>,
    unresolved: BTreeMap<Arc<str>, String>,
}

#[derive(Debug)]
struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl From<Peer> for HubSet {
    fn from(peer: Peer) -> Self {
        let peers = BTreeMap::from([(peer.name().as_str().into(), peer)]);
        let (_, hubs) = watch::channel(Hubs { peers, unresolved: BTreeMap::new() });
        Self { hubs, task: None }
    }
}

impl HubSet {
    pub(super) fn start(template: PeerBuilder, names: Vec<Box<dyn Dialer>>, runtime: &Handle) -> Self {
        let (sender, hubs) = watch::channel(Hubs::default());
        let names = names.into_iter().map(Arc::from).collect();
        let set = Set {
            template,
            names,
            dialers: BTreeMap::new(),
            members: Members::default(),
            hubs: sender,
            started: 0,
            changes: FuturesUnordered::new(),
        };
        let task = runtime.spawn(set.run()).abort_handle();
        Self { hubs, task: Some(Arc::new(AbortOnDrop(task))) }
    }

    /// The peers, in the order of their addresses. Empty until the first name is resolved.
    #[must_use]
    pub fn peers(&self) -> Vec<Peer> {
        self.hubs.borrow().peers.values().cloned().collect()
    }

    /// Waits until the set has other peers than at the last call. Returns `false` if it never has: it is closed, or a set of
    /// one. Cancel-safe.
    pub async fn changed(&mut self) -> bool {
        self.hubs.changed().await.is_ok()
    }

    /// The state at each hub, with its address. A name that cannot be resolved is one that connects.
    #[must_use]
    pub fn states(&self) -> Vec<(String, PeerState)> {
        let hubs = self.hubs.borrow();
        let peers = hubs.peers.iter().map(|(address, peer)| (address.to_string(), peer.state()));
        let unresolved = hubs.unresolved.iter().map(|(name, cause)| {
            let last_error = Some(cause.clone());
            (name.to_string(), PeerState::Connecting { attempts: 0, last_error, refusal: None })
        });
        peers.chain(unresolved).collect()
    }

    /// Whether any hub is connected.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.hubs.borrow().peers.values().any(|peer| peer.state().is_connected())
    }

    /// Closes the peers at once. Open calls end with `LINK_LOST`.
    pub async fn close(&self) {
        if let Some(task) = &self.task {
            task.0.abort();
        }
        join_all(self.peers().iter().map(Peer::close)).await;
    }
}

/// The state of a peer after a change.
type Changed = (Arc<str>, watch::Receiver<PeerState>);

/// The task of a set.
struct Set {
    template: PeerBuilder,
    /// The dialers that the user gave: addresses and names.
    names: Vec<Arc<dyn Dialer>>,
    /// The dialers of the addresses of names, as they were resolved last.
    dialers: BTreeMap<Arc<str>, Arc<dyn Dialer>>,
    members: Members,
    hubs: watch::Sender<Hubs>,
    /// The number of peers that were started.
    started: u64,
    changes: FuturesUnordered<BoxFuture<'static, Option<Changed>>>,
}

impl Set {
    async fn run(mut self) {
        let mut resolve_at = Instant::now();
        let mut resolved_at = resolve_at;
        loop {
            tokio::select! {
                () = sleep_until(resolve_at) => {
                    self.resolve().await;
                    resolved_at = Instant::now();
                    resolve_at = resolved_at + RESOLVE_INTERVAL;
                }
                Some(Some(changed)) = self.changes.next() => {
                    if self.reported(changed) {
                        resolve_at = resolve_at.min(resolved_at + MIN_RESOLVE_INTERVAL);
                    }
                }
            }
            let mut actions = Vec::new();
            self.members.tick(Instant::now().into_std(), &mut actions);
            self.execute(actions);
        }
    }

    /// Resolves all names. The addresses of a name that cannot be resolved now stay.
    async fn resolve(&mut self) {
        let bound = self.template.dial_timeout_of();
        let resolutions = self.names.iter().map(|name| timeout(bound, name.resolve()));
        let resolutions = join_all(resolutions).await;
        let (mut actions, mut unresolved) = (Vec::new(), BTreeMap::new());
        for (index, (name, resolution)) in self.names.iter().zip(resolutions).enumerate() {
            let found: Vec<Arc<dyn Dialer>> = match resolution {
                Ok(Ok(found)) if found.is_empty() => vec![Arc::clone(name)],
                Ok(Ok(found)) => found.into_iter().map(Arc::from).collect(),
                Ok(Err(error)) => {
                    unresolved.insert(name.address().into(), error.to_string());
                    continue;
                }
                Err(_) => {
                    unresolved.insert(name.address().into(), format!("not resolved within {bound:?}"));
                    continue;
                }
            };
            let addresses: Vec<Arc<str>> = found.iter().map(|dialer| dialer.address().into()).collect();
            self.dialers.extend(addresses.iter().cloned().zip(found));
            self.members.resolved(index, &addresses, &mut actions);
        }
        self.hubs.send_if_modified(|hubs| {
            for (name, cause) in &unresolved {
                if hubs.unresolved.get(name) != Some(cause) {
                    tracing::warn!(%name, cause, "the name of the hubs cannot be resolved, trying again");
                }
            }
            hubs.unresolved = unresolved;
            false
        });
        self.dialers.retain(|address, _| self.members.contains(address));
        self.execute(actions);
    }

    /// Handles the new state of a peer. Returns whether its hub was lost.
    fn reported(&mut self, (address, mut states): Changed) -> bool {
        let report = match &*states.borrow_and_update() {
            PeerState::Connected { .. } | PeerState::Draining { .. } => Report::Connected,
            PeerState::Connecting { refusal, .. } => {
                Report::Away { name_in_use: *refusal == Some(Refusal::NameInUse) }
            }
            PeerState::Closed => return false,
        };
        let mut actions = Vec::new();
        self.members.reported(&address, report, Instant::now().into_std(), &mut actions);
        self.watch(address, states);
        self.execute(actions);
        report != Report::Connected
    }

    fn watch(&self, address: Arc<str>, mut states: watch::Receiver<PeerState>) {
        let changed = async move { states.changed().await.is_ok().then_some((address, states)) };
        self.changes.push(changed.boxed());
    }

    fn execute(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Open(address) => self.open(address),
                Action::Close(address) => {
                    // The last handle of a peer closes it; a call that still has one ends as without a link.
                    self.hubs.send_if_modified(|hubs| hubs.peers.remove(&address).is_some());
                }
            }
        }
    }

    fn open(&mut self, address: Arc<str>) {
        let Some(dialer) = self.dialers.get(&address) else { return };
        self.started += 1;
        // The settings were checked before the set was started.
        match self.template.at(Box::new(Arc::clone(dialer)), self.started).start() {
            Ok(peer) => {
                self.watch(Arc::clone(&address), peer.watch());
                self.hubs.send_modify(|hubs| drop(hubs.peers.insert(address, peer)));
            }
            Err(error) => tracing::error!(%address, %error, "no peer can be started at this hub"),
        }
    }
}
