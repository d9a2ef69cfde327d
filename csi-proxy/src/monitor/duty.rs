//! What may be done with a volume, as it stands.

use super::request::{Deed, Request};
use super::rule::Rule;
use super::volume::{Attachment, Facts, Staging, Target, Volume};

/// A rule that a request breaks.
#[derive(Debug)]
pub(super) struct Breach {
    pub(super) rule: Rule,
    pub(super) expected: String,
    pub(super) found: String,
}

impl Volume {
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
