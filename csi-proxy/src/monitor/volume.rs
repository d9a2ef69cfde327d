//! The state of one volume, as far as its orchestrator knows.

use std::collections::BTreeMap;
use std::time::Instant;

use csi_proto::Code;

use super::request::{Operation, Request};
use crate::call::Digest;

/// The maximum number of recorded attachments per volume. Beyond this number all attachments are unknown.
const MAX_ATTACHMENTS: usize = 64;

/// What a driver has reported about itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// The capabilities of the driver on its node; `None` if unknown.
    pub(super) capabilities: Option<Capabilities>,
    /// The node id of the driver; `None` if unknown.
    pub(super) node: Option<Box<str>>,
}

/// The capabilities of a driver on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Capabilities {
    pub(super) staging: bool,
    pub(super) expansion: bool,
}

/// The state of an object of a volume: an attachment, the staging, or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    Absent,
    /// A setup call may still be running, and none has succeeded.
    SettingUp(Digest),
    Present(Digest),
    /// A teardown call has not succeeded.
    TearingDown,
}

impl State {
    /// The state after a setup call with this code.
    fn after_setup(self, code: Code, digest: Digest) -> Self {
        match self {
            _ if code == Code::OK => Self::Present(digest),
            Self::Absent if code.may_be_running() => Self::SettingUp(digest),
            Self::SettingUp(_) if !code.may_be_running() => Self::Absent,
            other => other,
        }
    }

    /// The state after a teardown call with this code.
    const fn after_teardown(code: Code) -> Self {
        match code {
            Code::OK => Self::Absent,
            // The orchestrator must determine the state by means that are not observed here.
            Code::NOT_FOUND | Code::UNIMPLEMENTED => Self::Unknown,
            _ => Self::TearingDown,
        }
    }

    /// Whether the object exists or may exist.
    pub(super) const fn is_used(self) -> bool {
        matches!(self, Self::SettingUp(_) | Self::Present(_) | Self::TearingDown)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) staging: State,
    /// The staging path, if staged or possibly staged; otherwise empty.
    pub(super) staging_path: Box<str>,
    /// The state of each target; a missing target is absent or unknown.
    targets: BTreeMap<Box<str>, State>,
    /// The state of each attachment by node; a missing node is unknown.
    attachments: BTreeMap<Box<str>, State>,
    /// When the driver's controller asked for an expansion on the node, which has not been tried since.
    pub(super) expansion_due: Option<Instant>,
}

impl Volume {
    /// Creates the state of a volume without calls.
    pub(super) fn new(complete_history: bool) -> Self {
        let staging = if complete_history { State::Absent } else { State::Unknown };
        Self {
            staging,
            staging_path: Box::default(),
            targets: BTreeMap::new(),
            attachments: BTreeMap::new(),
            expansion_due: None,
        }
    }

    pub(super) fn attachment(&self, node: &str) -> State {
        self.attachments.get(node).copied().unwrap_or(State::Unknown)
    }

    pub(super) fn target(&self, path: &str) -> State {
        self.targets.get(path).copied().unwrap_or(State::Absent)
    }

    pub(super) fn is_published(&self, target: &str) -> bool {
        matches!(self.target(target), State::Present(_))
    }

    /// A target that is or may be in use.
    pub(super) fn any_target(&self) -> Option<(&str, State)> {
        self.targets.first_key_value().map(|(path, state)| (&**path, *state))
    }

    /// Whether the volume has or may have this path.
    pub(super) fn has_path(&self, path: &str) -> bool {
        self.paths().any(|known| known == path)
    }

    /// The paths that the volume has or may have.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let staging = self.staging.is_used().then_some(&self.staging_path);
        staging.into_iter().chain(self.targets.keys()).map(|path| &**path)
    }

    /// The approximate memory use in bytes.
    pub(super) fn bytes(&self) -> usize {
        let attachments: usize = self.attachments.keys().map(|node| 128 + node.len()).sum();
        // Each path is indexed too.
        512 + attachments + self.paths().map(|path| 2 * (128 + path.len())).sum::<usize>()
    }

    /// The driver's controller has expanded the volume, and asks for an expansion on the node. A volume that is not in use
    /// here may be expanded elsewhere.
    pub(super) fn expect_expansion(&mut self, now: Instant, driver: &Facts) {
        let is_in_use = matches!(self.staging, State::Present(_)) || !self.targets.is_empty();
        if is_in_use && driver.capabilities.is_none_or(|capabilities| capabilities.expansion) {
            self.expansion_due = self.expansion_due.or(Some(now));
        }
    }

    /// Applies the result of a request.
    pub(super) fn apply(&mut self, request: &Request, code: Code, driver: &Facts) {
        let digest = request.digest;
        match &request.operation {
            Operation::Attach { node } => {
                self.set_attachment(node, self.attachment(node).after_setup(code, digest));
            }
            Operation::Detach { node } => {
                let nodes: Vec<Box<str>> = match node {
                    Some(node) => vec![node.clone()],
                    None => self.attachments.keys().chain(&driver.node).cloned().collect(),
                };
                nodes.iter().for_each(|node| self.set_attachment(node, State::after_teardown(code)));
            }
            Operation::Stage { path } => {
                let staging = self.staging.after_setup(code, digest);
                if staging != self.staging {
                    self.set_staging(path, staging);
                }
            }
            Operation::Unstage { path } => self.set_staging(path, State::after_teardown(code)),
            Operation::Publish { target, .. } => {
                self.set_target(target, self.target(target).after_setup(code, digest));
            }
            Operation::Unpublish { target } => self.set_target(target, State::after_teardown(code)),
            Operation::Expand => self.expansion_due = None,
            Operation::Delete | Operation::Other => {}
        }
        if !self.staging.is_used() && self.targets.is_empty() {
            self.expansion_due = None;
        }
    }

    /// Marks the object of a request as unknown: the request overlapped with another one on the same object.
    pub(super) fn mark_unknown(&mut self, request: &Request) {
        match &request.operation {
            Operation::Attach { .. } | Operation::Detach { .. } => self.attachments.clear(),
            Operation::Stage { path } | Operation::Unstage { path } => self.set_staging(path, State::Unknown),
            Operation::Publish { target, .. } | Operation::Unpublish { target } => {
                self.set_target(target, State::Unknown);
            }
            Operation::Expand | Operation::Delete | Operation::Other => {}
        }
    }

    fn set_attachment(&mut self, node: &str, state: State) {
        if state == State::Unknown {
            self.attachments.remove(node);
        } else if self.attachments.len() >= MAX_ATTACHMENTS && !self.attachments.contains_key(node) {
            self.attachments.clear();
        } else {
            self.attachments.insert(node.into(), state);
        }
    }

    fn set_staging(&mut self, path: &str, state: State) {
        self.staging = state;
        self.staging_path = if state.is_used() { path.into() } else { Box::default() };
    }

    fn set_target(&mut self, path: &str, state: State) {
        if state.is_used() {
            self.targets.insert(path.into(), state);
        } else {
            self.targets.remove(path);
        }
    }
}
