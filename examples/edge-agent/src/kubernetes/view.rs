//! What others see of the plugin without asking it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use edge_csi_common::status::Fact;

/// How the plugin is. Clones are the same.
#[derive(Debug, Clone)]
pub(in super::super) struct PluginView(Arc<Mutex<Shown>>);

#[derive(Debug)]
struct Shown {
    objects: usize,
    pod_volumes: usize,
    /// Why the hub is not followed; empty if it is.
    away: String,
}

impl PluginView {
    pub(super) fn new(objects: usize) -> Self {
        let away = "the agent has just started".to_owned();
        Self(Arc::new(Mutex::new(Shown { objects, pod_volumes: 0, away })))
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        // Nothing is half written here.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hub is followed, or is not, and why.
    pub(super) fn follows(&self, followed: Result<(), &str>) {
        self.shown().away = followed.err().map(str::to_owned).unwrap_or_default();
    }

    /// So much is known.
    pub(super) fn knows(&self, objects: usize, pod_volumes: usize) {
        let mut shown = self.shown();
        (shown.objects, shown.pod_volumes) = (objects, pod_volumes);
    }

    /// For the page.
    pub(in super::super) fn facts(&self) -> Vec<Fact> {
        let shown = self.shown();
        let hub = if shown.away.is_empty() { "followed" } else { &shown.away };
        vec![
            Fact::new("pods of this node", hub),
            Fact::new("objects of Kubernetes", shown.objects),
            Fact::new("volumes of pods", shown.pod_volumes),
        ]
    }

    /// Sets the gauges.
    pub(in super::super) fn publish_metrics(&self) {
        let shown = self.shown();
        metrics::gauge!("edge_csi_kubernetes_followed").set(f64::from(u8::from(shown.away.is_empty())));
        metrics::gauge!("edge_csi_kubernetes_objects").set(shown.objects as f64);
        metrics::gauge!("edge_csi_pod_volumes").set(shown.pod_volumes as f64);
    }
}
