//! In the place of the volume plugin, where the feature `kubernetes` is off.

use std::sync::Arc;

use csi_proxy::NodeSegment;
use edge_transport::Peer;
use volume_manager::driver::Secrets;

use super::essential::Essential;
use super::store::AgentStore;
use super::volumes::{NodeVolumes, VolumesOptions};
use edge_csi_common::process::Fatal;
use edge_csi_common::status::Fact;

/// There are none.
#[derive(Debug, Clone, clap::Args)]
pub struct KubernetesOptions {}

/// There is none.
pub(super) enum NodePlugin {}

/// What there would be to see.
#[derive(Debug, Clone)]
pub(super) enum PluginView {}

impl PluginView {
    pub(super) fn facts(&self) -> Vec<Fact> {
        match *self {}
    }

    pub(super) fn publish_metrics(&self) {
        match *self {}
    }
}

impl NodePlugin {
    #[allow(clippy::unnecessary_wraps, reason = "as the plugin has it")]
    pub(super) fn open(
        _: &KubernetesOptions,
        _: &VolumesOptions,
        _: Option<&AgentStore>,
    ) -> Result<Option<Self>, Fatal> {
        Ok(None)
    }

    pub(super) fn secrets(&self) -> Arc<dyn Secrets> {
        match *self {}
    }

    pub(super) fn view(&self) -> PluginView {
        match *self {}
    }

    pub(super) fn start(self, _: Peer, _: NodeVolumes, _: Option<NodeSegment>, _: &mut Essential) {
        match self {}
    }
}
