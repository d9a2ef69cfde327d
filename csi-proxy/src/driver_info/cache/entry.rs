//! The cache entry of a driver on one node.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use prost::Message;

use super::rounds::{LONG_INTERVAL, MIN_REFRESH_INTERVAL};
use super::{Mode, Notice, Reported, implied_presence};
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::driver_info::info::{Fact, Info, MAX_RECORD, masked};
use crate::driver_info::question::{QUESTIONS, Question};
use crate::routing::ClaimConflict;
use csi_proto::Code;

/// A record is written again after this time even if only its time has changed.
const RENEWAL: Duration = Duration::from_secs(3600);

/// The presence of the driver on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// The driver was reachable when it was last called.
    Online,
    /// The node or its driver was not reachable.
    Offline,
    /// The node was not called since the process started or the node connected.
    Unknown,
    /// The node is online and has no such driver.
    WithoutDriver,
}

/// Whether a node may take part with what it reports about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Admission {
    /// Nodes are not checked, or what this one reports is recorded as its own.
    Admitted,
    /// What the node reports is not recorded yet.
    Pending,
    /// The node reports what is not its own.
    Refused(ClaimConflict),
}

/// The cache entry of a driver on one node.
#[derive(Debug)]
pub(crate) struct Entry {
    node: NodeId,
    topology_key: Option<String>,
    info: Info,
    /// The `node_id` in the stored `NodeGetInfo` response.
    node_id: String,
    topology: Option<csi::Topology>,
    pub(super) admission: Admission,
    /// Whether what the node reports must be admitted.
    pub(super) checked: bool,
    /// Whether it is recorded that the node had the driver.
    pub(super) recorded: bool,
    presence: Presence,
    pub(super) named: bool,
    /// Whether the node is connected to the hub.
    pub(super) seen: bool,
    /// Whether the driver is ready and reachable.
    pub(super) ready: bool,
    /// Whether the last complete round reached the driver; `None` before the first.
    pub(super) reached: Option<bool>,
    /// When the next round begins.
    until: Instant,
    /// Whether a call waits for the next round.
    pub(super) awaited: bool,
    in_round: bool,
    begun: Option<Instant>,
    /// Whether the next round begins without the usual interval.
    again: bool,
    /// Whether the next round refreshes everything.
    full: bool,
    /// Whether this round refreshes everything.
    refreshes_all: bool,
    pub(super) failures: u32,
    mismatched_name: Option<String>,
    pub(super) reported: Reported,
    pub(super) as_of: Option<SystemTime>,
    on_disk: Option<SystemTime>,
    changed: bool,
    saving: bool,
}

impl Entry {
    pub(super) fn new(node: NodeId, named: bool, topology_key: Option<String>, now: Instant) -> Self {
        Self {
            node,
            topology_key,
            info: Info::default(),
            node_id: String::new(),
            topology: None,
            admission: Admission::Admitted,
            checked: false,
            recorded: false,
            presence: Presence::Unknown,
            named,
            seen: false,
            ready: false,
            reached: None,
            until: now,
            awaited: false,
            in_round: false,
            begun: None,
            again: false,
            full: true,
            refreshes_all: true,
            failures: 0,
            mismatched_name: None,
            reported: Reported::default(),
            as_of: None,
            on_disk: None,
            changed: false,
            saving: false,
        }
    }

    /// The answers of the driver.
    pub(crate) fn info(&self) -> &Info {
        &self.info
    }

    /// Whether the controller service has this capability.
    pub(crate) fn has_controller_rpc(&self, rpc: csi::controller_service_capability::rpc::Type) -> bool {
        let known =
            self.info.decoded::<csi::ControllerGetCapabilitiesResponse>(Question::ControllerCapabilities);
        known.is_some_and(|known| known.has(rpc))
    }

    /// The `node_id` of the driver; empty if it has no node service, or the node is not admitted.
    pub(crate) fn node_id(&self) -> &str {
        if self.admission == Admission::Admitted { &self.node_id } else { "" }
    }

