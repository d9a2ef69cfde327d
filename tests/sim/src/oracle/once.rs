//! A call is executed once: however often its request arrives, an agent's life works on it one time. And so is an operation: while
//! the agent lives, a driver is not asked for what it is at, nor for what it has answered and nobody has got. And an answer that was
//! delivered is not given again.

use std::collections::BTreeSet;
use std::time::Duration;

use edge_transport::PeerId;
use edge_transport::frame::CallId;

use super::Verdict;
use crate::plan::{Operation, OperationKind};
use crate::vendor::Execution;
use crate::world::PeerIndex;

#[derive(Debug)]
pub(crate) struct Once {
    /// What arrives is what was sent. Where bits are twisted, the same may become another operation.
    whole: bool,
    /// Answers are kept until they are handed out: their bounds are never met.
    keeps: bool,
    /// Callers say what they have got. Otherwise an answer counts as delivered when it is sent.
    acknowledges: bool,
    served: BTreeSet<(PeerIndex, PeerId, CallId)>,
    /// What agents were about to have done, when, and by which life.
    accepted: Vec<(Duration, PeerIndex, usize)>,
    verdict: Verdict,
}

impl Once {
    pub(crate) fn new(whole: bool, keeps: bool, acknowledges: bool) -> Self {
        let (served, accepted, verdict) = (BTreeSet::new(), Vec::new(), Verdict::default());
        Self { whole, keeps, acknowledges, served, accepted, verdict }
    }

    /// A life of an agent gives an answer to a call that asked at `asked`.
    pub(crate) fn given(
        &mut self,
        at: Duration,
        agent: PeerIndex,
        asked: Duration,
        execution: usize,
        run: &Execution,
    ) {
        if self.acknowledges
            && let Some((_, taken)) = run.taken.filter(|(heard, taken)| *heard == agent && *taken < asked)
        {
            self.verdict.broken("an answer is handed out once", at, || {
                format!("process {agent} gives the answer of execution {execution} to a call made at {asked:?}, though it heard at {taken:?} that it was delivered")
            });
        }
    }

    /// A life of an agent is about to have an operation done, as soon as its journal allows. Whatever is kept for the volume is
    /// void from here on, even if nothing comes of it.
    pub(crate) fn accepted(&mut self, at: Duration, agent: PeerIndex, operation: usize) {
        self.accepted.push((at, agent, operation));
    }

    /// A driver begins to do an operation.
    pub(crate) fn began(
        &mut self,
        at: Duration,
        earlier: &[Execution],
        run: &Execution,
        operations: &[Operation],
    ) {
        let Some(wanted) =
            operations.get(run.operation).filter(|wanted| self.whole && wanted.kind != OperationKind::Watch)
        else {
            return;
        };
        let same = |other: &&Execution| other.agent == run.agent && other.operation == run.operation;
        let Some(before) = earlier.iter().rev().find(same) else { return };
        let about = |operation: usize| {
            operation != run.operation
                && operations.get(operation).is_some_and(|other| other.is_about(wanted))
        };
        let void = || {
            let accepted = |other: &&(Duration, PeerIndex, usize)| other.1 == run.agent && about(other.2);
            self.accepted.iter().filter(accepted).any(|other| other.0 >= before.began)
                || earlier.iter().any(|other| {
                    about(other.operation) && other.ended.is_none_or(|ended| ended >= before.began)
                })
        };
        let Execution { operation, agent, .. } = *run;
        if before.ended.is_none() {
            self.verdict.broken("an operation is executed once", at, || {
                format!("process {agent} begins operation {operation} while it runs")
            });
        } else if before.answered && !self.is_delivered(before) && self.keeps && !void() {
            self.verdict.broken("an operation is executed once", at, || {
                format!("process {agent} begins operation {operation} again, whose answer nobody has")
            });
        }
    }

    const fn is_delivered(&self, run: &Execution) -> bool {
        if self.acknowledges { run.got } else { run.taken.is_some() }
    }

    /// A life of an agent begins to work on a call.
    pub(crate) fn served(&mut self, at: Duration, agent: PeerIndex, source: &PeerId, id: CallId) {
        if !self.served.insert((agent, source.clone(), id)) {
            self.verdict.broken("a call is executed once", at, || {
                format!("process {agent} works on call {id} of {source} for the second time")
            });
        }
    }

    /// Whether a life of an agent has worked on a call.
    pub(crate) fn has_served(&self, agent: PeerIndex, source: &PeerId, id: CallId) -> bool {
        self.served.contains(&(agent, source.clone(), id))
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
