//! The state of the plugin for the status page and the metrics.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use edge_csi_common::status::Fact;

/// A view of the plugin's state. Clones share the state.
#[derive(Debug, Clone)]
pub(in super::super) struct PluginView(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    objects: usize,
    pod_volumes: usize,
    /// Why the watch of the node's objects has ended; empty while it runs.
    watch_error: String,
}

impl PluginView {
    pub(super) fn new(objects: usize) -> Self {
        let watch_error = "the agent has just started".to_owned();
        Self(Arc::new(Mutex::new(State { objects, pod_volumes: 0, watch_error })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic leaves no partial change.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records whether the watch of the node's objects runs, or why it has ended.
    pub(super) fn set_watch(&self, watch: Result<(), &str>) {
        self.state().watch_error = watch.err().map(str::to_owned).unwrap_or_default();
    }

    /// Records the numbers of objects and of pod volumes.
    pub(super) fn set_counts(&self, objects: usize, pod_volumes: usize) {
        let mut state = self.state();
        (state.objects, state.pod_volumes) = (objects, pod_volumes);
    }

    /// Returns the rows of the status page.
    pub(in super::super) fn facts(&self) -> Vec<Fact> {
        let state = self.state();
        let hub = if state.watch_error.is_empty() { "watched" } else { &state.watch_error };
        vec![
            Fact::new("pods of this node", hub),
            Fact::new("Kubernetes objects", state.objects),
            Fact::new("pod volumes", state.pod_volumes),
        ]
    }

    /// Sets the plugin's gauges.
    pub(in super::super) fn publish_metrics(&self) {
        let state = self.state();
        metrics::gauge!("edge_csi_kubernetes_followed")
            .set(f64::from(u8::from(state.watch_error.is_empty())));
        metrics::gauge!("edge_csi_kubernetes_objects").set(state.objects as f64);
        metrics::gauge!("edge_csi_pod_volumes").set(state.pod_volumes as f64);
    }
}
