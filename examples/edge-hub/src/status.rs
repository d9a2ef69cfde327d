//! The status page of the hub.

use std::sync::Arc;
use std::time::SystemTime;

use edge_transport::hub::Hub;
use edge_transport::reload::FileWatch;

#[cfg(feature = "kubernetes")]
use super::kubernetes::Kubernetes;
use edge_csi_common::status::{Fact, Status};

/// The maximum number of peers on the page; the count includes all peers.
const PEERS_SHOWN: usize = 200;

/// The hub's page.
#[derive(Debug)]
pub(super) struct HubStatus {
    pub(super) hub: Hub,
    pub(super) files: Arc<FileWatch>,
    #[cfg(feature = "kubernetes")]
    pub(super) kubernetes: Option<Arc<Kubernetes>>,
}

impl Status for HubStatus {
    fn name(&self) -> &'static str {
        "edge-hub"
    }

    fn ready(&self) -> Result<(), String> {
        #[cfg(feature = "kubernetes")]
        if let Some(kubernetes) = &self.kubernetes {
            return kubernetes.ready();
        }
        // A hub without Kubernetes is ready as soon as it listens.
        Ok(())
    }

    fn facts(&self) -> Vec<Fact> {
        let stats = self.hub.stats();
        let mut facts: Vec<Fact> =
            self.hub.addresses().iter().map(|address| Fact::new("listens on", address)).collect();
        let counts: [(&'static str, u64); 14] = [
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
            ("links that ended before their hello", stats.failed_handshakes),
        ];
        facts.extend(counts.map(|(name, value)| Fact::new(name, value)));
        #[cfg(feature = "kubernetes")]
        facts.extend(self.kubernetes.iter().flat_map(|kubernetes| kubernetes.facts()));
        let mut peers = self.hub.peers();
        peers.sort_by(|one, other| one.peer.cmp(&other.peer));
        facts.extend(peers.iter().take(PEERS_SHOWN).map(|info| {
            let services = info.services.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            Fact::new(format!("peer {}", info.peer), services)
        }));
        facts
    }

    fn publish_metrics(&self) {
        self.hub.stats().publish();
        self.files.publish(SystemTime::now());
        #[cfg(feature = "kubernetes")]
        if let Some(kubernetes) = &self.kubernetes {
            kubernetes.publish_metrics();
        }
    }
}
