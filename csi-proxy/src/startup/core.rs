//! When to ask a driver, and what to answer meanwhile. No clock, no call: events in, effects out.

use std::time::{Duration, Instant};

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1 as csi;
use prost::Message;

use super::facts::{Fact, Facts, mask_controller, mask_group, mask_node, mask_plugin};
use super::question::Question;
use crate::outcome::{Origin, Outcome};
use csi_proto::Code;

/// First pause after a failed round; doubles from round to round.
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Longest pause while nothing is known.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Pause after a good round, and the longest once everything is known.
const ROUND: Duration = Duration::from_secs(10);

/// Shortest time between two rounds that are begun because a node is online.
const HASTE: Duration = Duration::from_secs(1);

/// Asks a driver in rounds, and answers for it.
///
/// A round is `GetPluginInfo`, then, if anything is missing, the vendor's version has changed or the driver was away, the
/// capabilities and, [where it is asked for](Startup::asking_node_info), `NodeGetInfo`, then `Probe`. A round that fails is tried again after 1 s, 2 s, ... 30 s (10 s once everything is known); a good
/// one is repeated after 10 s. While the driver is not ready, a node that comes online has a round begin at once, at most one a second,
/// however many nodes come and go.
///
/// Answers meanwhile: `GetPluginInfo` always (version `unknown` until the driver was reached), `Probe` always with success and
/// with `ready` only if the last round reached a driver that is ready, capabilities as last learnt. Before they were learnt
/// the asker must wait: an empty list would make a sidecar leave out work for good.
#[derive(Debug)]
pub struct Startup {
    driver: DriverName,
    facts: Facts,
    ready: bool,
    /// Whether the last round went through.
    reached: bool,
    pause: Duration,
    phase: Phase,
    asks_node_info: bool,
    /// A round was asked for while one was running.
    again: bool,
    /// A node came online while a round was running.
    online: bool,
    /// From when on a node that comes online has a round begin.
    hastens: Instant,
    foreign_name: Option<String>,
    told: Option<Told>,
}

/// What the operator was last told of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Reached,
    Unreachable,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Resting { until: Instant },
    Asking { question: Question, capabilities: bool },
}

/// What happened.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the inputs of the state machine")]
pub enum Event {
    /// The time given by [`Startup::next_wakeup`] has come.
    Wake,
    /// The node or the driver has come back: do not wait for the next round.
    Returned,
    /// The node, or one of the route, is online. Of interest only while the driver is not ready.
    Online,
    /// A question that was asked has its answer.
    Answered(Question, Result<Bytes, Outcome>),
}

/// What to do.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of the state machine")]
pub enum Effect {
    /// Ask the driver, and report with [`Event::Answered`].
    Ask(Question),
    /// The facts have changed: keep them, and tell those who wait.
    Learnt,
    /// Tell the operator: the driver calls itself otherwise than it was configured.
    ForeignName {
        /// What it calls itself.
        found: String,
    },
    /// Tell the operator: the driver cannot be asked. Once, until it can.
    Unreachable(Outcome),
    /// Tell the operator: the driver can be asked, for the first time or again.
    Reached,
    /// A round has gone through: the facts are as the driver says them now.
    Confirmed,
}

/// What to tell an asker.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "the outputs of the state machine")]
pub enum Answer {
    /// This response message.
    Message(Bytes),
    /// This status.
    Status(Code, String),
    /// Nothing yet: ask again after the next [`Effect::Learnt`].
    Wait,
}

impl Startup {
    /// Knows what was kept, if anything, and wants its first round at once.
    #[must_use]
    pub fn new(driver: DriverName, facts: Facts, now: Instant) -> Self {
        Self {
            driver,
            facts,
            ready: false,
            reached: false,
            pause: FIRST_PAUSE,
            phase: Phase::Resting { until: now },
            asks_node_info: false,
            again: false,
            online: false,
            hastens: now,
            foreign_name: None,
            told: None,
        }
    }

    /// The same that asks `NodeGetInfo` too, or not.
    #[must_use]
    pub fn asking_node_info(mut self, asks: bool) -> Self {
        self.asks_node_info = asks;
        self
    }

    /// What is known.
    #[must_use]
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// Whether the last round that ended has reached the driver; `None` before one has ended.
    #[must_use]
    pub fn reached(&self) -> Option<bool> {
        self.told.map(|told| told == Told::Reached)
    }