    /// The topology of the node, from its driver or else from the configured key. `None` before the driver was
    /// reached, or if the node is not admitted.
    pub(crate) fn topology(&self) -> Option<&csi::Topology> {
        self.topology.as_ref().filter(|_| self.admission == Admission::Admitted)
    }

    /// Why the node takes no part; `None` if it does.
    pub(crate) fn conflict(&self) -> Option<&ClaimConflict> {
        match &self.admission {
            Admission::Refused(conflict) => Some(conflict),
            Admission::Admitted | Admission::Pending => None,
        }
    }

    /// Whether the node was never reached, and neither configuration nor record names it.
    pub(crate) fn is_newcomer(&self) -> bool {
        !self.named && !self.recorded && self.topology.is_none()
    }

    /// The `node_id` and topology that the node reports, whether admitted or not; `None` before the driver was
    /// reached.
    pub(super) fn reported(&self) -> Option<(&str, &csi::Topology)> {
        Some((&self.node_id, self.topology.as_ref()?))
    }

    /// Whether the node's driver can be reached.
    pub(crate) fn presence(&self) -> Presence {
        self.presence
    }

    /// Whether the driver was reachable when it was last called.
    pub(crate) fn is_online(&self) -> bool {
        self.presence == Presence::Online
    }

    /// Whether the node has, had, or may have the driver.
    pub(crate) fn is_of_driver(&self) -> bool {
        self.named || self.recorded || self.info.is_complete(true) || self.presence == Presence::Unknown
    }

    /// Whether the last round has begun after `since` and has ended.
    pub(super) fn was_asked_since(&self, since: Option<Instant>) -> bool {
        !self.in_round && self.begun.is_some_and(|begun| since.is_some_and(|since| begun > since))
    }

    pub(super) fn restore(&mut self, info: Info, as_of: SystemTime) {
        self.info = info;
        (self.as_of, self.on_disk) = (Some(as_of), Some(as_of));
        self.decode_info();
    }

    /// Decodes frequently used values.
    fn decode_info(&mut self) {
        let before = self.reported().map(|(node_id, topology)| (node_id.to_owned(), topology.clone()));
        // The default is for a driver without a node service.
        let info = self.info.decoded::<csi::NodeGetInfoResponse>(Question::NodeInfo).unwrap_or_default();
        self.topology = self.info.get(Question::NodeInfo).map(|_| {
            let reported = info.accessible_topology.unwrap_or_default();
            match &self.topology_key {
                Some(label) if reported.segments.is_empty() => {
                    csi::Topology::from_iter([(label.as_str(), self.node.as_str())])
                }
                _ => reported,
            }
        });
        self.node_id = info.node_id;
        let now = self.reported().map(|(node_id, topology)| (node_id.to_owned(), topology.clone()));
        if self.checked && before != now {
            self.admission = Admission::Pending;
        }
    }

    /// Sets the presence and returns whether it changed.
    pub(super) fn set_presence(&mut self, presence: Presence) -> bool {
        if presence != Presence::Online {
            self.ready = false;
            self.full = true;
        }
        let changed = self.presence != presence;
        self.presence = presence;
        #[cfg(feature = "runtime")]
        if changed {
            tracing::debug!(node = %self.node, ?presence, "presence of a node's driver");
        }
        changed
    }

    pub(super) fn arrived(&mut self, now: Instant) {
        (self.seen, self.failures) = (true, 0);
        if matches!(self.presence, Presence::Offline | Presence::WithoutDriver) {
            self.set_presence(Presence::Unknown);
        }
        self.refresh_soon(now);
    }

    pub(super) fn left(&mut self, now: Instant) {
        self.seen = false;
        self.set_presence(Presence::Offline);
        self.until = now + LONG_INTERVAL;
    }

