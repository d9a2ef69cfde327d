//! How it stands with one volume, as far as its orchestrator knows, and what may be done with it then.

use std::collections::BTreeMap;

use super::request::{Deed, Request};
use super::rule::Rule;
use crate::code::Code;
use crate::operation::Digest;

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

/// A rule that a request breaks.
#[derive(Debug)]
pub(super) struct Breach {
    pub(super) rule: Rule,
    pub(super) expected: String,
    pub(super) found: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Volume {
    staging: Staging,
    targets: BTreeMap<Box<str>, Target>,
    attachments: BTreeMap<Box<str>, Attachment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Staging {
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
enum Target {
    Rising(Digest),
    Present(Digest),
    Falling,
}

/// Of a node that is not here nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attachment {
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

    /// What a request breaks that comes now.
    pub(super) fn breaches(&self, request: &Request, driver: &Facts) -> Vec<Breach> {
        let mut breaches = Vec::new();
        let mut breach = |rule, expected: &str, found: String| {
            breaches.push(Breach { rule, expected: expected.to_owned(), found });
        };
        if let Some(what) = self.not_offered(&request.deed, driver) {
            breach(Rule::OfferedCall, "calls that the driver offers", format!("a driver without {what}"));
        }
        match &request.deed {
            Deed::Attach { node } => match self.attachments.get(node) {
                Some(Attachment::Falling) => {
                    breach(
                        Rule::DownwardFirst,
                        "ControllerUnpublishVolume until it succeeds",
                        format!("one for node {node:?} that did not"),
                    );
                }
                Some(Attachment::Present(digest)) if *digest != request.digest => {
                    breach(
                        Rule::SameArguments,
                        "what it was attached with",
                        format!("others, for node {node:?}"),
                    );
                }
                Some(Attachment::Present(_) | Attachment::Absent) | None => {}
            },
            Deed::Detach { node } => {
                let here = node.is_none() || (driver.node.is_some() && *node == driver.node);
                if let (true, Some(use_)) = (here, self.in_use()) {
                    breach(Rule::DetachWhileInUse, "a volume that is given up on the node", use_);
                }
            }
            Deed::Stage { path } => {
                if let Some((rule, expected, found)) = self.not_attached(driver) {
                    breach(rule, expected, found);
                }
                match &self.staging {
                    Staging::Falling(at) => {
                        breach(
                            Rule::DownwardFirst,
                            "NodeUnstageVolume until it succeeds",
                            format!("one of {at:?} that did not"),
                        );
                    }
                    Staging::Rising(at, _) | Staging::Present(at, _) if at != path => {
                        breach(
                            Rule::OneStagingPath,
                            "the staging path that it has",
                            format!("{path:?} beside {at:?}"),
                        );
                    }
                    Staging::Rising(at, digest) | Staging::Present(at, digest)
                        if *digest != request.digest =>
                    {
                        breach(Rule::SameArguments, "what it was staged with", format!("others, at {at:?}"));
                    }
                    Staging::Rising(..) | Staging::Present(..) | Staging::Unknown | Staging::Absent => {}
                }
            }
            Deed::Unstage { path } => {
                if let Some((target, state)) = self.targets.first_key_value() {
                    let found = format!("target {target:?}, {}", state.words());
                    breach(Rule::UnstageWhilePublished, "a volume without targets", found);
                }
                match self.staging_path() {
                    Some(at) if at != &**path => {
                        breach(
                            Rule::OneStagingPath,
                            "the staging path that it has",
                            format!("{path:?} for {at:?}"),
                        );
                    }
                    Some(_) | None => {}
                }
            }
            Deed::Publish { target, staging } => {
                for Breach { rule, expected, found } in self.not_ready(staging.as_deref(), driver) {
                    breach(rule, &expected, found);
                }
                match self.targets.get(target) {
                    Some(Target::Falling) => {
                        breach(
                            Rule::DownwardFirst,
                            "NodeUnpublishVolume until it succeeds",
                            format!("one of {target:?} that did not"),
                        );
                    }
                    Some(Target::Rising(digest) | Target::Present(digest)) if *digest != request.digest => {
                        breach(
                            Rule::SameArguments,
                            "what it was published with",
                            format!("others, at {target:?}"),
                        );
                    }
                    Some(Target::Rising(_) | Target::Present(_)) | None => {}
                }
            }
            Deed::Expand => {
                if matches!(self.staging, Staging::Absent) && self.targets.is_empty() {
                    breach(
                        Rule::StageBeforeUse,
                        "a volume that is staged or published",
                        "neither".to_owned(),
                    );
                }
            }
            Deed::Delete => {
                if let Some(use_) = self.in_use() {
                    breach(Rule::DeleteWhileInUse, "a volume that nobody uses", use_);
                }
            }
            Deed::Unpublish { .. } | Deed::Other => {}
        }
        breaches
    }

    /// The capability that a call needs and the driver has not.
    fn not_offered(&self, deed: &Deed, driver: &Facts) -> Option<&'static str> {
        let offers = driver.offers?;
        match deed {
            // What it staged while it could is its to take down.
            Deed::Stage { .. } if !offers.staging => Some("STAGE_UNSTAGE_VOLUME"),
            Deed::Expand if !offers.expansion => Some("EXPAND_VOLUME"),
            _ => None,
        }
    }

    /// Why the volume may not be staged, or published where nothing is staged.
    fn not_attached(&self, driver: &Facts) -> Option<(Rule, &'static str, String)> {
        let node = driver.node.as_ref()?;
        match self.attachments.get(node)? {
            Attachment::Present(_) => None,
            Attachment::Absent => Some((
                Rule::AttachBeforeUse,
                "a volume that is attached",
                format!("one detached from node {node:?}"),
            )),
            Attachment::Falling => Some((
                Rule::DownwardFirst,
                "ControllerUnpublishVolume until it succeeds",
                format!("one for node {node:?} that did not"),
            )),
        }
    }

    /// Why the volume may not be published from a staging path, or from none.
    fn not_ready(&self, staging: Option<&str>, driver: &Facts) -> Vec<Breach> {
        let one =
            |rule, expected: &str, found: String| vec![Breach { rule, expected: expected.to_owned(), found }];
        let stages = driver.offers.map(|offers| offers.staging);
        let Some(path) = staging else {
            if stages == Some(true) {
                let found = "none, and a driver with STAGE_UNSTAGE_VOLUME".to_owned();
                return one(Rule::RequiredField, "staging_target_path", found);
            }
            let not = self.not_attached(driver);
            return not.map(|(rule, expected, found)| one(rule, expected, found)).unwrap_or_default();
        };
        if stages == Some(false) {
            return Vec::new();
        }
        match &self.staging {
            Staging::Unknown => Vec::new(),
            Staging::Present(at, _) if **at == *path => Vec::new(),
            Staging::Present(at, _) => {
                one(Rule::OneStagingPath, "the staging path that it has", format!("{path:?} for {at:?}"))
            }
            Staging::Absent => one(
                Rule::StageBeforeUse,
                "NodeStageVolume with success",
                "a volume that is not staged".to_owned(),
            ),
            Staging::Rising(at, _) => {
                let found = format!("one at {at:?} that had none yet");
                one(Rule::StageBeforeUse, "NodeStageVolume with success", found)
            }
            Staging::Falling(at) => {
                let found = format!("one of {at:?} that did not");
                one(Rule::DownwardFirst, "NodeUnstageVolume until it succeeds", found)
            }
        }
    }

    /// What on the node is in the way of an end to it all.
    fn in_use(&self) -> Option<String> {
        if let Some((target, state)) = self.targets.first_key_value() {
            return Some(format!("target {target:?}, {}", state.words()));
        }
        match &self.staging {
            Staging::Unknown | Staging::Absent => None,
            Staging::Rising(at, _) => Some(format!("a staging at {at:?} that may still be running")),
            Staging::Present(at, _) => Some(format!("it staged at {at:?}")),
            Staging::Falling(at) => Some(format!("an unstaging of {at:?} that has not succeeded")),
        }
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

impl Target {
    const fn words(self) -> &'static str {
        match self {
            Self::Rising(_) => "which may be published",
            Self::Present(_) => "which is published",
            Self::Falling => "whose unpublishing has not succeeded",
        }
    }
}
