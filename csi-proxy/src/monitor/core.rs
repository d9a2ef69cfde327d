//! The state of all volumes of a driver. Pure: events in, violations out.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::time::Instant;

use csi_proto::csi::v1 as csi;
use csi_proto::{Code, Method};
use prost::Message;

use super::check::Breach;
use super::event::{CallNumber, Counts, End, Event, InitialState, Limits};
use super::request::{self, Decoded, Operation, Request, pod_uid};
use super::rule::{Rule, Violation};
use super::volume::{Capabilities, Facts, Volume};

/// The maximum length of a node name in bytes (spec, NodeGetInfo).
const MAX_NODE: usize = 256;

/// The maximum size of a decoded answer in bytes. Typical ones have a few hundred.
const MAX_ANSWER: usize = 256 * 1024;

/// The number of unpublished targets of pods that are remembered.
const MAX_UNPUBLISHED: usize = 1024;

/// Monitors the calls to one driver. See the [module](super).
///
/// Time must not go back between calls of [`Self::handle`].
#[derive(Debug, Default)]
pub struct Monitor {
    limits: Limits,
    /// Whether every call was observed, so that an unlisted volume has no earlier calls.
    complete_history: bool,
    driver: Facts,
    volumes: HashMap<Box<str>, Watched>,
    /// The number of calls for a volume, which orders volumes by their last use.
    uses: u64,
    /// The volume of each path. Of two volumes with one path only the first is listed; the conflict was reported.
    paths: HashMap<Box<str>, Box<str>>,
    /// The digests of volume and path of the last targets of pods that were unpublished.
    unpublished: VecDeque<u64>,
    digest: RandomState,
    open: HashMap<CallNumber, Open>,
    bytes: usize,
    dropped: u64,
    violations: u64,
}

#[derive(Debug)]
struct Watched {
    volume: Volume,
    open: Vec<CallNumber>,
    /// The value of [`Monitor::uses`] at the last call for the volume.
    last_use: u64,
    bytes: usize,
}

#[derive(Debug)]
enum Open {
    Request {
        request: Request,
        since: Instant,
        overlapped: bool,
    },
    /// A call whose answer describes the driver, or a new volume.
    Fact(Method),
}

impl Monitor {
    /// Creates a monitor.
    #[must_use]
    pub fn new(limits: Limits, before: InitialState) -> Self {
        Self { limits, complete_history: before == InitialState::Empty, ..Self::default() }
    }

    /// Whether the monitor uses calls of this method. Calls of other methods need not be reported.
    #[must_use]
    pub fn watches(method: Method) -> bool {
        is_fact(method) || (method.is_mutating() && !method.is_server_streaming())
    }

