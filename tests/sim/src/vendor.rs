//! The drivers of the nodes. Processes of their own: they outlive the agents, and what they have begun they finish.

use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::operation::{Answer, Event, OperationId};
use csi_proxy::{Fault, Outcome};
use edge_transport::session::ServingId;

use crate::answer::{Closing, Part};
use crate::plan::Place;
use crate::world::{Happening, PeerIndex, World};

/// The driver's name, on every node.
pub(crate) const DRIVER: &str = "sim.csi.example.com";

/// How long a driver takes to say what is done already.
const QUICK: Duration = Duration::from_millis(2);

/// What in an agent has asked a driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// An operation, whoever waits for it.
    Operation(OperationId),
    /// One call.
    Call(ServingId),
}

/// One run of an operation in a driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Execution {
    pub(crate) operation: usize,
    /// The agent's life that asked.
    pub(crate) agent: PeerIndex,
    caller: Caller,
    pub(crate) began: Duration,
    pub(crate) ended: Option<Duration>,
    /// The agent has got the answer.
    pub(crate) answered: bool,
    /// When the answer was first given to a call.
    pub(crate) given: Option<Duration>,
    /// A life of an agent has heard that the answer was delivered, and when.
    pub(crate) taken: Option<(PeerIndex, Duration)>,
    /// A sidecar has the answer.
    pub(crate) got: bool,
}

impl World {
    /// An agent has its driver do an operation. A driver is idempotent: what is done is not done again, only answered again,
    /// until something else is done to the volume.
    pub(crate) fn execute(&mut self, agent: PeerIndex, caller: Caller, operation: usize) {
        let Some(wanted) = self.plan.operations.get(operation).copied() else { return };
        let now = self.now;
        let operations = &self.plan.operations;
        self.done.retain(|other, _| {
            *other == operation || !operations.get(*other).is_some_and(|other| other.is_about(&wanted))
        });
        let done = *self.done.entry(operation).or_insert(now + wanted.work);
        let execution = self.executions.len();
        self.trace.note(
            now,
            || format!("driver-{}", wanted.agent + 1),
            || format!("execution {execution} of operation {operation} begins for {caller:?}"),
        );
        let run = Execution {
            operation,
            agent,
            caller,
            began: now,
            ended: None,
            answered: false,
            given: None,
            taken: None,
            got: false,
        };
        self.oracle.once.began(now, &self.executions, &run, operations);
        self.executions.push(run);
        self.at(done.max(now + QUICK), Happening::Executed { execution });
    }

    pub(crate) fn executed(&mut self, execution: usize) {
        let now = self.now;
        let Some(run) = self.executions.get_mut(execution).filter(|run| run.ended.is_none()) else { return };
        run.ended = Some(now);
        let Execution { operation, agent, caller, .. } = *run;
        let Some(wanted) = self.plan.operations.get(operation).copied() else { return };
        self.trace.note(
            now,
            || format!("driver-{}", wanted.agent + 1),
            || format!("execution {execution} of operation {operation} ends"),
        );
        if self.peers.get(agent).is_none_or(|agent| !agent.alive) {
            return;
        }
        run.answered = true;
        let parts = if wanted.fails { 0 } else { wanted.messages };
        let mut messages: Vec<_> =
            (1..=parts).map(|number| wanted.message(Part { operation, execution, number })).collect();
        let outcome = Closing { operation, execution, messages: parts }.outcome(wanted.fails);
        match caller {
            Caller::Call(serving) => self.answers(agent, serving, &messages, &outcome, None),
            Caller::Operation(operation) => {
                if let Some(answer) = Answer::new(messages.pop(), outcome) {
                    self.desk_event(agent, Event::Answered { operation, answer });
                }
            }
        }
    }

    /// The driver of a node ends, and is there again at once. What it was at is not known to anybody.
    pub(crate) fn driver_crashes(&mut self, place: Place) {
        let (now, operations) = (self.now, &self.plan.operations);
        let of_node = |run: &Execution| operations.get(run.operation).is_some_and(|run| run.agent == place);
        let mut lost = Vec::new();
        for run in self.executions.iter_mut().filter(|run| run.ended.is_none() && of_node(run)) {
            run.ended = Some(now);
            lost.push(*run);
        }
        self.done.retain(|operation, done| {
            *done <= now || operations.get(*operation).is_none_or(|operation| operation.agent != place)
        });
        let Ok(driver) = DriverName::new(DRIVER) else { return };
        for Execution { agent, caller, .. } in lost {
            let fault = Fault::DriverGone { driver: driver.clone(), reason: "it has ended".to_owned() };
            match caller {
                Caller::Operation(operation) => self.desk_event(agent, Event::Lost { operation, fault }),
                Caller::Call(serving) => self.answers(agent, serving, &[], &Outcome::from(fault), None),
            }
        }
    }
}