    /// Whether the driver says that it is ready, and can be asked.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready
    }

    /// When to send [`Event::Wake`]; `None` while an answer is awaited.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        match self.phase {
            Phase::Resting { until } => Some(until),
            Phase::Asking { .. } => None,
        }
    }

    /// What to tell an asker now.
    #[must_use]
    pub fn answer(&self, question: Question) -> Answer {
        let fact = |fact: &Option<Fact>| match fact {
            Some(Fact::Answer(answer)) => Answer::Message(answer.clone()),
            Some(known @ Fact::NotOffered(text)) => Answer::Status(known.code(), text.clone()),
            None => Answer::Wait,
        };
        match question {
            Question::PluginInfo => {
                Answer::Message(self.facts.info.clone().unwrap_or_else(|| self.unknown_info()))
            }
            Question::PluginCapabilities => self.facts.plugin.clone().map_or(Answer::Wait, Answer::Message),
            Question::ControllerCapabilities => fact(&self.facts.controller),
            Question::GroupControllerCapabilities => fact(&self.facts.group),
            Question::NodeCapabilities => fact(&self.facts.node_service),
            Question::NodeInfo => fact(&self.facts.node),
            Question::Probe => {
                Answer::Message(csi::ProbeResponse { ready: Some(self.ready) }.encode_to_vec().into())
            }
        }
    }

    /// Takes an event in. `now` never goes back.
    pub fn handle(&mut self, event: Event, now: Instant) -> Vec<Effect> {
        match (event, self.phase) {
            (Event::Wake, Phase::Resting { until }) if now >= until => self.begin(),
            (Event::Returned, Phase::Resting { .. }) => {
                self.reached = false;
                self.begin()
            }
            (Event::Returned, Phase::Asking { .. }) => {
                self.again = true;
                Vec::new()
            }
            (Event::Online, Phase::Resting { until }) => self.hasten(until, now),
            (Event::Online, Phase::Asking { .. }) => {
                self.online = true;
                Vec::new()
            }
            (Event::Answered(answered, answer), Phase::Asking { question, capabilities })
                if answered == question =>
            {
                self.answered(question, capabilities, answer, now)
            }
            (Event::Wake | Event::Answered(..), _) => Vec::new(),
        }
    }

    /// Has the next round come as soon as may be, unless all is well.
    fn hasten(&mut self, until: Instant, now: Instant) -> Vec<Effect> {
        if self.ready {
            return Vec::new();
        }
        if now < self.hastens {
            self.phase = Phase::Resting { until: until.min(self.hastens) };
            return Vec::new();
        }
        self.hastens = now + HASTE;
        self.begin()
    }

    fn begin(&mut self) -> Vec<Effect> {
        self.again = false;
        let capabilities = !self.reached || !self.is_complete();
        self.ask(Question::PluginInfo, capabilities)
    }

    fn ask(&mut self, question: Question, capabilities: bool) -> Vec<Effect> {
        self.phase = Phase::Asking { question, capabilities };
        vec![Effect::Ask(question)]
    }

    fn answered(
        &mut self,
        question: Question,
        mut capabilities: bool,
        answer: Result<Bytes, Outcome>,
        now: Instant,
    ) -> Vec<Effect> {
        let before = self.facts.clone();
        let mut effects = Vec::new();
        let taken = match (question, answer) {
            (Question::PluginInfo, Ok(answer)) => self.take_info(answer, &mut capabilities, &mut effects),
            (Question::PluginCapabilities, Ok(answer)) => {
                take(&mut self.facts.plugin, mask_plugin(answer), question)
            }
            (Question::ControllerCapabilities, Ok(answer)) => {
                take(&mut self.facts.controller, mask_controller(answer).map(Fact::Answer), question)
            }
            (Question::GroupControllerCapabilities, Ok(answer)) => {
                take(&mut self.facts.group, mask_group(answer).map(Fact::Answer), question)
            }
            (Question::NodeCapabilities, Ok(answer)) => {
                take(&mut self.facts.node_service, mask_node(answer).map(Fact::Answer), question)
            }
            // Its segments are labels of a Node, of which none is unknown here.
            (Question::NodeInfo, Ok(answer)) => {
                let read = csi::NodeGetInfoResponse::decode(answer.clone());
                take(&mut self.facts.node, read.ok().map(|_| Fact::Answer(answer)), question)
            }
            (Question::Probe, Ok(answer)) => csi::ProbeResponse::decode(answer)
                .map(|probe| self.ready = probe.ready.unwrap_or(true))
                .map_err(|_| unreadable(question)),
            (_, Err(outcome)) => match self.facts.fact_of(question).filter(|_| is_not_offered(&outcome)) {
                Some(place) => {
                    *place = Some(Fact::NotOffered(outcome.message));
                    Ok(())
                }
                None => Err(outcome),
            },
        };
        match taken {
            Ok(()) => effects.extend(self.proceed(question, capabilities, now)),
            Err(outcome) => effects.extend(self.fail(outcome, now)),
        }
        if self.facts != before {
            // First, so that those who wait do not wait for the next answer too.
            effects.insert(0, Effect::Learnt);
        }
        effects
    }

    fn take_info(
        &mut self,
        answer: Bytes,
        capabilities: &mut bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Outcome> {
        let mut info =
            csi::GetPluginInfoResponse::decode(answer).map_err(|_| unreadable(Question::PluginInfo))?;
        if info.name != self.driver.as_ref() && self.foreign_name.as_ref() != Some(&info.name) {
            self.foreign_name = Some(info.name.clone());
            effects.push(Effect::ForeignName { found: info.name });
        }
        info.name = self.driver.to_string();
        let info = Bytes::from(info.encode_to_vec());
        *capabilities |= self.facts.info.as_ref() != Some(&info);
        self.facts.info = Some(info);
        Ok(())
    }

    /// The next question of the round, or its good end.
    fn proceed(&mut self, done: Question, capabilities: bool, now: Instant) -> Vec<Effect> {
        if done == Question::Probe {
            return self.finish(now);
        }
        let next = match done {
            Question::PluginInfo if capabilities => Question::PluginCapabilities,
            Question::PluginInfo => Question::Probe,
            _ => self.next_service(done),
        };
        self.ask(next, capabilities)
    }

    /// The next service to ask about. Those that the driver does not have need no question.
    fn next_service(&mut self, done: Question) -> Question {
        let not_offered =
            |service: &str| Some(Fact::NotOffered(format!("the driver has no {service} service")));
        if done == Question::PluginCapabilities {
            if self.facts.has_controller() == Some(true) {
                return Question::ControllerCapabilities;
            }
            self.facts.controller = not_offered("controller");
        }
        if matches!(done, Question::PluginCapabilities | Question::ControllerCapabilities) {
            if self.facts.has_group_controller() == Some(true) {
                return Question::GroupControllerCapabilities;
            }
            self.facts.group = not_offered("group controller");
        }
        if !matches!(done, Question::NodeCapabilities | Question::NodeInfo) {
            return Question::NodeCapabilities;
        }
        if self.asks_node_info && done != Question::NodeInfo { Question::NodeInfo } else { Question::Probe }
    }

    /// The good end of a round.
    fn finish(&mut self, now: Instant) -> Vec<Effect> {
        self.reached = true;
        let pause = if self.ready { ROUND } else { self.backoff() };
        if self.ready {
            self.pause = FIRST_PAUSE;
        }
        let news = self.told.replace(Told::Reached) != Some(Told::Reached);
        let mut effects: Vec<_> = news.then_some(Effect::Reached).into_iter().collect();
        effects.push(Effect::Confirmed);
        effects.extend(self.rest(pause, now));
        effects
    }

    fn fail(&mut self, outcome: Outcome, now: Instant) -> Vec<Effect> {
        self.ready = false;
        self.reached = false;
        let pause = self.backoff();
        let news = self.told.replace(Told::Unreachable) != Some(Told::Unreachable);
        let mut effects: Vec<_> = news.then_some(Effect::Unreachable(outcome)).into_iter().collect();
        effects.extend(self.rest(pause, now));
        effects
    }

    fn rest(&mut self, pause: Duration, now: Instant) -> Vec<Effect> {
        let until = now + pause;
        self.phase = Phase::Resting { until };
        match (self.again, std::mem::take(&mut self.online)) {
            (true, _) => self.begin(),
            (false, true) => self.hasten(until, now),
            (false, false) => Vec::new(),
        }
    }

    fn backoff(&mut self) -> Duration {
        let longest = if self.is_complete() { ROUND } else { LONGEST_PAUSE };
        let pause = self.pause.min(longest);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        pause
    }

    /// Whether each capability question has its answer.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        let Facts { info, plugin, controller, group, node_service, node } = &self.facts;
        let services = controller.is_some() && group.is_some() && node_service.is_some();
        info.is_some() && plugin.is_some() && services && (node.is_some() || !self.asks_node_info)
    }

    fn unknown_info(&self) -> Bytes {
        let info = csi::GetPluginInfoResponse {
            name: self.driver.to_string(),
            vendor_version: "unknown".to_owned(),
            ..csi::GetPluginInfoResponse::default()
        };
        info.encode_to_vec().into()
    }
}

fn take<T>(place: &mut Option<T>, found: Option<T>, question: Question) -> Result<(), Outcome> {
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

fn is_not_offered(outcome: &Outcome) -> bool {
    outcome.origin == Origin::Driver && outcome.code == Code::UNIMPLEMENTED
}

#[cfg(test)]
mod tests;
