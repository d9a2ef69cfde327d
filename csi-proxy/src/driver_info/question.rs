//! Which questions are answered locally.

use csi_proto::Method;

/// A question that never travels with its asker waiting. In the order in which a round asks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
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

/// The questions and their methods.
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
    /// The question that a method path asks, if it is one of these.
    #[must_use]
    pub fn from_path(path: &str) -> Option<Self> {
        let asked = Method::from_path(path)?;
        QUESTIONS.into_iter().find(|(_, method)| *method == asked).map(|(question, _)| question)
    }

    /// The path of its method.
    #[must_use]
    pub fn path(self) -> &'static str {
        // In range: the table has a row for each, in their order.
        QUESTIONS[self as usize].1.path()
    }
}
