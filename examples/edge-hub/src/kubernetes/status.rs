//! Status page and metrics of the hub's Kubernetes side.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};

use super::Kubernetes;
use super::core::{Core, Kind, Phase};
use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::{Fetched, NodeStatus};
use edge_csi_common::status::Fact;

/// The published and the waiting pod volumes of each Node that has ever reported, for the lifetime of the hub.
#[derive(Debug, Clone, Default)]
pub(super) struct StatusCounts(Arc<Mutex<HashMap<NodeName, (usize, usize)>>>);

impl StatusCounts {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, (usize, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a reported status.
    pub(super) fn reported(&self, node: &NodeName, status: &NodeStatus, written: bool) {
        let result = if written { "written" } else { "failed" };
        counter!("edge_csi_kubernetes_statuses_total", "result" => result).increment(1);
        // Only peers with a Node are remembered, which bounds the memory.
        if written {
            let published = status.pod_volumes.iter().filter(|volume| volume.published).count();
            let waiting = status.pod_volumes.len() - published;
            self.nodes().insert(node.clone(), (published, waiting));
        }
    }

    /// Counts a request of a node for a secret or a token.
    pub(super) fn fetched(&self, kind: &'static str, fetched: Fetched) {
        let result = match fetched {
            Fetched::Found => "found",
            Fetched::NotFound => "not_found",
            Fetched::Forbidden => "forbidden",
            Fetched::Unavailable | Fetched::Unspecified => "unavailable",
        };
        counter!("edge_csi_kubernetes_fetched_total", "what" => kind, "result" => result).increment(1);
    }

    /// Returns the published and the waiting pod volumes of all Nodes.
    fn pod_volumes(&self) -> (usize, usize) {
        self.nodes().values().fold((0, 0), |sum, node| (sum.0 + node.0, sum.1 + node.1))
    }
}

impl Kubernetes {
    /// Checks that all kinds are listed, for `/readyz`.
    ///
    /// # Errors
    /// Returns the first kind without a list, and the error of its watch.
    pub(in super::super) fn ready(&self) -> Result<(), String> {
        let Self { feed, errors, .. } = self;
        if feed.read(Core::is_synced) {
            return Ok(());
        }
        let missing =
            Kind::ALL.into_iter().find(|kind| feed.read(|core| core.phase(*kind)) == Phase::Unlisted);
        let resource = missing.map_or("objects", Kind::resource);
        let error = missing.and_then(|kind| errors.of(kind));
        Err(match error {
            Some(error) => format!("kubernetes: {resource} are not listed yet: {error}"),
            None => format!("kubernetes: {resource} are not listed yet"),
        })
    }

    /// Returns the rows of the status page.
    pub(in super::super) fn facts(&self) -> Vec<Fact> {
        let Self { feed, errors, counts, .. } = self;
        let state = self.ready().err().unwrap_or_else(|| "all objects are listed".to_owned());
        let mut facts = vec![
            Fact::new("kubernetes", state),
            Fact::new("kubernetes: nodes that watch", feed.read(Core::present)),
        ];
        let (published, waiting) = counts.pod_volumes();
        facts.push(Fact::new("kubernetes: pod volumes published", published));
        facts.push(Fact::new("kubernetes: pod volumes that wait", waiting));
        facts.extend(Kind::ALL.into_iter().map(|kind| {
            let (count, phase) = feed.read(|core| (core.count(kind), core.phase(kind)));
            let state = match (errors.of(kind), phase) {
                (Some(error), _) => format!("{count}; {error}"),
                (None, Phase::Relisting) => format!("{count}; being listed again"),
                (None, _) => count.to_string(),
            };
            Fact::new(format!("kubernetes: {}", kind.resource()), state)
        }));
        let nodes = errors.of_nodes().unwrap_or_else(|| "watched".to_owned());
        facts.push(Fact::new("kubernetes: nodes", nodes));
        facts
    }

    /// Sets the gauges and counters, for `/metrics`.
    pub(in super::super) fn publish_metrics(&self) {
        let Self { feed, errors, counts, .. } = self;
        let watch_up = |resource: &'static str, up: bool| {
            gauge!("edge_csi_kubernetes_watch_up", "resource" => resource).set(f64::from(u8::from(up)));
        };
        watch_up("nodes", errors.of_nodes().is_none());
        for kind in Kind::ALL {
            let (count, phase) = feed.read(|core| (core.count(kind), core.phase(kind)));
            let up = phase == Phase::Current && errors.of(kind).is_none();
            gauge!("edge_csi_kubernetes_objects", "resource" => kind.resource()).set(count as f64);
            watch_up(kind.resource(), up);
        }
        gauge!("edge_csi_kubernetes_nodes").set(feed.read(Core::present) as f64);
        counter!("edge_csi_kubernetes_oversized_objects_total").absolute(feed.read(Core::oversized));
        let (published, waiting) = counts.pod_volumes();
        gauge!("edge_csi_kubernetes_pod_volumes", "state" => "published").set(published as f64);
        gauge!("edge_csi_kubernetes_pod_volumes", "state" => "waiting").set(waiting as f64);
    }
}
