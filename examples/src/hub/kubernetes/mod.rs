//! `--kubeconfig`: the hub watches the API server, and tells each node what concerns it.
//!
//! A pure [`core`] knows the objects and what each node has been told. Around it: [`watches`] of the API server, which tell
//! it; a peer of the hub's own, named [`PEER`](crate::kubernetes::PEER), whose [`service`] nodes call; and what that
//! writes ([`report`]) and fetches ([`secret`]) for them. A node is told of itself only, by the name that the hub has authenticated.

mod board;
mod connect;
mod core;
mod failure;
mod figures;
mod node_name;
mod policy;
mod quantity;
mod read;
mod report;
mod secret;
mod service;
mod statuses;
mod turns;
mod watches;

use std::sync::Arc;

use edge_transport::link::{Dialer, Listener, memory};
use edge_transport::{Epoch, Peer, PeerId, PeerSettings, ServiceName};
use tokio::task::JoinSet;

use self::board::Board;
pub use self::connect::KubernetesAccess;
use self::core::Bounds;
use self::figures::Figures;
pub(super) use self::policy::AskingKubernetes;
use self::service::NodeService;
use self::statuses::Statuses;
use self::turns::Turns;
use self::watches::Troubles;
use crate::kubernetes::{PEER, SERVICE};
use crate::process::Fatal;
use crate::status::Fact;

/// What a frame needs beside an update.
const FRAME_OVERHEAD: usize = 4 << 10;

/// The most nodes that watch at the same time.
const MAX_NODES: usize = 100_000;

/// The way from the hub's own peer to the hub.
pub(super) struct OwnLink {
    dialer: Box<dyn Dialer>,
    max_frame: usize,
}

/// The name of the hub's own peer.
pub(super) fn peer_name() -> Result<PeerId, Fatal> {
    PeerId::new(PEER).map_err(Fatal::runtime)
}

/// A listener for the hub, and the way to it.
pub(super) fn own_link(max_frame: usize) -> (Box<dyn Listener>, OwnLink) {
    let (listener, dialer) = memory::listen(PEER, max_frame);
    (Box::new(listener), OwnLink { dialer: Box::new(dialer), max_frame })
}

/// The hub's side of Kubernetes, running.
#[derive(Debug)]
pub(super) struct Kubernetes {
    board: Board,
    troubles: Troubles,
    figures: Figures,
    peer: Peer,
    _watches: JoinSet<()>,
}

impl Kubernetes {
    /// Starts watches and the hub's own peer. Whether the API server can be reached shows later, and is tried until it can.
    pub(super) async fn start(
        access: &KubernetesAccess,
        link: OwnLink,
        epoch: Epoch,
    ) -> Result<Arc<Self>, Fatal> {
        let client = access.client().await?;
        let mut bounds = Bounds::default();
        bounds.part_bytes = bounds.part_bytes.min(link.max_frame - FRAME_OVERHEAD);
        let board = Board::new(bounds);
        let (troubles, figures) = (Troubles::default(), Figures::default());
        let service = NodeService {
            client: client.clone(),
            board: board.clone(),
            turns: Turns::new(),
            figures: figures.clone(),
            statuses: Statuses::default(),
        };
        let mut settings = PeerSettings::default();
        settings.session.max_frame = link.max_frame;
        settings.session.max_serving = MAX_NODES;
        let name = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
        let peer = Peer::builder(peer_name()?)
            .epoch(epoch)
            .dialer(link.dialer)
            .settings(settings)
            .service(name, service.clone())
            .start()
            .map_err(Fatal::runtime)?;
        let watches = watches::start(&client, &board, &troubles, service);
        Ok(Arc::new(Self { board, troubles, figures, peer, _watches: watches }))
    }

    /// Ends what nodes listen to, so that the hub can drain.
    pub(super) async fn stop(&self) {
        self.board.stop();
        self.peer.drain("the hub is shutting down").await;
    }

    /// For `/readyz`.
    pub(super) fn ready(&self) -> Result<(), String> {
        figures::ready(&self.board, &self.troubles)
    }

    /// For the page.
    pub(super) fn facts(&self) -> Vec<Fact> {
        figures::facts(&self.board, &self.troubles, &self.figures)
    }

    /// For `/metrics`.
    pub(super) fn publish_metrics(&self) {
        figures::publish(&self.board, &self.troubles, &self.figures);
    }
}
