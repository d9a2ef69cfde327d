//! The recorded facts of one call, execution, delivery, link or process.

use std::collections::BTreeSet;
use std::time::Duration;

use csi_proxy::{Fault, Outcome};
use edge_transport::SessionId;

use crate::ids::{AttemptId, ExecutionId, InstanceId, LinkId, Moment, OperationId};
use crate::plan::Place;

/// The end of a sidecar's call.
#[derive(Debug, Clone)]
pub(crate) enum End {
    /// The driver answered.
    Answered(Outcome),
    /// The relay failed.
    Failed(Fault),
    /// The sidecar cancelled the call before its timeout.
    Left,
    /// The sidecar's timeout expired.
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
    /// The time at which the sidecar's timeout expires.
    pub(crate) until: Option<Duration>,
    /// The instances of the agent to which the call was sent.
    pub(crate) sent_to: BTreeSet<u64>,
    pub(crate) ended: Option<(Moment, End)>,
}

impl Attempt {
    /// Returns the moment at which the call ended without the driver's answer.
    pub(crate) fn given_up(&self) -> Option<Moment> {
        let (moment, end) = self.ended.as_ref()?;
        (!matches!(end, End::Answered(_))).then_some(*moment)
    }
}

/// One execution of an operation in a driver.
#[derive(Debug)]
pub(crate) struct Execution {
    pub(crate) operation: OperationId,
    /// The call that started it.
    pub(crate) attempt: AttemptId,
    /// The agent's process that called the driver.
    pub(crate) agent: InstanceId,
    pub(crate) began: Moment,
    pub(crate) ended: Option<Moment>,
    /// The moment at which the agent got the answer.
    pub(crate) answered: Option<Moment>,
    /// The moment at which the answer was first given to a call.
    pub(crate) given: Option<Moment>,
    /// The calls that arrived at the agent after the end and got the answer.
    pub(crate) later: Vec<AttemptId>,
    /// Whether a sidecar has the answer.
    pub(crate) got: bool,
    /// Whether no call waited at the agent when the execution ended.
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
    /// The session to which the request was addressed.
    pub(crate) to_session: Option<SessionId>,
    /// The moment at which the agent finished the call, or was notified of its cancellation.
    pub(crate) over: Option<Moment>,
    /// Whether the agent reported that it did not execute the call.
    pub(crate) refused: bool,
    /// The fault of that report.
    pub(crate) refusal: Option<Fault>,
}

/// One link of a process.
#[derive(Debug)]
pub(crate) struct LinkFact {
    pub(crate) instance: InstanceId,
    pub(crate) hub: (usize, u32),
    /// The session in the peer's hello.
    pub(crate) session: Option<SessionId>,
    /// The moment at which the peer got the hub's hello.
    pub(crate) opened: Option<Moment>,
    /// The moment at which the peer's end ended.
    pub(crate) lost: Option<Moment>,
    /// The moment at which the first of both ends ended.
    pub(crate) broken: Option<Moment>,
}

/// One run of a process.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) place: Place,
    pub(crate) began: Moment,
    pub(crate) ended: Option<Moment>,
    /// The moment at which the process was asked to drain, or another process of its place began.
    pub(crate) leaving: Option<Moment>,
}

/// The end of an agent's answer to a call.
#[derive(Debug)]
pub(crate) struct Replied {
    pub(crate) delivery: usize,
    pub(crate) outcome: Option<Outcome>,
    pub(crate) execution: Option<ExecutionId>,
}