    /// The counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let (volumes, open) = (self.volumes.len(), self.open.len());
        Counts { volumes, open, dropped: self.dropped, violations: self.violations }
    }

    /// Handles an event and returns the violations.
    pub fn handle(&mut self, now: Instant, event: Event<'_>) -> Vec<Violation> {
        let violations = match event {
            Event::Began { call, method, body } => self.began(now, call, method, body),
            Event::Ended { call, end } => {
                self.ended(now, call, end);
                Vec::new()
            }
        };
        self.violations += violations.len() as u64;
        violations
    }

    fn began(&mut self, now: Instant, call: CallNumber, method: Method, body: &[u8]) -> Vec<Violation> {
        let has_room = self.open.len() < self.limits.open;
        if is_fact(method) {
            if has_room {
                self.open.insert(call, Open::Fact(method));
            }
            return Vec::new();
        }
        let request = match request::decode(method, body) {
            Decoded::Request(request) => request,
            Decoded::MissingField { volume, field } => {
                let (expected, found) = (field.to_owned(), "none".to_owned());
                return vec![Violation { rule: Rule::RequiredField, method, volume, expected, found }];
            }
            Decoded::NotMonitored => return Vec::new(),
            Decoded::TooLong { volume } => {
                self.mark_unmonitored(volume.as_deref());
                return Vec::new();
            }
        };
        let was_unpublished = self.forget_unpublished(&request);
        let violations = self.check(now, &request, was_unpublished);
        if has_room {
            self.open(now, call, request);
        } else {
            self.mark_unmonitored(Some(&request.volume));
        }
        violations
    }

    /// The violations of a new request. `was_unpublished`: it publishes a target of a pod that was unpublished.
    fn check(&self, now: Instant, request: &Request, was_unpublished: bool) -> Vec<Violation> {
        let mut violations = Vec::new();
        let mut report = |rule, expected: String, found: String| {
            let (method, volume) = (request.method, request.volume.to_string());
            violations.push(Violation { rule, method, volume, expected, found });
        };
        let watched = self.volumes.get(&request.volume);
        let others: Vec<_> = watched.iter().flat_map(|watched| self.open_requests(watched)).collect();
        if others.iter().any(|(other, _)| request == *other) {
            return violations;
        }
        if let Some((other, since)) =
            others.iter().find(|(other, _)| request.component() == other.component())
        {
            let age = now.saturating_duration_since(*since);
            let found = format!("{} that began {age:?} before", other.method.name());
            report(
                Rule::OneCallPerVolume,
                "no other call of this part of the orchestrator in flight for the volume".to_owned(),
                found,
            );
        }
        if let Some((path, owner)) = self.owner_of_path(request) {
            let found = format!("{path:?} of volume {owner:?}");
            report(Rule::PathOfAnotherVolume, "a path that no other volume has".to_owned(), found);
        }
        if was_unpublished {
            let found =
                format!("target {:?}, which was unpublished", request.operation.path().unwrap_or_default());
            report(
                Rule::UnpublishWhileInUse,
                "a target that stays published until its pod ends".to_owned(),
                found,
            );
        }
        // The state after concurrent calls on one object is unknown until they end.
        if !others.iter().any(|(other, _)| request.overlaps(other)) {
            let unseen = Volume::new(self.complete_history);
            let volume = watched.map_or(&unseen, |watched| &watched.volume);
            for Breach { rule, expected, found } in volume.breaches(now, request, &self.driver) {
                report(rule, expected, found);
            }
        }
        violations
    }

    fn open_requests(&self, watched: &Watched) -> impl Iterator<Item = (&Request, Instant)> {
        watched.open.iter().filter_map(|call| match self.open.get(call) {
            Some(Open::Request { request, since, .. }) => Some((request, *since)),
            Some(Open::Fact(_)) | None => None,
        })
    }

    /// The path of a request, and the other volume that has this path.
    fn owner_of_path<'a>(&'a self, request: &'a Request) -> Option<(&'a str, &'a str)> {
        let path = request.operation.path()?;
        let owner = self.paths.get(path).filter(|owner| **owner != request.volume)?;
        Some((path, owner))
    }

    fn open(&mut self, now: Instant, call: CallNumber, request: Request) {
        let id = request.volume.clone();
        self.touch(&id);
        let others = self.volumes.get(&id).map(|watched| watched.open.clone()).unwrap_or_default();
        let mut overlapped = false;
        for other in others {
            if let Some(Open::Request { request: other, overlapped: also, .. }) = self.open.get_mut(&other)
                && request.overlaps(other)
                && request != *other
            {
                *also = true;
                overlapped = true;
            }
        }
        self.bytes += request.bytes();
        self.open.insert(call, Open::Request { request, since: now, overlapped });
        if let Some(watched) = self.volumes.get_mut(&id) {
            watched.open.push(call);
        }
        self.evict();
    }

    fn ended(&mut self, now: Instant, call: CallNumber, end: End<'_>) {
        let (request, overlapped) = match self.open.remove(&call) {
            None => return,
            Some(Open::Fact(method)) => return self.learn(method, end),
            Some(Open::Request { request, overlapped, .. }) => (request, overlapped),
        };
        self.bytes = self.bytes.saturating_sub(request.bytes());
        let complete_history = self.complete_history;
        let (code, message) = match end {
            End::Answered { code, message } => (code, message),
            End::Left => (Code::CANCELLED, None),
        };
        if code == Code::OK && !overlapped {
            self.remember_unpublished(&request);
        }
        let expands_on_node = request.method == Method::ControllerExpandVolume && expands_on_node(message);
        self.change(&request.volume, |watched, driver| {
            watched.open.retain(|open| *open != call);
            if expands_on_node {
                watched.volume.expect_expansion(now, driver);
            }
            match request.operation {
                _ if overlapped => watched.volume.mark_unknown(&request),
                Operation::Delete if code == Code::OK => watched.volume = Volume::new(complete_history),
                _ => watched.volume.apply(&request, code, driver),
            }
        });
        self.evict();
    }

    /// Remembers the target of a pod that was published, and is unpublished with success.
    fn remember_unpublished(&mut self, request: &Request) {
        let Operation::Unpublish { target } = &request.operation else { return };
        let was_published =
            self.volumes.get(&request.volume).is_some_and(|watched| watched.volume.is_published(target));
        if was_published && pod_uid(target).is_some() {
            if self.unpublished.len() == MAX_UNPUBLISHED {
                self.unpublished.pop_front();
            }
            self.unpublished.push_back(self.digest.hash_one((&request.volume, target)));
        }
    }

    /// Forgets the target of a request that publishes. Returns true if it was remembered.
    fn forget_unpublished(&mut self, request: &Request) -> bool {
        let Operation::Publish { target, .. } = &request.operation else { return false };
        let digest = self.digest.hash_one((&request.volume, target));
        let at = self.unpublished.iter().position(|unpublished| *unpublished == digest);
        at.and_then(|at| self.unpublished.remove(at)).is_some()
    }

    /// Applies an answer that describes the driver or a created volume. Ignores an answer that cannot be decoded or is
    /// too large.
    fn learn(&mut self, method: Method, end: End<'_>) {
        let End::Answered { code: Code::OK, message: Some(message) } = end else { return };
        if message.len() > MAX_ANSWER {
            return;
        }
        match method {
            Method::CreateVolume => self.created(message),
            Method::NodeGetInfo => {
                if let Ok(csi::NodeGetInfoResponse { node_id, .. }) =
                    csi::NodeGetInfoResponse::decode(message)
                {
                    let is_usable = !node_id.is_empty() && node_id.len() <= MAX_NODE;
                    self.driver.node = is_usable.then(|| node_id.into());
                }
            }
            _ => self.driver.capabilities = capabilities(message).or(self.driver.capabilities),
        }
    }

    /// Adds a created volume, whose state is fully known.
    fn created(&mut self, message: &[u8]) {
        let Ok(answer) = csi::CreateVolumeResponse::decode(message) else { return };
        let id = answer.volume.map(|volume| volume.volume_id).unwrap_or_default();
        // The volume may have been created earlier and be in use.
        if id.is_empty() || id.len() > request::MAX_TEXT || self.volumes.contains_key(&*id) {
            return;
        }
        self.touch(&id);
        self.change(&id, |watched, _| watched.volume = Volume::new(true));
        self.evict();
    }

    /// Changes the state of a volume and everything derived from it.
    fn change(&mut self, id: &str, change: impl FnOnce(&mut Watched, &Facts)) {
        let Some(watched) = self.volumes.get_mut(id) else { return };
        let before: Vec<Box<str>> = watched.volume.paths().map(Box::from).collect();
        change(watched, &self.driver);
        for path in before {
            if !watched.volume.has_path(&path) && self.paths.get(&path).is_some_and(|owner| **owner == *id) {
                self.paths.remove(&path);
            }
        }
        for path in watched.volume.paths() {
            if !self.paths.contains_key(path) {
                self.paths.insert(path.into(), id.into());
            }
        }
        let bytes = watched.volume.bytes() + 2 * id.len();
        self.bytes = self.bytes - watched.bytes + bytes;
        watched.bytes = bytes;
        // The state equals that of a volume without calls, so it need not be stored.
        if watched.open.is_empty() && watched.volume == Volume::new(self.complete_history) {
            self.remove(id);
        }
    }

    /// Adds the volume, or marks it as the most recently used.
    fn touch(&mut self, id: &str) {
        self.uses += 1;
        let last_use = self.uses;
        if let Some(watched) = self.volumes.get_mut(id) {
            watched.last_use = last_use;
        } else {
            let volume = Volume::new(self.complete_history);
            let bytes = volume.bytes() + 2 * id.len();
            self.bytes += bytes;
            self.volumes.insert(id.into(), Watched { volume, open: Vec::new(), last_use, bytes });
        }
    }

    /// Records that a call was not monitored, so the state of its volume is unknown.
    fn mark_unmonitored(&mut self, id: Option<&str>) {
        self.dropped += 1;
        self.complete_history = false;
        if let Some(id) = id {
            self.change(id, |watched, _| watched.volume = Volume::new(false));
        }
    }

    /// Evicts the least recently used volumes above the limits.
    fn evict(&mut self) {
        while self.volumes.len() > self.limits.volumes || self.bytes > self.limits.bytes {
            let idle = self.volumes.iter().filter(|(_, watched)| watched.open.is_empty());
            let Some((id, _)) = idle.min_by_key(|(_, watched)| watched.last_use) else { return };
            self.remove(&id.clone());
            self.dropped += 1;
            self.complete_history = false;
        }
    }

    fn remove(&mut self, id: &str) {
        let Some(watched) = self.volumes.remove(id) else { return };
        self.bytes = self.bytes.saturating_sub(watched.bytes);
        for path in watched.volume.paths() {
            if self.paths.get(path).is_some_and(|owner| **owner == *id) {
                self.paths.remove(path);
            }
        }
    }
}

