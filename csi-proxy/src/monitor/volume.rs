//! How it stands with one volume, as far as its orchestrator knows.

use std::collections::BTreeMap;

use super::request::{Deed, Request};
use crate::operation::Digest;
use csi_proto::Code;

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

/// How a call ended, for its orchestrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Done,
    /// It may still be running.
    Unknown,
    /// With this code, which says that nothing is running.
    Failed(Code),
}

impl Verdict {
    pub(super) const fn of(code: Code) -> Self {
        match code {
            Code::OK => Self::Done,
            Code::CANCELLED | Code::DEADLINE_EXCEEDED | Code::UNAVAILABLE | Code::ABORTED => Self::Unknown,
            code => Self::Failed(code),
        }
    }

    /// What a call downward leaves behind.
    const fn downward(self) -> Downward {
        match self {
            Self::Done => Downward::Gone,
            // The orchestrator has to find out what that means, in ways that are not seen here.
            Self::Failed(Code::NOT_FOUND | Code::UNIMPLEMENTED) => Downward::NotKnown,
            Self::Unknown | Self::Failed(_) => Downward::Half,
        }
    }
}

/// What a call downward leaves behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Downward {
    Gone,
    NotKnown,
    Half,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    pub(super) staging: Staging,
    pub(super) targets: BTreeMap<Box<str>, Target>,
    pub(super) attachments: BTreeMap<Box<str>, Attachment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Staging {
    Unknown,
    Absent,
    /// A call to stage may still be running, and none has succeeded.
    Rising(Box<str>, Digest),
    Present(Box<str>, Digest),
    /// A call to unstage has not succeeded.
    Falling(Box<str>),
}

/// A target that is not here is not published, or nothing is known of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Rising(Digest),
    Present(Digest),
    Falling,
}

/// Of a node that is not here nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Attachment {
    Present(Digest),
    Falling,
    Absent,
}

impl Volume {
    /// A volume that was not seen before.
    pub(super) fn new(nothing_before: bool) -> Self {
        let staging = if nothing_before { Staging::Absent } else { Staging::Unknown };
        Self { staging, targets: BTreeMap::new(), attachments: BTreeMap::new() }
    }

    /// Whether the volume has this path, or may have it.
    pub(super) fn has(&self, path: &str) -> bool {
        self.staging_path() == Some(path) || self.targets.contains_key(path)
    }

    /// The paths that it has, or may have.
    pub(super) fn paths(&self) -> impl Iterator<Item = &str> {
        self.staging_path().into_iter().chain(self.targets.keys().map(|target| &**target))
    }

    pub(super) fn staging_path(&self) -> Option<&str> {
        match &self.staging {
            Staging::Unknown | Staging::Absent => None,
            Staging::Rising(path, _) | Staging::Present(path, _) | Staging::Falling(path) => Some(path),
        }
    }

    /// About how many bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let attachments: usize = self.attachments.keys().map(|node| 128 + node.len()).sum();
        // Each path is in an index too.
        512 + attachments + self.paths().map(|path| 2 * (128 + path.len())).sum::<usize>()
    }

    /// Takes the end of a request in.
    pub(super) fn ended(&mut self, request: &Request, verdict: Verdict, driver: &Facts) {
        let digest = request.digest;
        match &request.deed {
            Deed::Attach { node } => {
                if verdict == Verdict::Done {
                    self.set_attachment(node, Attachment::Present(digest));
                }
            }
            Deed::Detach { node } => {
                let nodes: Vec<Box<str>> = match node {
                    Some(node) => vec![node.clone()],
                    None => self.attachments.keys().chain(&driver.node).cloned().collect(),
                };
                for node in nodes {
                    match verdict.downward() {
                        Downward::Gone => self.set_attachment(&node, Attachment::Absent),
                        Downward::NotKnown => drop(self.attachments.remove(&node)),
                        Downward::Half => self.set_attachment(&node, Attachment::Falling),
                    }
                }
            }
            Deed::Stage { path } => match (verdict, &self.staging) {
                (Verdict::Done, _) => self.staging = Staging::Present(path.clone(), digest),
                (Verdict::Unknown, Staging::Absent) => self.staging = Staging::Rising(path.clone(), digest),
                (Verdict::Failed(_), Staging::Rising(..)) => self.staging = Staging::Absent,
                (Verdict::Unknown | Verdict::Failed(_), _) => {}
            },
            Deed::Unstage { path } => match verdict.downward() {
                Downward::Gone => self.staging = Staging::Absent,
                Downward::NotKnown => self.staging = Staging::Unknown,
                Downward::Half => self.staging = Staging::Falling(path.clone()),
            },
            Deed::Publish { target, .. } => match (verdict, self.targets.get(target)) {
                (Verdict::Done, _) => drop(self.targets.insert(target.clone(), Target::Present(digest))),
                (Verdict::Unknown, None) => drop(self.targets.insert(target.clone(), Target::Rising(digest))),
                (Verdict::Failed(_), Some(Target::Rising(_))) => drop(self.targets.remove(target)),
                (Verdict::Unknown | Verdict::Failed(_), _) => {}
            },
            Deed::Unpublish { target } => {
                if verdict.downward() == Downward::Half {
                    self.targets.insert(target.clone(), Target::Falling);
                } else {
                    self.targets.remove(target);
                }
            }
            Deed::Expand | Deed::Delete | Deed::Other => {}
        }
    }

    /// A request met another one about the same, so that nothing can be said of what they did.
    pub(super) fn unsettle(&mut self, request: &Request) {
        match &request.deed {
            Deed::Attach { .. } | Deed::Detach { .. } => self.attachments.clear(),
            Deed::Stage { .. } | Deed::Unstage { .. } => self.staging = Staging::Unknown,
            Deed::Publish { target, .. } | Deed::Unpublish { target } => drop(self.targets.remove(target)),
            Deed::Expand | Deed::Delete | Deed::Other => {}
        }
    }

    fn set_attachment(&mut self, node: &str, attachment: Attachment) {
        if self.attachments.len() >= MAX_ATTACHMENTS && !self.attachments.contains_key(node) {
            return self.attachments.clear();
        }
        self.attachments.insert(node.into(), attachment);
    }
}
