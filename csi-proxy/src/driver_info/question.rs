//! The start-up calls that are answered locally.

use csi_proto::Method;

/// A start-up call that is never relayed while its caller waits. The variants are in the order of a refresh round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Question {
    /// `Identity/GetPluginInfo`.
    PluginInfo,
    /// `Identity/GetPluginCapabilities`.
    PluginCapabilities,
    /// `Controller/ControllerGetCapabilities`.
    ControllerCapabilities,
    /// `GroupController/GroupControllerGetCapabilities`.
    GroupControllerCapabilities,
    /// `Node/NodeGetCapabilities`. external-resizer calls it at its start, if the controller cannot expand volumes.
    NodeCapabilities,
    /// `Node/NodeGetInfo`. Answered only by an endpoint of one node: a provisioner with `--node-deployment` calls
    /// it at its start.
    NodeInfo,
    /// `Identity/Probe`.
    Probe,
}

/// The start-up calls and their methods.
pub(super) const QUESTIONS: [(Question, Method); 7] = [
    (Question::PluginInfo, Method::GetPluginInfo),
    (Question::PluginCapabilities, Method::GetPluginCapabilities),
    (Question::ControllerCapabilities, Method::ControllerGetCapabilities),
    (Question::GroupControllerCapabilities, Method::GroupControllerGetCapabilities),
    (Question::NodeCapabilities, Method::NodeGetCapabilities),
    (Question::NodeInfo, Method::NodeGetInfo),
    (Question::Probe, Method::Probe),
];

impl Question {
    /// The start-up call with this method path, if any.
    pub(crate) fn from_path(path: &str) -> Option<Self> {
        let asked = Method::from_path(path)?;
        QUESTIONS.into_iter().find(|(_, method)| *method == asked).map(|(question, _)| question)
    }

    /// The method path of this call.
    pub(crate) fn path(self) -> &'static str {
        // In range: the table has a row for each variant, in order.
        QUESTIONS[self as usize].1.path()
    }
}
