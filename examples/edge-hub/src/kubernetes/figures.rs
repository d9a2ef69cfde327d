//! What is told over HTTP about the hub's side of Kubernetes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use metrics::{counter, gauge};

use super::Kubernetes;
use super::core::{Core, Kind, Phase};
use super::node_name::NodeName;
use edge_csi_common::kubernetes::message::{Fetched, NodeStatus};
use edge_csi_common::status::Fact;

/// How many pod volumes are published and how many wait at each Node that ever told of them, for as long as the hub lives.
#[derive(Debug, Clone, Default)]
pub(super) struct Figures(Arc<Mutex<HashMap<NodeName, (usize, usize)>>>);

impl Figures {
    fn nodes(&self) -> MutexGuard<'_, HashMap<NodeName, (usize, usize)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A node has told its status.
    pub(super) fn reported(&self, node: &NodeName, status: &NodeStatus, written: bool) {
        let result = if written { "written" } else { "failed" };
        counter!("edge_csi_kubernetes_statuses_total", "result" => result).increment(1);
        // Only a Node that is one is remembered.
        if written {
            let published = status.pod_volumes.iter().filter(|volume| volume.published).count();
            let waiting = status.pod_volumes.len() - published;
            self.nodes().insert(node.clone(), (published, waiting));
        }
    }

    /// A node has asked for something secret.
    pub(super) fn fetched(&self, what: &'static str, fetched: Fetched) {
        let result = match fetched {
            Fetched::Found => "found",
            Fetched::NotFound => "not_found",
            Fetched::Forbidden => "forbidden",
            Fetched::Unavailable | Fetched::Unspecified => "unavailable",
        };
        counter!("edge_csi_kubernetes_fetched_total", "what" => what, "result" => result).increment(1);
    }

    /// The same of all together.
    fn pod_volumes(&self) -> (usize, usize) {
        self.nodes().values().fold((0, 0), |sum, node| (sum.0 + node.0, sum.1 + node.1))
    }
}

impl Kubernetes {
    /// For `/readyz`.
    ///
    /// # Errors
    /// Which list is missing, and why.
    pub(in super::super) fn ready(&self) -> Result<(), String> {
        let Self { board, troubles, .. } = self;
        if board.look(Core::is_synced) {
            return Ok(());
        }
        let missing =
            Kind::ALL.into_iter().find(|kind| board.look(|core| core.phase(*kind)) == Phase::Unlisted);
        let resource = missing.map_or("objects", Kind::resource);
        let trouble = missing.and_then(|kind| troubles.of(kind));
        Err(match trouble {
            Some(trouble) => format!("kubernetes: {resource} are not listed yet: {trouble}"),
            None => format!("kubernetes: {resource} are not listed yet"),
        })
    }

    /// For the page.
    pub(in super::super) fn facts(&self) -> Vec<Fact> {
        let Self { board, troubles, figures, .. } = self;
        let state = self.ready().err().unwrap_or_else(|| "all objects are listed".to_owned());
        let mut facts = vec![
            Fact::new("kubernetes", state),
            Fact::new("kubernetes: nodes that watch", board.look(Core::present)),
        ];
        let (published, waiting) = figures.pod_volumes();
        facts.push(Fact::new("kubernetes: pod volumes published", published));
        facts.push(Fact::new("kubernetes: pod volumes that wait", waiting));
        facts.extend(Kind::ALL.into_iter().map(|kind| {
            let (count, phase) = board.look(|core| (core.count(kind), core.phase(kind)));
            let state = match (troubles.of(kind), phase) {
                (Some(trouble), _) => format!("{count}; {trouble}"),
                (None, Phase::Again) => format!("{count}; being listed again"),
                (None, _) => count.to_string(),
            };
            Fact::new(format!("kubernetes: {}", kind.resource()), state)
        }));
        facts
    }

    /// For `/metrics`.
    pub(in super::super) fn publish_metrics(&self) {
        let Self { board, troubles, figures, .. } = self;
        for kind in Kind::ALL {
            let (count, phase) = board.look(|core| (core.count(kind), core.phase(kind)));
            let up = phase == Phase::Current && troubles.of(kind).is_none();
            gauge!("edge_csi_kubernetes_objects", "resource" => kind.resource()).set(count as f64);
            gauge!("edge_csi_kubernetes_watch_up", "resource" => kind.resource())
                .set(f64::from(u8::from(up)));
        }
        gauge!("edge_csi_kubernetes_nodes").set(board.look(Core::present) as f64);
        counter!("edge_csi_kubernetes_oversized_objects_total").absolute(board.look(Core::oversized));
        let (published, waiting) = figures.pod_volumes();
        gauge!("edge_csi_kubernetes_pod_volumes", "state" => "published").set(published as f64);
        gauge!("edge_csi_kubernetes_pod_volumes", "state" => "waiting").set(waiting as f64);
    }
}