    pub(super) fn synced(&mut self, now: Instant) {
        if !self.seen && self.presence == Presence::Unknown {
            self.set_presence(Presence::Offline);
            // Connected nodes are refreshed first.
            self.until = now + LONG_INTERVAL;
        }
    }

    /// Begins the next round as soon as permitted.
    pub(super) fn refresh_soon(&mut self, now: Instant) {
        self.again |= self.in_round;
        let next = self.begun.map_or(now, |begun| now.max(begun + MIN_REFRESH_INTERVAL));
        self.until = self.until.min(next);
    }

    /// Begins the next round this long after the last one, or at once if that is over. Returns whether this is earlier than
    /// before.
    pub(super) fn refresh_after(&mut self, interval: Duration) -> bool {
        let Some(next) = self.begun.map(|begun| begun + interval) else { return false };
        let is_earlier = next < self.until && !self.in_round;
        if is_earlier {
            self.until = next;
        }
        is_earlier
    }

    /// Begins the next round as soon as permitted, before those that no call waits for.
    pub(super) fn refresh_first(&mut self, now: Instant) {
        self.awaited = true;
        self.refresh_soon(now);
    }

    /// Refreshes everything now.
    pub(super) fn refresh_all(&mut self, now: Instant) {
        self.again |= self.in_round;
        self.full = true;
        self.until = now;
    }

    /// When the next round begins; `None` during a round.
    pub(crate) fn due(&self) -> Option<Instant> {
        (!self.in_round).then_some(self.until)
    }

    pub(super) fn begin(&mut self, now: Instant) {
        (self.in_round, self.again, self.awaited, self.begun) = (true, false, false, Some(now));
        self.refreshes_all = std::mem::take(&mut self.full) || self.reached != Some(true);
    }

    pub(super) fn schedule_next(&mut self, pause: Duration, now: Instant) {
        self.in_round = false;
        self.until = match (std::mem::take(&mut self.again), self.full) {
            (true, true) => now,
            (true, false) => self.begun.map_or(now, |begun| now.max(begun + MIN_REFRESH_INTERVAL)),
            (false, _) => now + pause,
        };
    }

    /// Handles an answer. Returns the next call of the round, or `None` if the round succeeded.
    pub(super) fn handle_answer(
        &mut self,
        driver: &DriverName,
        question: Question,
        answer: Result<Bytes, Outcome>,
        mode: &Mode,
        notices: &mut Vec<Notice>,
    ) -> Result<Option<Question>, Outcome> {
        use Question as Q;
        match answer {
            Ok(answer) if question == Q::Probe => {
                let probe = csi::ProbeResponse::decode(answer).map_err(|_| unreadable(question))?;
                self.ready = probe.ready.unwrap_or(true);
            }
            Ok(answer) if question == Q::PluginInfo => {
                let info = self.with_configured_name(driver, answer, notices)?;
                self.refreshes_all |=
                    self.learn(question, Ok(info)) || !self.info.is_complete(mode.asks_node_info());
            }
            Ok(answer) => {
                let answer = masked(question, answer).ok_or_else(|| unreadable(question))?;
                self.learn(question, Ok(answer));
            }
            Err(outcome)
                if outcome.origin == Origin::Driver
                    && outcome.code == Code::UNIMPLEMENTED
                    && !matches!(question, Q::PluginInfo | Q::PluginCapabilities | Q::Probe) =>
            {
                self.learn(question, Err(outcome.message));
            }
            Err(outcome) => return Err(outcome),
        }
        let rest = QUESTIONS.into_iter().map(|(next, _)| next).filter(|next| *next > question);
        let next = rest.into_iter().find(|next| self.is_asked(*next, mode));
        if next == Some(Q::Probe) {
            self.presence = Presence::Online;
        }
        Ok(next)
    }

    fn learn(&mut self, question: Question, fact: Fact) -> bool {
        let is_new = self.info.put(question, fact);
        if is_new {
            self.changed = true;
            self.decode_info();
        }
        is_new
    }

