//! The status page of the hub.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use edge_transport::hub::Hub;
use edge_transport::reload::FileWatch;

#[cfg(feature = "kubernetes")]
use super::kubernetes::Kubernetes;
use super::presence_log::names;
use edge_csi_common::status::{Fact, Status};
use edge_csi_driver::InProcessStatus;

/// The maximum number of peers on the page; the count includes all peers.
const PEERS_SHOWN: usize = 200;

/// Returns an error if a listener has failed: peers that dial its address cannot connect.
fn check_listeners(failed: &[String]) -> Result<(), String> {
    match failed {
        [] => Ok(()),
        failed => Err(format!(
            "no longer accepts connections on {}; expected every --listen URL to accept: restart the hub, its log has the cause",
            failed.join(", ")
        )),
    }
}

/// The hub's page.
#[derive(Debug)]
pub(super) struct HubStatus {
    pub(super) hub: Hub,
    pub(super) files: Arc<FileWatch>,
    pub(super) drivers: InProcessStatus,
    /// Whether the hub drains, which means that it accepts no new links.
    pub(super) draining: Arc<AtomicBool>,
    #[cfg(feature = "kubernetes")]
    pub(super) kubernetes: Option<Arc<Kubernetes>>,
}

impl Status for HubStatus {
    fn name(&self) -> &'static str {
        "edge-hub"
    }

    fn ready(&self) -> Result<(), String> {
        if self.draining.load(Ordering::Relaxed) {
            return Err("draining: no new links, and peers are asked to leave for another hub".to_owned());
        }
        check_listeners(&self.hub.failed_listeners())?;
        if let Some(cause) = self.files.unusable() {
            return Err(format!("peers cannot be authenticated: {cause}"));
        }
        #[cfg(feature = "kubernetes")]
        if let Some(kubernetes) = &self.kubernetes {
            return kubernetes.ready();
        }
        Ok(())
    }

    fn facts(&self) -> Vec<Fact> {
        let stats = self.hub.stats();
        let failed = self.hub.failed_listeners();
        let mut facts: Vec<Fact> =
            failed.iter().map(|address| Fact::new("no longer listens on", address)).collect();
        let listening = self.hub.addresses().iter().filter(|address| !failed.contains(address));
        facts.extend(listening.map(|address| Fact::new("listens on", address)));
        let counts: [(&'static str, u64); 15] = [
            ("peers", stats.peers as u64),
            ("open calls", stats.open_calls as u64),
            ("bytes waiting", stats.queued_bytes as u64),
            ("calls", stats.calls),
            ("frames", stats.frames),
            ("calls to a peer that was offline", stats.offline),
            ("calls ended by a lost link", stats.link_lost),
            ("calls ended by a full queue", stats.overloaded),
            ("calls refused by the policy", stats.forbidden),
            ("frames with a false name", stats.spoofed),
            ("links refused: not authenticated", stats.unauthenticated),
            ("links refused or closed: another session of the peer", stats.fenced),
            ("links rejected while busy", stats.rejected),
            ("links that ended without a first byte", stats.silent),
            ("links that ended before their hello", stats.failed_handshakes),
        ];
        facts.extend(counts.map(|(name, value)| Fact::new(name, value)));
        #[cfg(feature = "kubernetes")]
        facts.extend(self.kubernetes.iter().flat_map(|kubernetes| kubernetes.facts()));
        facts.extend(self.drivers.facts());
        let mut peers = self.hub.peers();
        peers.sort_by(|one, other| one.peer.cmp(&other.peer));
        facts.extend(
            peers
                .iter()
                .take(PEERS_SHOWN)
                .map(|info| Fact::new(format!("peer {}", info.peer), names(&info.services))),
        );
        facts
    }

    fn publish_metrics(&self) {
        self.hub.stats().publish();
        self.files.publish(SystemTime::now());
        self.drivers.publish_metrics();
        #[cfg(feature = "kubernetes")]
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.publish_metrics();
        }
    }
}

#[cfg(test)]
mod tests {
    use edge_transport::link::{Incoming, LinkError, LinkKind, Listener, memory};

    use super::*;

    /// Fails at once, as a listener does when its socket is closed.
    struct FailingListener;

    #[async_trait::async_trait]
    impl Listener for FailingListener {
        async fn accept(&mut self) -> Result<Incoming, LinkError> {
            Err(LinkError::Lost)
        }

        fn kind(&self) -> LinkKind {
            LinkKind::WSS
        }

        fn local_address(&self) -> String {
            "wss://0.0.0.0:10000".to_owned()
        }
    }

    /// One failed listener of two makes the hub not ready, and the page names it.
    #[tokio::test]
    async fn failed_listener_makes_the_hub_not_ready() {
        let (works, _dialer) = memory::listen("works", 1 << 20);
        let builder = Hub::builder().listener(Box::new(works)).listener(Box::new(FailingListener));
        let status = HubStatus {
            hub: builder.start().unwrap(),
            files: Arc::new(FileWatch::new()),
            drivers: InProcessStatus::default(),
            draining: Arc::default(),
            #[cfg(feature = "kubernetes")]
            kubernetes: None,
        };
        assert_eq!(status.ready(), Ok(()), "the listener has not run yet");
        let failed = async {
            while status.hub.failed_listeners().is_empty() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), failed).await.unwrap();
        let error = status.ready().unwrap_err();
        assert!(error.contains("wss://0.0.0.0:10000") && !error.contains("memory:works"), "{error}");
        let page = format!("{:?}", status.facts());
        assert!(page.contains("no longer listens on") && page.contains("memory:works"), "{page}");
    }
    /// A Service must not send new links to a hub that drains.
    #[tokio::test]
    async fn draining_hub_is_not_ready() {
        let (listener, _dialer) = memory::listen("hub", 1 << 20);
        let status = HubStatus {
            hub: Hub::builder().listener(Box::new(listener)).start().unwrap(),
            files: Arc::new(FileWatch::new()),
            drivers: InProcessStatus::default(),
            draining: Arc::default(),
            #[cfg(feature = "kubernetes")]
            kubernetes: None,
        };
        assert_eq!(status.ready(), Ok(()));
        status.draining.store(true, Ordering::Relaxed);
        assert!(status.ready().unwrap_err().starts_with("draining"));
    }
}
