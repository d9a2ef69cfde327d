//! The usual relay of a proxy: with retries, over the sessions of a peer.

use std::sync::Arc;

use csi_proto::DriverName;
use edge_transport::HubSet;
use tokio::task::JoinSet;

use super::{NodeWatch, SessionRelay};
use crate::relay::{DEFAULT_RECONNECT_GRACE, Reachability, RetryRelay, TermError, TermSource};

impl RetryRelay<SessionRelay> {
    /// Relays the calls of one driver over the sessions at these hubs, or at the hub of one peer: each call goes to the hub
    /// at which its node is. Raises the term of the driver's proxy, and watches in
    /// a task which nodes are connected; the task ends with the last clone, and when the peers are closed. A call waits up to
    /// [`DEFAULT_RECONNECT_GRACE`] for a node or hub that was lost.
    ///
    /// Each hub must report presence (`Hub::builder().presence()`), and its policy must allow this peer to watch. Otherwise no
    /// node is known to be connected there, and each call fails with the cause.
    ///
    /// ```no_run
    /// use csi_proxy::{ClockTerms, Endpoint, RetryRelay, Router};
    ///
    /// # async fn serve(peer: edge_transport::peer::PeerBuilder) -> Result<(), Box<dyn std::error::Error>> {
    /// let driver = "csi-hostpath".parse()?;
    /// let hubs = peer.start_at_each_hub()?;
    /// let relay = RetryRelay::over(hubs, &driver, ClockTerms::default()).await?;
    /// let endpoint = Endpoint::new(driver, Router::fixed("edge-1".parse()?), relay);
    /// let serving = endpoint.serve("unix:///csi/csi.sock".parse()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the term cannot be raised.
    pub async fn over(
        hubs: impl Into<HubSet>,
        driver: &DriverName,
        terms: impl TermSource,
    ) -> Result<Self, TermError> {
        let reachability = Reachability::new(DEFAULT_RECONNECT_GRACE);
        let mut tasks = JoinSet::new();
        let relay = match NodeWatch::new(hubs, driver, reachability.clone()) {
            Ok(mut nodes) => {
                let relay = nodes.relay();
                tasks.spawn(async move { while nodes.next().await.is_some() {} });
                relay
            }
            // Never: a driver's name is a valid part of a service's name.
            Err(_) => SessionRelay::at_hub_of_node(Arc::default(), reachability.clone()),
        };
        Self::start_with(relay, reachability, terms, tasks).await
    }
}