    /// The `GetPluginInfo` response of the driver, with the configured name of the driver.
    fn with_configured_name(
        &mut self,
        driver: &DriverName,
        answer: Bytes,
        notices: &mut Vec<Notice>,
    ) -> Result<Bytes, Outcome> {
        let mut info =
            csi::GetPluginInfoResponse::decode(answer).map_err(|_| unreadable(Question::PluginInfo))?;
        if info.name != driver.as_ref() && self.mismatched_name.as_ref() != Some(&info.name) {
            self.mismatched_name = Some(info.name.clone());
            notices.push(Notice::NameMismatch { found: info.name });
        }
        info.name = driver.to_string();
        Ok(info.encode_to_vec().into())
    }

    /// Whether a call is part of this round. A controller service is called only if the driver has it.
    fn is_asked(&mut self, question: Question, mode: &Mode) -> bool {
        let service = match question {
            Question::Probe => return true,
            Question::NodeInfo => return mode.is_together() || (self.refreshes_all && mode.asks_node_info()),
            _ if !self.refreshes_all => return false,
            Question::ControllerCapabilities => (ServiceType::ControllerService, "controller"),
            Question::GroupControllerCapabilities => {
                (ServiceType::GroupControllerService, "group controller")
            }
            Question::PluginInfo | Question::PluginCapabilities | Question::NodeCapabilities => return true,
        };
        let has_service = self.info.has_service(service.0);
        if !has_service {
            self.learn(question, Err(format!("the driver has no {} service", service.1)));
        }
        has_service
    }

    /// Ends a successful round.
    pub(super) fn confirm(&mut self, time: SystemTime) {
        self.reached = Some(true);
        self.as_of = Some(time);
        self.failures = if self.ready { 0 } else { self.failures.saturating_add(1) };
    }

    /// Ends a failed round.
    pub(super) fn fail(&mut self, question: Question, outcome: &Outcome) {
        self.ready = false;
        self.reached = Some(false);
        self.failures = self.failures.saturating_add(1);
        let presence = match &outcome.origin {
            // The driver is reachable but misbehaves, which is equivalent to offline.
            Origin::Driver | Origin::Endpoint => (question != Question::Probe).then_some(Presence::Offline),
            Origin::Relay(fault) => match &**fault {
                // A node that does not answer for this long, or with so much, counts as offline.
                Fault::Deadline { .. } | Fault::ReplyTooLarge { .. } => Some(Presence::Offline),
                fault => implied_presence(fault),
            },
        };
        if let Some(presence) = presence {
            self.set_presence(presence);
        }
    }

    /// See [`Cache::take_record`](super::Cache::take_record). `reports_age` marks an entry whose age is reported:
    /// its time must be current on disk.
    pub(super) fn take_record(&mut self, reports_age: bool, is_last: bool) -> Option<(Bytes, SystemTime)> {
        let as_of = self.as_of?;
        let is_newer = self.on_disk != Some(as_of);
        let old = self.on_disk.is_none_or(|on_disk| {
            // A clock that was set back leaves a record from the future: write the correct time.
            as_of.duration_since(on_disk).map_or(true, |since| since >= RENEWAL)
        });
        // After a failed round, the stored time shows how old the answers are.
        let wanted =
            self.changed || (reports_age && is_newer && (old || is_last || self.reached == Some(false)));
        if !wanted || (self.saving && !is_last) {
            return None;
        }
        let record = self.info.encode(as_of);
        if record.len() > MAX_RECORD {
            return None;
        }
        (self.saving, self.changed) = (true, false);
        Some((record, as_of))
    }

    pub(super) fn saved(&mut self, as_of: SystemTime, done: bool) {
        self.saving = false;
        match done {
            true => self.on_disk = Some(as_of),
            false => self.changed = true,
        }
    }
}

fn unreadable(question: Question) -> Outcome {
    let text = format!("invalid response to {}; expected its protobuf message", question.path());
    Outcome::from_endpoint(Code::UNAVAILABLE, text)
}
