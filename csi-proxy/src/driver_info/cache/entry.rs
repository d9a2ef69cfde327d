//! What is known of a driver on one node.

use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::plugin_capability::service::Type as ServiceType;
use prost::Message;

use super::{HASTE, Key, LONG_ROUND, News, Said, presence_by};
use crate::driver_info::info::{Fact, Info, MAX_RECORD, mask_controller, mask_group, mask_node, mask_plugin};
use crate::driver_info::question::Question;
use crate::fault::Fault;
use crate::outcome::{Origin, Outcome};
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
    key: Key,
    topology_key: Option<String>,
    info: Info,
    /// What is read of the info.
    node_id: String,
    topology: Option<csi::Topology>,
    presence: Presence,
    named: bool,
    /// It is there, as far as was told.
    seen: bool,
    ready: bool,
    reached: Option<bool>,
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
    misses: u32,
    foreign_name: Option<String>,
    pub(super) said: Said,
    as_of: Option<SystemTime>,
    on_disk: Option<SystemTime>,
    changed: bool,
    saving: bool,
    failing: bool,
}

impl Entry {
    pub(super) fn new(key: Key, named: bool, topology_key: Option<String>, now: Instant) -> Self {
        Self {
            key,
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
            failing: false,
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

    /// Whether it says that it is ready, and can be asked.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether the last round that ended has reached the driver; `None` before one has ended.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        self.reached
    }

    /// Whether a record of it is on its way to the disk.
    #[cfg(feature = "runtime")]
    pub(crate) fn is_saving(&self) -> bool {
        self.saving
    }

    pub(super) fn is_named(&self) -> bool {
        self.named
    }

    pub(super) fn is_seen(&self) -> bool {
        self.seen
    }

    pub(super) fn misses(&self) -> u32 {
        self.misses
    }

    pub(super) fn as_of(&self) -> Option<SystemTime> {
        self.as_of
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
        self.topology = self.info.node.as_ref().map(|_| {
            let told = self.info.node_info().accessible_topology.unwrap_or_default();
            match (&self.topology_key, &self.key) {
                (Some(label), Some(node)) if told.segments.is_empty() => {
                    csi::Topology::from_iter([(label.as_str(), node.as_str())])
                }
                _ => told,
            }
        });
        self.node_id = self.info.node_info().node_id;
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
        if let Some(node) = self.key.as_ref().filter(|_| news) {
            tracing::debug!(%node, ?presence, "presence of a node's driver");
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
        node_info: bool,
        together: bool,
        news: &mut Vec<News>,
    ) -> Result<Option<Question>, Outcome> {
        let before = self.info.clone();
        match (question, answer) {
            (Question::PluginInfo, Ok(answer)) => self.take_info(driver, answer, news)?,
            (Question::PluginCapabilities, Ok(answer)) => {
                put(&mut self.info.plugin, mask_plugin(answer), question)?;
            }
            (Question::ControllerCapabilities, Ok(answer)) => {
                put(&mut self.info.controller, mask_controller(answer).map(Fact::Answer), question)?;
            }
            (Question::GroupControllerCapabilities, Ok(answer)) => {
                put(&mut self.info.group, mask_group(answer).map(Fact::Answer), question)?;
            }
            (Question::NodeCapabilities, Ok(answer)) => {
                put(&mut self.info.node_service, mask_node(answer).map(Fact::Answer), question)?;
            }
            // Its segments are labels of a Node, of which none is unknown here.
            (Question::NodeInfo, Ok(answer)) => {
                let read = csi::NodeGetInfoResponse::decode(answer.clone());
                put(&mut self.info.node, read.ok().map(|_| Fact::Answer(answer)), question)?;
            }
            (Question::Probe, Ok(answer)) => {
                let probe = csi::ProbeResponse::decode(answer).map_err(|_| unreadable(question))?;
                self.ready = probe.ready.unwrap_or(true);
            }
            (_, Err(outcome)) => {
                let is_not_offered = outcome.origin == Origin::Driver && outcome.code == Code::UNIMPLEMENTED;
                match self.info.fact_of(question).filter(|_| is_not_offered) {
                    Some(place) => *place = Some(Fact::NotOffered(outcome.message)),
                    None => return Err(outcome),
                }
            }
        }
        let next = self.next(question, node_info, together);
        if self.info != before {
            self.changed = true;
            self.read();
        }
        if next == Some(Question::Probe) && (self.presence != Presence::Online || !together) {
            self.presence = Presence::Online;
        }
        Ok(next)
    }

    fn take_info(&mut self, driver: &DriverName, answer: Bytes, news: &mut Vec<News>) -> Result<(), Outcome> {
        let mut info =
            csi::GetPluginInfoResponse::decode(answer).map_err(|_| unreadable(Question::PluginInfo))?;
        if info.name != driver.as_ref() && self.foreign_name.as_ref() != Some(&info.name) {
            self.foreign_name = Some(info.name.clone());
            news.push(News::ForeignName { found: info.name });
        }
        info.name = driver.to_string();
        let info = Bytes::from(info.encode_to_vec());
        self.asks_all |= self.info.info.as_ref() != Some(&info);
        self.info.info = Some(info);
        Ok(())
    }

    /// The next question of the round; none after its last one. Services that the driver does not have need no question.
    fn next(&mut self, done: Question, node_info: bool, together: bool) -> Option<Question> {
        use Question as Q;
        let not_offered =
            |service: &str| Some(Fact::NotOffered(format!("the driver has no {service} service")));
        let all = self.asks_all || !self.info.is_complete(node_info);
        if done == Q::PluginInfo && all {
            return Some(Q::PluginCapabilities);
        }
        if done == Q::PluginCapabilities {
            if self.info.has_service(ServiceType::ControllerService) {
                return Some(Q::ControllerCapabilities);
            }
            self.info.controller = not_offered("controller");
        }
        if matches!(done, Q::PluginCapabilities | Q::ControllerCapabilities) {
            if self.info.has_service(ServiceType::GroupControllerService) {
                return Some(Q::GroupControllerCapabilities);
            }
            self.info.group = not_offered("group controller");
        }
        match done {
            Q::Probe => None,
            Q::PluginInfo if together => Some(Q::NodeInfo),
            Q::PluginInfo | Q::NodeInfo => Some(Q::Probe),
            Q::NodeCapabilities if node_info => Some(Q::NodeInfo),
            Q::NodeCapabilities => Some(Q::Probe),
            Q::PluginCapabilities | Q::ControllerCapabilities | Q::GroupControllerCapabilities => {
                Some(Q::NodeCapabilities)
            }
        }
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
        let wanted = self.changed
            || self.failing
            || (close && is_newer && (old || settles || self.reached == Some(false)));
        if !wanted || self.saving {
            return None;
        }
        let record = self.info.encode(as_of);
        if record.len() > MAX_RECORD {
            return None;
        }
        (self.saving, self.changed) = (true, false);
        Some((record, as_of))
    }

    pub(super) fn saved(&mut self, as_of: SystemTime, done: bool) -> bool {
        self.saving = false;
        if done {
            self.on_disk = Some(as_of);
        }
        let was_failing = std::mem::replace(&mut self.failing, !done);
        !done && !was_failing
    }
}

fn put<T>(place: &mut Option<T>, found: Option<T>, question: Question) -> Result<(), Outcome> {
    if found.is_none() {
        return Err(unreadable(question));
    }
    *place = found;
    Ok(())
}

fn unreadable(question: Question) -> Outcome {
    let text = format!("the answer to {} is not the protobuf message that it should be", question.path());
    Outcome::from_endpoint(Code::UNAVAILABLE, text)
}
