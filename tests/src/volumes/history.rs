//! The calls to a driver, checked against the duties of a caller (CSI spec, "Volume Lifecycle" and "Timeouts").

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::Method;
use tonic::Code;

/// The volume and the paths of a call.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Subject {
    /// The id of the volume.
    pub volume: String,
    /// The target of a publish or unpublish, the staging path of a stage or unstage; empty for other calls.
    pub path: String,
    /// The staging path of the request; empty if the request has none.
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
    /// The method of the call.
    pub method: Method,
    /// The volume and the paths of the call.
    pub subject: Subject,
    /// The code of the result; `None` while the call runs.
    pub code: Option<Code>,
}

/// All calls, and the state that they leave in the driver.
#[derive(Debug, Default)]
pub struct History {
    calls: Vec<Call>,
    /// The index of the present caller's first call.
    since: usize,
    staged: BTreeSet<String>,
    /// Volume and target of each publication that exists or may exist.
    targets: BTreeSet<(String, String)>,
    /// The unpublish or unstage that did not end with OK, by volume and path.
    unfinished: BTreeMap<(String, String), Method>,
    breaches: Vec<String>,
}

impl History {
    /// Records that another process calls from now on. Calls of the previous process may still run, unknown to the
    /// new one.
    pub fn another_caller(&mut self) {
        self.since = self.calls.len();
    }

    /// Records a reboot of the machine: nothing is mounted and nothing runs.
    pub fn reboot(&mut self) {
        self.another_caller();
        self.staged.clear();
        self.targets.clear();
        self.unfinished.clear();
    }

    /// Returns all calls so far.
    #[must_use]
    pub fn calls(&self) -> &[Call] {
        &self.calls
    }

    /// Returns how often this method was called.
    #[must_use]
    pub fn count(&self, method: Method) -> usize {
        self.calls.iter().filter(|call| call.method == method).count()
    }

    /// Returns the breaches of the caller's duties, as sentences.
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

    /// Records the end of a call. `effective` is false if the interceptor returned a false OK.
    pub(super) fn end(&mut self, number: usize, code: Code, effective: bool) {
        let Some(call) = self.calls.get_mut(number) else { return };
        call.code = Some(code);
        let part = (call.subject.volume.clone(), call.subject.path.clone());
        match (call.method, code) {
            (Method::NodeStageVolume, Code::Ok) => drop(self.staged.insert(part.0)),
            (Method::NodeUnpublishVolume, Code::Ok) => {
                self.unfinished.remove(&part);
                if effective {
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
    fn a_correct_lifecycle_has_no_breach() {
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
            .map(|(rule, breach)| breach.contains(rule))
            .collect();
        assert_eq!(named, [true; 4], "{:?}", history.breaches());
        history.another_caller();
        made(&mut history, Method::NodeUnpublishVolume, "t", Code::Ok);
        assert_eq!(history.breaches().len(), 4, "a new process does not know the calls of the previous one");
    }
}
