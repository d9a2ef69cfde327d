//! Which questions are answered locally.

use csi_proto::Method;

/// A question that never travels with its asker waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(clippy::exhaustive_enums, reason = "the spec's start-up questions, matched by the state machine")]
pub enum Question {
    /// `Identity/GetPluginInfo`.
    PluginInfo,
    /// `Identity/GetPluginCapabilities`.
    PluginCapabilities,
    /// `Controller/ControllerGetCapabilities`.
    ControllerCapabilities,
    /// `GroupController/GroupControllerGetCapabilities`.
    GroupControllerCapabilities,
    /// `Node/NodeGetCapabilities`. An external-resizer asks it when it starts, if volumes cannot be grown by the controller.
    NodeCapabilities,
    /// `Node/NodeGetInfo`. Only where an endpoint stands for one node: a provisioner with `--node-deployment` asks it when it
    /// starts.
    NodeInfo,
    /// `Identity/Probe`.
    Probe,
}

impl Question {
    /// The question that a method path asks, if it is one of these.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        match Method::from_path(path)? {
            Method::GetPluginInfo => Some(Self::PluginInfo),
            Method::GetPluginCapabilities => Some(Self::PluginCapabilities),
            Method::ControllerGetCapabilities => Some(Self::ControllerCapabilities),
            Method::GroupControllerGetCapabilities => Some(Self::GroupControllerCapabilities),
            Method::NodeGetCapabilities => Some(Self::NodeCapabilities),
            Method::NodeGetInfo => Some(Self::NodeInfo),
            Method::Probe => Some(Self::Probe),
            _ => None,
        }
    }

    /// The path of its method.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Self::PluginInfo => Method::GetPluginInfo,
            Self::PluginCapabilities => Method::GetPluginCapabilities,
            Self::ControllerCapabilities => Method::ControllerGetCapabilities,
            Self::GroupControllerCapabilities => Method::GroupControllerGetCapabilities,
            Self::NodeCapabilities => Method::NodeGetCapabilities,
            Self::NodeInfo => Method::NodeGetInfo,
            Self::Probe => Method::Probe,
        }
        .path()
    }
}
