//! What a driver was asked, held against what a caller owes it (spec, "Volume Lifecycle" and "Timeouts").

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::Method;
use tonic::Code;

/// What a call is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Subject {
    /// The volume.
    pub volume: String,
    /// The target of a publish or unpublish, the staging path of a stage or unstage; else empty.
    pub path: String,
    /// Where the volume is staged, if the call says so.
    pub staging: String,
}

impl Subject {
    pub(super) fn new(volume: &str, path: &str, staging: &str) -> Self {
        Self { volume: volume.into(), path: path.into(), staging: staging.into() }
    }
}

/// One call about a volume.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Call {
    /// What was called.
    pub method: Method,
    /// About what.
    pub subject: Subject,
    /// How it ended; `None` as long as it runs.
    pub code: Option<Code>,
}

/// All calls, and what they leave behind.
#[derive(Debug, Default)]
pub struct History {
    calls: Vec<Call>,
    /// The first call of the present caller.
    since: usize,
    staged: BTreeSet<String>,
    /// Volume and target: published, perhaps published, or perhaps not yet unpublished.
    targets: BTreeSet<(String, String)>,
    /// The downward call that did not end with OK, by volume and path.
    unfinished: BTreeMap<(String, String), Method>,
    breaches: Vec<String>,
}

impl History {
    /// Another process calls from now on. The calls of the last one may still run, unknown to it.
    pub fn another_caller(&mut self) {
        self.since = self.calls.len();
    }

    /// The machine was started anew: nothing is mounted and nothing runs.
    pub fn reboot(&mut self) {
        self.another_caller();
        self.staged.clear();
        self.targets.clear();
        self.unfinished.clear();
    }

    /// All calls so far.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// How often this was called.
    #[must_use]
    pub fn count(&self, method: Method) -> usize {
        self.calls.iter().filter(|call| call.method == method).count()
    }

    /// What the caller did that it must not.
    #[must_use]
    pub fn breaches(&self) -> &[String] {
        &self.breaches
    }

    pub(super) fn begin(&mut self, method: Method, subject: &Subject) -> usize {
        let volume = &subject.volume;
        let part = (volume.clone(), subject.path.clone());
        let mut breaches = Vec::new();
        let running = self.calls.iter().skip(self.since);
        if let Some(other) =
            running.clone().find(|call| call.subject.volume == *volume && call.code.is_none())
        {
            breaches.push(format!("I1: {method:?} while {:?} runs", other.method));
        }
        match method {
            Method::NodePublishVolume if !self.staged.contains(volume) => {
                breaches.push("I2: published without a stage that succeeded".to_owned());
            }
            Method::NodeUnstageVolume if self.targets.iter().any(|(of, _)| of == volume) => {
                breaches.push("I3: unstaged under a target".to_owned());
            }
            _ => {}
        }
        let opposite = match method {
            Method::NodeStageVolume => Some(Method::NodeUnstageVolume),
            Method::NodePublishVolume => Some(Method::NodeUnpublishVolume),
            Method::ControllerPublishVolume => Some(Method::ControllerUnpublishVolume),
            _ => None,
        };
        if opposite.is_some() && self.unfinished.get(&part).copied() == opposite {
            breaches.push(format!("I4: {method:?} after a {opposite:?} without OK"));
        }
        for breach in breaches {
            self.breaches.push(format!("{volume} at {:?}: {breach}", subject.path));
        }
        match method {
            Method::NodePublishVolume => drop(self.targets.insert(part)),
            Method::NodeUnstageVolume => drop(self.staged.remove(volume)),
            _ => {}
        }
        self.calls.push(Call { method, subject: subject.clone(), code: None });
        self.calls.len() - 1
    }

    /// `true` if the call did what it says, as far as the one between knows.
    pub(super) fn end(&mut self, number: usize, code: Code, truly: bool) {
        let Some(call) = self.calls.get_mut(number) else { return };
        call.code = Some(code);
        let part = (call.subject.volume.clone(), call.subject.path.clone());
        match (call.method, code) {
            (Method::NodeStageVolume, Code::Ok) => drop(self.staged.insert(part.0)),
            (Method::NodeUnpublishVolume, Code::Ok) => {
                self.unfinished.remove(&part);
                if truly {
                    self.targets.remove(&part);
                }
            }
            (Method::NodeUnstageVolume | Method::ControllerUnpublishVolume, Code::Ok) => {
                self.unfinished.remove(&part);
            }
            (
                Method::NodeUnpublishVolume | Method::NodeUnstageVolume | Method::ControllerUnpublishVolume,
                _,
            ) => drop(self.unfinished.insert(part, call.method)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(path: &str) -> Subject {
        Subject::new("v", path, "")
    }

    fn made(history: &mut History, method: Method, path: &str, code: Code) {
        let number = history.begin(method, &subject(path));
        history.end(number, code, true);
    }

    #[test]
    fn a_lawful_round_breaks_nothing() {
        let mut history = History::default();
        for (method, path) in [
            (Method::NodeStageVolume, "s"),
            (Method::NodePublishVolume, "t"),
            (Method::NodeUnpublishVolume, "t"),
            (Method::NodeUnstageVolume, "s"),
            (Method::NodeStageVolume, "s"),
        ] {
            made(&mut history, method, path, Code::Ok);
        }
        assert!(history.breaches().is_empty(), "{:?}", history.breaches());
        assert_eq!(history.count(Method::NodeStageVolume), 2);
    }

    #[test]
    fn each_breach_is_named() {
        let mut history = History::default();
        made(&mut history, Method::NodePublishVolume, "t", Code::Ok);
        made(&mut history, Method::NodeUnstageVolume, "s", Code::Internal);
        made(&mut history, Method::NodeStageVolume, "s", Code::Ok);
        history.begin(Method::NodeUnpublishVolume, &subject("t"));
        made(&mut history, Method::NodeUnpublishVolume, "t", Code::Ok);
        let named: Vec<_> = ["I2", "I3", "I4", "I1"]
            .iter()
            .zip(history.breaches())
            .map(|(at, said)| said.contains(at))
            .collect();
        assert_eq!(named, [true; 4], "{:?}", history.breaches());
        history.another_caller();
        made(&mut history, Method::NodeUnpublishVolume, "t", Code::Ok);
        assert_eq!(history.breaches().len(), 4, "a caller that died cannot know what it left running");
    }
}
