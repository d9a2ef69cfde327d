//! What is known of a driver on one node.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use prost::Message;

use super::{HASTE, LONG_ROUND, Mode, News, Said, presence_by};
use crate::call::{Fault, NodeId, Origin, Outcome};
use crate::driver_info::info::{Fact, Info, MAX_RECORD, masked};
use crate::driver_info::question::{QUESTIONS, Question};
use csi_proto::Code;

/// After this time a record is written again, though only its time has changed.
const RENEWAL: Duration = Duration::from_secs(3600);

/// Whether a node's driver can be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the inputs of the election")]
pub enum Presence {
    /// It was, the last time.
    Online,
    /// The node could not be reached.
    Offline,
    /// It was never tried, or not since the start.
    Unknown,
    /// The node is online and has no such driver.
    WithoutDriver,
}

/// What is known of a driver on one node.
#[derive(Debug)]
pub struct Entry {
    node: NodeId,
    topology_key: Option<String>,
    info: Info,
    /// What is read of the info.
    node_id: String,
    topology: Option<csi::Topology>,
    presence: Presence,
    pub(super) named: bool,
    /// It is there, as far as was told.
    pub(super) seen: bool,
    /// It says that it is ready, and can be asked.
    pub(super) ready: bool,
    /// Whether the last round that ended has reached the driver; `None` before one has ended.
    pub(super) reached: Option<bool>,
    /// When the next round begins.
    until: Instant,
    asking: bool,
    begun: Option<Instant>,
    /// Another round is to follow this one.
    again: bool,
    /// The next round asks everything.
    full: bool,
    /// This round does.
    asks_all: bool,
    pub(super) misses: u32,
    foreign_name: Option<String>,
    pub(super) said: Said,
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
            presence: Presence::Unknown,
            named,
            seen: false,
            ready: false,
            reached: None,
            until: now,
            asking: false,
            begun: None,
            again: false,
            full: true,
            asks_all: true,
            misses: 0,
            foreign_name: None,
            said: Said::default(),
            as_of: None,
            on_disk: None,
            changed: false,
            saving: false,
        }
    }

    /// What the driver has said.
    #[must_use]
    pub fn info(&self) -> &Info {
        &self.info
    }

    /// The driver's own name for the node; empty if it has no node service.
    #[must_use]
    pub fn node_id(&self) -> &str {
        &self.node_id
    }

    /// Where the node is: as its driver says, or else by the key that stands for nodes. `None` before it was asked.
    #[must_use]
    pub fn topology(&self) -> Option<csi::Topology> {
        self.topology.clone()
    }

    /// Whether the node's driver can be reached.
    #[must_use]
    pub fn presence(&self) -> Presence {
        self.presence
    }

    /// Whether it could be reached the last time.
    #[must_use]
    pub fn is_online(&self) -> bool {
        self.presence == Presence::Online
    }

    /// Whether it has the driver, had it, or may have it.
    #[must_use]
    pub fn is_of_driver(&self) -> bool {
        self.named || self.info.is_complete(true) || self.presence == Presence::Unknown
    }

    /// Whether a round has begun and ended since then.
    pub(super) fn was_asked_since(&self, since: Option<Instant>) -> bool {
        !self.asking && self.begun.is_some_and(|begun| since.is_some_and(|since| begun > since))
    }

    pub(super) fn restore(&mut self, info: Info, as_of: SystemTime) {
        self.info = info;
        (self.as_of, self.on_disk) = (Some(as_of), Some(as_of));
        self.read();
    }

    /// Reads what is asked for often.
    fn read(&mut self) {
        // Nothing of a driver without a node service.
        let info = self.info.decoded::<csi::NodeGetInfoResponse>(Question::NodeInfo).unwrap_or_default();
        self.topology = self.info.get(Question::NodeInfo).map(|_| {
            let told = info.accessible_topology.unwrap_or_default();
            match &self.topology_key {
                Some(label) if told.segments.is_empty() => {
                    csi::Topology::from_iter([(label.as_str(), self.node.as_str())])
                }
                _ => told,
            }
        });
        self.node_id = info.node_id;
    }

    /// Takes in how it can be reached, and says whether that is new.
    pub(super) fn set(&mut self, presence: Presence) -> bool {
        if presence != Presence::Online {
            self.ready = false;
            self.full = true;
        }
        let news = self.presence != presence;
        self.presence = presence;
        #[cfg(feature = "runtime")]
        if news {
            tracing::debug!(node = %self.node, ?presence, "presence of a node's driver");
        }
        news
    }

    pub(super) fn arrived(&mut self, now: Instant) {
        (self.seen, self.misses) = (true, 0);
        if matches!(self.presence, Presence::Offline | Presence::WithoutDriver) {
            self.set(Presence::Unknown);
        }
        self.hasten(now);
    }

    pub(super) fn left(&mut self, now: Instant) {
        self.seen = false;
        self.set(Presence::Offline);
        self.until = now + LONG_ROUND;
    }

    pub(super) fn current(&mut self, now: Instant) {
        if !self.seen && self.presence == Presence::Unknown {
            self.set(Presence::Offline);
            // Those that are there come first.
            self.until = now + LONG_ROUND;
        }
    }

    /// Has the next round come as soon as may be.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.again |= self.asking;
        let next = self.begun.map_or(now, |begun| now.max(begun + HASTE));
        self.until = self.until.min(next);
    }

    /// Has everything asked again, and now.
    pub(super) fn ask_all(&mut self, now: Instant) {
        self.again |= self.asking;
        self.full = true;
        self.until = now;
    }

    /// When the next round begins; `None` while one is under way.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        (!self.asking).then_some(self.until)
    }

    pub(super) fn begin(&mut self, now: Instant) {
        (self.asking, self.again, self.begun) = (true, false, Some(now));
        self.asks_all = std::mem::take(&mut self.full) || self.reached != Some(true);
    }

    pub(super) fn rest(&mut self, pause: Duration, now: Instant) {
        self.asking = false;
        self.until = match (std::mem::take(&mut self.again), self.full) {
            (true, true) => now,
            (true, false) => self.begun.map_or(now, |begun| now.max(begun + HASTE)),
            (false, _) => now + pause,
        };
    }

    /// Takes in an answer. Says what the round asks next; nothing at its good end.
    pub(super) fn take(
        &mut self,
        driver: &DriverName,
        question: Question,
        answer: Result<Bytes, Outcome>,
        mode: &Mode,
        news: &mut Vec<News>,
    ) -> Result<Option<Question>, Outcome> {
        use Question as Q;
        match answer {
            Ok(answer) if question == Q::Probe => {
                let probe = csi::ProbeResponse::decode(answer).map_err(|_| unreadable(question))?;
                self.ready = probe.ready.unwrap_or(true);
            }
            Ok(answer) if question == Q::PluginInfo => {
                let info = self.described(driver, answer, news)?;
                self.asks_all |=
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
            self.read();
        }
        is_new
    }

    /// What the driver says of itself, under the name that is configured.
    fn described(
        &mut self,
        driver: &DriverName,
        answer: Bytes,
        news: &mut Vec<News>,
    ) -> Result<Bytes, Outcome> {
        let mut info =
            csi::GetPluginInfoResponse::decode(answer).map_err(|_| unreadable(Question::PluginInfo))?;
        if info.name != driver.as_ref() && self.foreign_name.as_ref() != Some(&info.name) {
            self.foreign_name = Some(info.name.clone());
            news.push(News::ForeignName { found: info.name });
        }
        info.name = driver.to_string();
        Ok(info.encode_to_vec().into())
    }

    /// Whether a question is one of this round. Services that the driver does not have need none.
    fn is_asked(&mut self, question: Question, mode: &Mode) -> bool {
        let service = match question {
            Question::Probe => return true,
            Question::NodeInfo => return mode.is_together() || (self.asks_all && mode.asks_node_info()),
            _ if !self.asks_all => return false,
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

    /// The good end of a round.
    pub(super) fn confirm(&mut self, time: SystemTime) {
        self.reached = Some(true);
        self.as_of = Some(time);
        self.misses = if self.ready { 0 } else { self.misses.saturating_add(1) };
    }

    /// The other end.
    pub(super) fn fail(&mut self, question: Question, outcome: &Outcome) {
        self.ready = false;
        self.reached = Some(false);
        self.misses = self.misses.saturating_add(1);
        let presence = match &outcome.origin {
            // It is there and does not do as it should, which is no better than away.
            Origin::Driver | Origin::Endpoint => (question != Question::Probe).then_some(Presence::Offline),
            Origin::Relay(fault) => match &**fault {
                // A node that does not answer so long is as good as away.
                Fault::Deadline { .. } => Some(Presence::Offline),
                fault => presence_by(fault),
            },
        };
        if let Some(presence) = presence {
            self.set(presence);
        }
    }

    /// See [`Cache::take_save`](super::Cache::take_save). `close`: its age is shown.
    pub(super) fn take_save(&mut self, close: bool, settles: bool) -> Option<(Bytes, SystemTime)> {
        let as_of = self.as_of?;
        let is_newer = self.on_disk != Some(as_of);
        let old = self.on_disk.is_none_or(|on_disk| {
            // A clock that was put back makes a record that is too young: write the right time.
            as_of.duration_since(on_disk).map_or(true, |since| since >= RENEWAL)
        });
        // From a failure on the age counts.
        let wanted = self.changed || (close && is_newer && (old || settles || self.reached == Some(false)));
        if !wanted || (self.saving && !settles) {
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
    let text = format!("the answer to {} is not the protobuf message that it should be", question.path());
    Outcome::from_endpoint(Code::UNAVAILABLE, text)
}
