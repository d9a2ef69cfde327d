//! How it stands with one volume, as far as its orchestrator knows.

use std::collections::BTreeMap;

use csi_proto::Code;

use super::request::{Deed, Request};
use crate::dispatcher::operation::Digest;

/// Most nodes whose attachments are known of one volume. Of more, nothing is.
const MAX_ATTACHMENTS: usize = 64;

/// What is known of a driver, by its own word.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Whether it stages, and whether it expands on the node; none before it was asked.
    pub(super) offers: Option<Offers>,
    /// What it calls its node.
    pub(super) node: Option<Box<str>>,
}

/// What a driver offers on its node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Offers {
    pub(super) staging: bool,
    pub(super) expansion: bool,
}

/// How far a part of a volume is: its attachment to a node, its staging, or a target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Unknown,
    Absent,
    /// A call upward may still be running, and none has succeeded.
    Rising(Digest),
    Present(Digest),
    /// A call downward has not succeeded.
    Falling,
}

impl State {
    /// What a call upward leaves behind that ended with this code.
    fn risen(self, code: Code, digest: Digest) -> Self {
        match self {
            _ if code == Code::OK => Self::Present(digest),
            Self::Absent if code.may_be_running() => Self::Rising(digest),
            Self::Rising(_) if !code.may_be_running() => Self::Absent,
            other => other,
        }
    }

    /// What a call downward leaves behind that ended with this code.
    const fn fallen(code: Code) -> Self {
        match code {
            Code::OK => Self::Absent,
            // The orchestrator has to find out what that means, in ways that are not seen here.
            Code::NOT_FOUND | Code::UNIMPLEMENTED => Self::Unknown,
            _ => Self::Falling,
        }
    }

    /// Whether something is there, or may be.
    pub(super) const fn is_used(self) -> bool {
        matches!(self, Self::Rising(_) | Self::Present(_) | Self::Falling)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) staging: State,
    /// Where it is staged, or may be; empty if it is not.
    pub(super) staging_path: Box<str>,
    /// A target that is not here is absent, or nothing is known of it.
    targets: BTreeMap<Box<str>, State>,
    /// Of a node that is not here nothing is known.
    attachments: BTreeMap<Box<str>, State>,
}

impl Volume {
    /// A volume that was not seen before.
    pub(super) fn new(nothing_before: bool) -> Self {
        let staging = if nothing_before { State::Absent } else { State::Unknown };
        Self { staging, staging_path: Box::default(), targets: BTreeMap::new(), attachments: BTreeMap::new() }
    }

    pub(super) fn attachment(&self, node: &str) -> State {
        self.attachments.get(node).copied().unwrap_or(State::Unknown)
    }

    pub(super) fn target(&self, path: &str) -> State {
        self.targets.get(path).copied().unwrap_or(State::Absent)
    }

    /// One of the targets that are in use.
    pub(super) fn any_target(&self) -> Option<(&str, State)> {
        self.targets.first_key_value().map(|(path, state)| (&**path, *state))
    }

    /// Whether the volume has this path, or may have it.
    pub(super) fn has(&self, path: &str) -> bool {
        self.paths().any(|known| known == path)
    }

    /// The paths that it has, or may have.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        let staging = self.staging.is_used().then_some(&self.staging_path);
        staging.into_iter().chain(self.targets.keys()).map(|path| &**path)
    }

    /// About how many bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let attachments: usize = self.attachments.keys().map(|node| 128 + node.len()).sum();
        // Each path is in an index too.
        512 + attachments + self.paths().map(|path| 2 * (128 + path.len())).sum::<usize>()
    }

    /// Takes in that a request ended with a code.
    pub(super) fn ended(&mut self, request: &Request, code: Code, driver: &Facts) {
        let digest = request.digest;
        match &request.deed {
            Deed::Attach { node } => self.set_attachment(node, self.attachment(node).risen(code, digest)),
            Deed::Detach { node } => {
                let nodes: Vec<Box<str>> = match node {
                    Some(node) => vec![node.clone()],
                    None => self.attachments.keys().chain(&driver.node).cloned().collect(),
                };
                nodes.iter().for_each(|node| self.set_attachment(node, State::fallen(code)));
            }
            Deed::Stage { path } => {
                let staging = self.staging.risen(code, digest);
                if staging != self.staging {
                    self.set_staging(path, staging);
                }
            }
            Deed::Unstage { path } => self.set_staging(path, State::fallen(code)),
            Deed::Publish { target, .. } => self.set_target(target, self.target(target).risen(code, digest)),
            Deed::Unpublish { target } => self.set_target(target, State::fallen(code)),
            Deed::Expand | Deed::Delete | Deed::Other => {}
        }
    }

    /// A request met another one about the same, so that nothing can be said of what they did.
    pub(super) fn unsettle(&mut self, request: &Request) {
        match &request.deed {
            Deed::Attach { .. } | Deed::Detach { .. } => self.attachments.clear(),
            Deed::Stage { path } | Deed::Unstage { path } => self.set_staging(path, State::Unknown),
            Deed::Publish { target, .. } | Deed::Unpublish { target } => {
                self.set_target(target, State::Unknown);
            }
            Deed::Expand | Deed::Delete | Deed::Other => {}
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
