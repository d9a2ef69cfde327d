//! The usual relay of a proxy: with retries, over the sessions of a peer.

use csi_proto::DriverName;
use edge_transport::Peer;
use tokio::task::JoinSet;

use super::{NodeWatch, SessionRelay};
use crate::relay::{DEFAULT_RECONNECT_GRACE, Reachability, RetryRelay, TermError, TermSource};

impl RetryRelay<SessionRelay> {
    /// Relays the calls of one driver over the sessions of this peer. Raises the term of the driver's proxy, and watches in
    /// a task which nodes are connected; the task ends with the last clone, and when the peer is closed. A call waits up to
    /// [`DEFAULT_RECONNECT_GRACE`] for a node or hub that was lost.
    ///
    /// The hub must report presence (`Hub::builder().presence()`), and its policy must allow this peer to watch. Otherwise no
    /// node is known to be connected, and each call fails with the cause.
    ///
    /// ```no_run
    /// use csi_proxy::{ClockTerms, Endpoint, RetryRelay, Router};
    ///
    /// # async fn serve(peer: edge_transport::Peer) -> Result<(), Box<dyn std::error::Error>> {
    /// let driver = "csi-hostpath".parse()?;
    /// let relay = RetryRelay::over(peer, &driver, ClockTerms::default()).await?;
    /// let endpoint = Endpoint::new(driver, Router::fixed("edge-1".parse()?), relay);
    /// let serving = endpoint.serve("unix:///csi/csi.sock".parse()?).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the term cannot be raised.
    pub async fn over(peer: Peer, driver: &DriverName, terms: impl TermSource) -> Result<Self, TermError> {
        let reachability = Reachability::new(DEFAULT_RECONNECT_GRACE);
        // Never fails: a driver's name is a valid part of a service's name.
        let mut tasks = JoinSet::new();
        if let Ok(mut nodes) = NodeWatch::new(peer.clone(), driver, reachability.clone()) {
            tasks.spawn(async move { while nodes.next().await.is_some() {} });
        }
        Self::start_with(SessionRelay::new(peer), reachability, terms, tasks).await
    }
}