/// Whether the response describes the driver, or a new volume.
const fn is_fact(method: Method) -> bool {
    matches!(method, Method::NodeGetCapabilities | Method::NodeGetInfo | Method::CreateVolume)
}

/// Whether the answer to a `ControllerExpandVolume` asks for an expansion on the node.
fn expands_on_node(message: Option<&[u8]>) -> bool {
    let message = message.filter(|message| message.len() <= MAX_ANSWER);
    let answer = message.and_then(|message| csi::ControllerExpandVolumeResponse::decode(message).ok());
    answer.is_some_and(|answer| answer.node_expansion_required)
}

fn capabilities(message: &[u8]) -> Option<Capabilities> {
    use csi::node_service_capability::rpc::Type;
    let answer = csi::NodeGetCapabilitiesResponse::decode(message).ok()?;
    Some(Capabilities {
        staging: answer.has(Type::StageUnstageVolume),
        expansion: answer.has(Type::ExpandVolume),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Monitor {
        /// Fails if redundant state is inconsistent.
        pub(in super::super) fn assert_consistent(&self) {
            let volumes: usize = self.volumes.values().map(|watched| watched.bytes).sum();
            let open = self.open.values().map(|open| match open {
                Open::Request { request, .. } => request.bytes(),
                Open::Fact(_) => 0,
            });
            assert_eq!(self.bytes, volumes + open.sum::<usize>());
            for (id, watched) in &self.volumes {
                assert_eq!(watched.bytes, watched.volume.bytes() + 2 * id.len());
                assert!(watched.open.iter().all(|call| self.open.contains_key(call)));
            }
            assert!(self.paths.iter().all(|(path, owner)| self.volumes[owner].volume.has_path(path)));
        }
    }
}
