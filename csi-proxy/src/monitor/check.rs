//! Checks requests against the state of a volume.

use std::time::{Duration, Instant};

use csi_proto::Method;

use super::request::{Operation, Request};
use super::rule::Rule;
use super::volume::{Facts, State, Volume};

/// The time for an expansion on the node. Kubelet begins it within about three minutes of the driver's answer.
const EXPANSION: Duration = Duration::from_secs(10 * 60);

/// A broken rule.
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

    /// A setup call for an object whose teardown has not succeeded.
    fn unfinished_teardown(teardown: Method, place: &str) -> Self {
        let expected = format!("{} repeated until it succeeds", teardown.name());
        Self::new(Rule::FinishTeardown, expected, format!("a failed {} {place}", teardown.name()))
    }

    fn other_staging_path(found: &str, known: &str) -> Self {
        let found = format!("{found:?} beside {known:?}");
        Self::new(Rule::OneStagingPath, "the known staging path of the volume", found)
    }

    fn not_staged(found: impl Into<String>) -> Self {
        Self::new(Rule::StageBeforeUse, "NodeStageVolume with success", found)
    }
}

impl Volume {
    /// The rules that a request breaks.
    pub(super) fn breaches(&self, now: Instant, request: &Request, driver: &Facts) -> Vec<Breach> {
        let mut breaches = Vec::from_iter(not_offered(&request.operation, driver));
        match &request.operation {
            Operation::Attach { node } => {
                let (state, place) = (self.attachment(node), format!("for node {node:?}"));
                breaches.extend(repeated(request, state, Method::ControllerUnpublishVolume, &place));
            }
            Operation::Detach { node } => {
                let on_this_node = node.is_none() || (driver.node.is_some() && *node == driver.node);
                let expected = "a volume that is not staged or published on the node";
                let used = self.in_use().filter(|_| on_this_node);
                breaches.extend(used.map(|used| Breach::new(Rule::DetachWhileInUse, expected, used)));
            }
            Operation::Stage { path } => {
                breaches.extend(self.not_attached(driver));
                let place = format!("at {:?}", self.staging_path);
                breaches.extend(match self.staging {
                    State::SettingUp(_) | State::Present(_) if *path != self.staging_path => {
                        Some(Breach::other_staging_path(path, &self.staging_path))
                    }
                    staging => repeated(request, staging, Method::NodeUnstageVolume, &place),
                });
            }
            Operation::Unstage { path } => {
                breaches.extend(self.any_target().map(|(target, state)| {
                    let found = format!("target {target:?}, {}", state_text(state));
                    Breach::new(Rule::UnstageWhilePublished, "a volume without targets", found)
                }));
                if self.staging.is_used() && *path != self.staging_path {
                    breaches.push(Breach::other_staging_path(path, &self.staging_path));
                }
                breaches.extend(self.not_expanded(now));
            }
            Operation::Publish { target, staging } => {
                breaches.extend(self.not_ready(staging.as_deref(), driver));
                let place = format!("at {target:?}");
                breaches.extend(repeated(request, self.target(target), Method::NodeUnpublishVolume, &place));
            }
            Operation::Expand => {
                if self.staging == State::Absent && self.any_target().is_none() {
                    let expected = "a volume that is staged or published";
                    breaches.push(Breach::new(Rule::StageBeforeUse, expected, "a volume that is neither"));
                }
            }
            Operation::Delete => {
                let breach = |used| Breach::new(Rule::DeleteWhileInUse, "an unused volume", used);
                breaches.extend(self.in_use().map(breach));
            }
            Operation::Unpublish { .. } if !self.staging.is_used() => breaches.extend(self.not_expanded(now)),
            Operation::Unpublish { .. } | Operation::Other => {}
        }
        breaches
    }

    /// An expansion on the node that was not tried while the volume was in use.
    fn not_expanded(&self, now: Instant) -> Option<Breach> {
        let waits = now.saturating_duration_since(self.expansion_due?);
        (waits >= EXPANSION).then(|| {
            let expected = "NodeExpandVolume after ControllerExpandVolume with node_expansion_required";
            Breach::new(Rule::ExpandOnNode, expected, format!("none in {} s", waits.as_secs()))
        })
    }

    /// Why the volume may not be staged, or published without staging.
    fn not_attached(&self, driver: &Facts) -> Option<Breach> {
        let node = driver.node.as_ref()?;
        match self.attachment(node) {
            State::Unknown | State::Present(_) => None,
            State::Absent | State::SettingUp(_) => {
                let found = format!("a volume detached from node {node:?}");
                Some(Breach::new(Rule::AttachBeforeUse, "a volume that is attached", found))
            }
            State::TearingDown => Some(Breach::unfinished_teardown(
                Method::ControllerUnpublishVolume,
                &format!("for node {node:?}"),
            )),
        }
    }

    /// Why the volume may not be published from this staging path, or from none.
    fn not_ready(&self, staging: Option<&str>, driver: &Facts) -> Option<Breach> {
        let stages = driver.capabilities.map(|capabilities| capabilities.staging);
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
            State::SettingUp(_) => {
                Some(Breach::not_staged(format!("NodeStageVolume at {known:?} without success yet")))
            }
            State::TearingDown => {
                Some(Breach::unfinished_teardown(Method::NodeUnstageVolume, &format!("at {known:?}")))
            }
        }
    }

    /// The object on the node that is still in use.
    fn in_use(&self) -> Option<String> {
        let target =
            self.any_target().map(|(target, state)| format!("target {target:?}, {}", state_text(state)));
        let staging = || format!("staging path {:?}, {}", self.staging_path, state_text(self.staging));
        target.or_else(|| self.staging.is_used().then(staging))
    }
}

/// The missing capability that a call needs.
fn not_offered(operation: &Operation, driver: &Facts) -> Option<Breach> {
    let capabilities = driver.capabilities?;
    let what = match operation {
        // `Unstage` needs no capability: a driver must tear down what it staged earlier.
        Operation::Stage { .. } if !capabilities.staging => "STAGE_UNSTAGE_VOLUME",
        Operation::Expand if !capabilities.expansion => "EXPAND_VOLUME",
        _ => return None,
    };
    let found = format!("a driver without {what}");
    Some(Breach::new(Rule::OfferedCall, "a call that the driver offers", found))
}

/// The rule that a setup call breaks because of earlier calls on the same object; `teardown` is the method that
/// undoes them.
fn repeated(request: &Request, state: State, teardown: Method, place: &str) -> Option<Breach> {
    match state {
        State::TearingDown => Some(Breach::unfinished_teardown(teardown, place)),
        State::SettingUp(digest) | State::Present(digest) if digest != request.digest => {
            let expected = format!("the arguments of the first {}", request.method.name());
            Some(Breach::new(Rule::SameArguments, expected, format!("other arguments {place}")))
        }
        _ => None,
    }
}

const fn state_text(state: State) -> &'static str {
    match state {
        State::Unknown => "with unknown state",
        State::Absent => "not in use",
        State::SettingUp(_) => "possibly in use",
        State::Present(_) => "in use",
        State::TearingDown => "with a failed removal",
    }
}
