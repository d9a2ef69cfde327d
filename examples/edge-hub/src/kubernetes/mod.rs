//! `--kubeconfig`: the hub watches the API server, and sends each node its objects.
//!
//! A pure [`core`] holds the objects and the state of each node's feed. The [`watches`] of the API server update
//! it, and nodes call the hub's own [`service`]. For the nodes, [`report`] writes to the API server and [`secret`]
//! reads from it. A node gets its own objects only, by the name that the hub has authenticated. With `--node-signer`, nodes
//! renew their [`certificates`].

mod api_error;
mod certificates;
mod core;
mod events;
mod node_feed;
mod node_name;
mod node_statuses;
mod quantity;
mod records;
mod report;
mod request_limits;
mod secret;
mod service;
mod status;
mod warn_limits;
mod watches;

use std::path::PathBuf;
use std::sync::Arc;

use edge_transport::ServiceName;
use edge_transport::hub::{HubBuilder, Rules};
use tokio::task::JoinSet;

pub use self::certificates::{InvalidSigner, NodeSigner};
use self::core::Bounds;
use self::events::Events;
use self::node_feed::NodeFeed;
use self::node_statuses::NodeStatuses;
use self::request_limits::RequestLimits;
use self::service::NodeService;
use self::status::StatusCounts;
use self::warn_limits::WarnLimits;
use self::watches::WatchErrors;
pub use edge_csi_common::kubernetes::KubernetesAccess;
use edge_csi_common::kubernetes::SERVICE;
use edge_csi_common::process::Fatal;

/// The running Kubernetes part of the hub.
#[derive(Debug)]
pub(super) struct Kubernetes {
    feed: NodeFeed,
    errors: WatchErrors,
    counts: StatusCounts,
    _watches: JoinSet<()>,
}

impl Kubernetes {
    /// Starts the watches, and adds the service for nodes to the hub. The watches retry until the API server is
    /// reachable. With a signer and the authorities of `--client-ca`, nodes can renew their certificates.
    pub(super) async fn start(
        access: &KubernetesAccess,
        signer: Option<(NodeSigner, PathBuf)>,
        hub: HubBuilder,
    ) -> Result<(HubBuilder, Arc<Self>), Fatal> {
        let client = access.client().await?;
        let feed = NodeFeed::new(Bounds::default());
        let (errors, counts) = (WatchErrors::default(), StatusCounts::default());
        let warnings = WarnLimits::default();
        let service = NodeService {
            client: client.clone(),
            feed: feed.clone(),
            limits: RequestLimits::new(),
            counts: counts.clone(),
            statuses: NodeStatuses::default(),
            events: Events::new(),
            warnings: warnings.clone(),
        };
        let name = ServiceName::new(SERVICE).map_err(Fatal::runtime)?;
        let mut hub = hub.service(name, Rules::nodes_only(), service.clone());
        if let Some((signer, authorities)) = signer {
            hub = certificates::serve(hub, client.clone(), signer, authorities, warnings)?;
        }
        let watches = watches::start(&client, &feed, &errors, service);
        Ok((hub, Arc::new(Self { feed, errors, counts, _watches: watches })))
    }

    /// Ends all present and future subscriptions, so that the hub can drain.
    pub(super) fn stop(&self) {
        self.feed.stop();
    }
}
