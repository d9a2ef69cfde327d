//! What may be done with a volume, as it stands.

use csi_proto::Method;

use super::request::{Deed, Request};
use super::rule::Rule;
use super::volume::{Facts, State, Volume};

/// A rule that a request breaks.
#[derive(Debug)]
pub(super) struct Breach {
    pub(super) rule: Rule,
    pub(super) expected: String,
    pub(super) found: String,
}

impl Breach {
    fn new(rule: Rule, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { rule, expected: expected.into(), found: found.into() }
    }

    /// What was begun downward at this place is not at its end.
    fn falling(down: Method, place: &str) -> Self {
        let expected = format!("{} until it succeeds", down.name());
        Self::new(Rule::DownwardFirst, expected, format!("one {place} that did not"))
    }

    fn other_staging_path(found: &str, known: &str) -> Self {
        let found = format!("{found:?} beside {known:?}");
        Self::new(Rule::OneStagingPath, "the staging path that it has", found)
    }

    fn not_staged(found: impl Into<String>) -> Self {
        Self::new(Rule::StageBeforeUse, "NodeStageVolume with success", found)
    }
}

impl Volume {
    /// What a request breaks that comes now.
    pub(super) fn breaches(&self, request: &Request, driver: &Facts) -> Vec<Breach> {
        let mut breaches = Vec::from_iter(not_offered(&request.deed, driver));
        match &request.deed {
            Deed::Attach { node } => {
                let (state, place) = (self.attachment(node), format!("for node {node:?}"));
                breaches.extend(repeated(request, state, Method::ControllerUnpublishVolume, &place));
            }
            Deed::Detach { node } => {
                let here = node.is_none() || (driver.node.is_some() && *node == driver.node);
                let expected = "a volume that is given up on the node";
                let used = self.in_use().filter(|_| here);
                breaches.extend(used.map(|used| Breach::new(Rule::DetachWhileInUse, expected, used)));
            }
            Deed::Stage { path } => {
                breaches.extend(self.not_attached(driver));
                let place = format!("at {:?}", self.staging_path);
                breaches.extend(match self.staging {
                    State::Rising(_) | State::Present(_) if *path != self.staging_path => {
                        Some(Breach::other_staging_path(path, &self.staging_path))
                    }
                    staging => repeated(request, staging, Method::NodeUnstageVolume, &place),
                });
            }
            Deed::Unstage { path } => {
                breaches.extend(self.any_target().map(|(target, state)| {
                    let found = format!("target {target:?}, {}", words(state));
                    Breach::new(Rule::UnstageWhilePublished, "a volume without targets", found)
                }));
                if self.staging.is_used() && *path != self.staging_path {
                    breaches.push(Breach::other_staging_path(path, &self.staging_path));
                }
            }
            Deed::Publish { target, staging } => {
                breaches.extend(self.not_ready(staging.as_deref(), driver));
                let place = format!("at {target:?}");
                breaches.extend(repeated(request, self.target(target), Method::NodeUnpublishVolume, &place));
            }
            Deed::Expand => {
                if self.staging == State::Absent && self.any_target().is_none() {
                    let expected = "a volume that is staged or published";
                    breaches.push(Breach::new(Rule::StageBeforeUse, expected, "neither"));
                }
            }
            Deed::Delete => {
                let breach = |used| Breach::new(Rule::DeleteWhileInUse, "a volume that nobody uses", used);
                breaches.extend(self.in_use().map(breach));
            }
            Deed::Unpublish { .. } | Deed::Other => {}
        }
        breaches
    }

    /// Why the volume may not be staged, or published where nothing is staged.
    fn not_attached(&self, driver: &Facts) -> Option<Breach> {
        let node = driver.node.as_ref()?;
        match self.attachment(node) {
            State::Unknown | State::Present(_) => None,
            State::Absent | State::Rising(_) => {
                let found = format!("one detached from node {node:?}");
                Some(Breach::new(Rule::AttachBeforeUse, "a volume that is attached", found))
            }
            State::Falling => {
                Some(Breach::falling(Method::ControllerUnpublishVolume, &format!("for node {node:?}")))
            }
        }
    }

    /// Why the volume may not be published from a staging path, or from none.
    fn not_ready(&self, staging: Option<&str>, driver: &Facts) -> Option<Breach> {
        let stages = driver.offers.map(|offers| offers.staging);
        let Some(path) = staging else {
            let found = "none, and a driver with STAGE_UNSTAGE_VOLUME";
            return match stages {
                Some(true) => Some(Breach::new(Rule::RequiredField, "staging_target_path", found)),
                _ => self.not_attached(driver),
            };
        };
        let known = &*self.staging_path;
        match self.staging {
            _ if stages == Some(false) => None,
            State::Unknown => None,
            State::Present(_) => (path != known).then(|| Breach::other_staging_path(path, known)),
            State::Absent => Some(Breach::not_staged("a volume that is not staged")),
            State::Rising(_) => Some(Breach::not_staged(format!("one at {known:?} that had none yet"))),
            State::Falling => Some(Breach::falling(Method::NodeUnstageVolume, &format!("at {known:?}"))),
        }
    }

    /// What on the node is in the way of an end to it all.
    fn in_use(&self) -> Option<String> {
        let target = self.any_target().map(|(target, state)| format!("target {target:?}, {}", words(state)));
        let staging = || format!("staging path {:?}, {}", self.staging_path, words(self.staging));
        target.or_else(|| self.staging.is_used().then(staging))
    }
}

/// The capability that a call needs and the driver has not.
fn not_offered(deed: &Deed, driver: &Facts) -> Option<Breach> {
    let offers = driver.offers?;
    let what = match deed {
        // What it staged while it could is its to take down.
        Deed::Stage { .. } if !offers.staging => "STAGE_UNSTAGE_VOLUME",
        Deed::Expand if !offers.expansion => "EXPAND_VOLUME",
        _ => return None,
    };
    let found = format!("a driver without {what}");
    Some(Breach::new(Rule::OfferedCall, "calls that the driver offers", found))
}

/// What a call upward breaks that was made before at this place, which `down` undoes.
fn repeated(request: &Request, state: State, down: Method, place: &str) -> Option<Breach> {
    match state {
        State::Falling => Some(Breach::falling(down, place)),
        State::Rising(digest) | State::Present(digest) if digest != request.digest => {
            let expected = format!("the arguments of the first {}", request.method.name());
            Some(Breach::new(Rule::SameArguments, expected, format!("others, {place}")))
        }
        _ => None,
    }
}

const fn words(state: State) -> &'static str {
    match state {
        State::Unknown => "of which nothing is known",
        State::Absent => "which is not in use",
        State::Rising(_) => "which may be in use",
        State::Present(_) => "which is in use",
        State::Falling => "whose removal has not succeeded",
    }
}
