//! `--kubeconfig`: the hub watches the API server, and tells each node what concerns it.
//!
//! A pure [`core`] knows the objects and what each node has been told. Around it: [`watches`] of the API server, which tell
//! it; a [`service`] of the hub itself, which nodes call; and what that
//! writes ([`report`]) and fetches ([`secret`]) for them. A node is told of itself only, by the name that the hub has authenticated.

mod board;
mod connect;
mod core;
mod events;
mod failure;
mod figures;
mod node_name;
mod quantity;
mod read;
mod report;
mod secret;
mod service;
mod statuses;
mod turns;
mod watches;

use std::sync::Arc;

use edge_transport::ServiceName;
use edge_transport::hub::{HubBuilder, OnlyNodes};
use tokio::task::JoinSet;

use self::board::Board;
pub use self::connect::KubernetesAccess;
use self::core::Bounds;
use self::events::Events;
use self::figures::Figures;
use self::service::NodeService;
use self::statuses::Statuses;
use self::turns::Turns;
use self::watches::Troubles;
use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::process::Fatal;

/// The hub's side of Kubernetes, running.
#[derive(Debug)]
pub(super) struct Kubernetes {
    board: Board,
    troubles: Troubles,
    figures: Figures,
    _watches: JoinSet<()>,
}

impl Kubernetes {
    /// Starts watches, and has the hub answer nodes. Whether the API server can be reached shows later, and is tried until it can.
    pub(super) async fn start(
        access: &KubernetesAccess,
        hub: HubBuilder,
    ) -> Result<(HubBuilder, Arc<Self>), Fatal> {
        let client = access.client().await?;
        let board = Board::new(Bounds::default());
        let (troubles, figures) = (Troubles::default(), Figures::default());
        let service = NodeService {
            client: client.clone(),
            board: board.clone(),
            turns: Turns::new(),
            figures: figures.clone(),
            statuses: Statuses::default(),
            events: Events::new(),
        };
        let name = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
        let hub = hub.service(name, OnlyNodes, service.clone());
        let watches = watches::start(&client, &board, &troubles, service);
        Ok((hub, Arc::new(Self { board, troubles, figures, _watches: watches })))
    }

    /// Ends what nodes listen to, now and later, so that the hub can drain.
    pub(super) fn stop(&self) {
        self.board.stop();
    }
}
