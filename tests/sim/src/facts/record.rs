//! What is known of one call, execution, delivery, link or process.

use std::collections::BTreeSet;
use std::time::Duration;

use csi_proxy::{Fault, Outcome};
use edge_transport::SessionId;

use crate::ids::{AttemptId, ExecutionId, InstanceId, LinkId, Moment, OperationId};
use crate::plan::Place;

/// How a sidecar's call ended.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// With what the driver says.
    Answered(Outcome),
    /// With a fault of the relay.
    Failed(Fault),
    /// The sidecar has left before its time.
    Left,
    /// The sidecar's time was over.
    Late,
    /// The proxy's process has ended.
    Died,
}

/// A sidecar's call.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) operation: OperationId,
    pub(crate) proxy: InstanceId,
    pub(crate) asked: Moment,
    /// When its sidecar's time is over.
    pub(crate) until: Option<Duration>,
    /// The instances of its agent that it was sent to.
    pub(crate) sent_to: BTreeSet<u64>,
    pub(crate) ended: Option<(Moment, End)>,
}

impl Attempt {
    /// When it ended without the driver's answer.
    pub(crate) fn given_up(&self) -> Option<Moment> {
        let (moment, end) = self.ended.as_ref()?;
        (!matches!(end, End::Answered(_))).then_some(*moment)
    }
}

/// One run of an operation in a driver.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) operation: OperationId,
    /// The call that started it.
    pub(crate) attempt: AttemptId,
    /// The agent's process that asked.
    pub(crate) agent: InstanceId,
    pub(crate) began: Moment,
    pub(crate) ended: Option<Moment>,
    /// The agent has the answer.
    pub(crate) answered: Option<Moment>,
    /// When the answer was first given to a call.
    pub(crate) given: Option<Moment>,
    /// The calls that asked at the agent after the end and were given the answer.
    pub(crate) later: Vec<AttemptId>,
    /// A sidecar has the answer.
    pub(crate) got: bool,
    /// No call waited for it at the agent when it ended.
    pub(crate) unwanted: bool,
}

/// A request of a call that has arrived at an agent.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) attempt: AttemptId,
    pub(crate) operation: OperationId,
    pub(crate) agent: InstanceId,
    pub(crate) link: LinkId,
    pub(crate) at: Moment,
    /// The session that it was for.
    pub(crate) to_session: Option<SessionId>,
    /// When the agent finished it, or was notified that no call waits.
    pub(crate) over: Option<Moment>,
    /// The agent has said that nothing came of it.
    pub(crate) refused: bool,
    /// Why.
    pub(crate) refusal: Option<Fault>,
}

/// One link of a process.
#[derive(Debug)]
pub(crate) struct LinkFact {
    pub(crate) instance: InstanceId,
    pub(crate) hub: (usize, u32),
    /// What the peer's hello says.
    pub(crate) session: Option<SessionId>,
    /// When the peer got the hub's hello.
    pub(crate) opened: Option<Moment>,
    /// When the peer's end was over.
    pub(crate) lost: Option<Moment>,
    /// When the first end was over.
    pub(crate) broken: Option<Moment>,
}

/// One run of a process.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) place: Place,
    pub(crate) began: Moment,
    pub(crate) ended: Option<Moment>,
    /// It was asked to end in good order, or another one was begun beside it.
    pub(crate) leaving: Option<Moment>,
}

/// An agent ends its answer to a call.
#[derive(Debug)]
pub(crate) struct Replied {
    pub(crate) delivery: usize,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) execution: Option<ExecutionId>,
}
