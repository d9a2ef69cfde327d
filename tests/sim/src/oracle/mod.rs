//! What must hold, whatever goes wrong. One file a property; each sees what has happened from outside and knows nothing of how
//! the parts work.

mod bounds;
mod fence;
mod healing;
mod lost;
mod once;
mod own_answer;
mod retry;
mod sent;
mod stale;
mod turn;
mod void;

use std::time::Duration;

use bytes::Bytes;

pub(crate) use bounds::Bounds;
pub(crate) use healing::{Healing, Leftovers};

use self::fence::Fence;
use self::lost::Lost;
use self::once::Once;
use self::own_answer::OwnAnswer;
use self::retry::Retry;
use self::sent::Sent;
use self::stale::Stale;
use self::turn::Turn;
use self::void::Void;
use crate::facts::{End, Facts, Replied};
use crate::ids::{AttemptId, ExecutionId, Moment};
use crate::plan::Plan;

/// A property was broken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{property}, at {:.6} s: {what}", at.as_secs_f64())]
#[non_exhaustive]
pub struct Violation {
    /// Which property.
    pub property: &'static str,
    /// When, since the start of the run.
    pub at: Duration,
    /// What was seen.
    pub what: String,
}

/// The first violation that a property saw.
#[derive(Debug, Default)]
struct FirstViolation(Option<Violation>);

impl FirstViolation {
    fn broken(&mut self, property: &'static str, at: Duration, what: impl FnOnce() -> String) {
        if self.0.is_none() {
            self.0 = Some(Violation { property, at, what: what() });
        }
    }
}

/// What a run allows the oracle to expect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expect {
    /// What arrives is what was sent. If bits are damaged, the owner of an answer is unknown.
    pub(crate) whole: bool,
    /// No bound is so low that a result is forgotten for it.
    pub(crate) keeps: bool,
    /// What is put on a link leaves at once.
    pub(crate) prompt: bool,
    /// Frames may arrive twice.
    pub(crate) doubles: bool,
    /// A proxy receives its hub's reports soon, and no call is refused because of a bound.
    pub(crate) informed: bool,
    /// How long a call waits for its turn.
    pub(crate) wait: Duration,
}

impl Expect {
    pub(crate) fn new(plan: &Plan, wait: Duration) -> Self {
        use crate::fault::Fault;
        let deafens = |fault: &Fault| match fault {
            Fault::Stall { place, .. }
            | Fault::Held { place, .. }
            | Fault::HalfOpen { place, .. }
            | Fault::Away { place, .. } => !plan.is_agent(*place),
            _ => false,
        };
        let stalls = |fault: &Fault| matches!(fault, Fault::Stall { .. });
        Self {
            whole: plan.hostile.twisted == 0,
            keeps: !plan.narrow,
            doubles: plan.hostile.doubled > 0,
            informed: plan.hostile.is_none()
                && !plan.narrow
                && !plan.faults.iter().any(|(_, fault)| deafens(fault)),
            prompt: !plan.faults.iter().any(|(_, fault)| stalls(fault)),
            wait,
        }
    }
}

/// All properties.
#[derive(Debug)]
pub(crate) struct Oracle {
    once: Once,
    own_answer: OwnAnswer,
    void: Void,
    turn: Turn,
    fence: Fence,
    stale: Stale,
    sent: Sent,
    retry: Retry,
    lost: Lost,
    pub(crate) bounds: Bounds,
    pub(crate) healing: Healing,
}

impl Oracle {
    pub(crate) fn new(expect: Expect) -> Self {
        Self {
            once: Once::new(expect),
            own_answer: OwnAnswer::new(expect),
            void: Void::new(expect),
            turn: Turn::new(expect),
            fence: Fence::new(expect),
            stale: Stale::new(expect),
            sent: Sent::new(expect),
            retry: Retry::new(expect),
            lost: Lost::new(expect),
            bounds: Bounds::default(),
            healing: Healing::default(),
        }
    }

    /// A driver begins an execution.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, execution: ExecutionId) {
        let Some(run) = facts.execution(execution) else { return };
        self.once.began(now, facts, execution, run);
        self.turn.began(now, facts, run);
        self.fence.began(now, facts, run);
        self.stale.began(now, facts, run);
        self.sent.began(now, facts, run);
    }

    /// A frame has arrived at a peer.
    pub(crate) fn arrives(&mut self, now: Moment, facts: &Facts) {
        self.retry.arrives(now, facts);
    }

    /// An agent ends its answer to a call.
    pub(crate) fn replies(&mut self, now: Moment, facts: &Facts, replied: Replied) {
        self.turn.replies(now, facts, &replied);
        self.once.replies(now, facts, &replied);
        self.void.replies(now, facts, &replied);
    }

    /// A sidecar's call ends.
    pub(crate) fn ends(
        &mut self,
        now: Moment,
        facts: &Facts,
        attempt: AttemptId,
        end: &End,
        messages: &[Bytes],
    ) {
        self.own_answer.ends(now, facts, attempt, end, messages);
        self.sent.ends(now, facts, attempt, end);
        self.lost.ends(now, facts, attempt, end);
    }

    /// The first violation that was seen.
    pub(crate) fn violation(&mut self) -> Option<Violation> {
        let Self { once, own_answer, void, turn, fence, stale, sent, retry, lost, bounds, healing } = self;
        [
            once.first_violation(),
            own_answer.first_violation(),
            void.first_violation(),
            turn.first_violation(),
            fence.first_violation(),
            stale.first_violation(),
            sent.first_violation(),
            retry.first_violation(),
            lost.first_violation(),
            bounds.first_violation(),
            healing.first_violation(),
        ]
        .into_iter()
        .find_map(|first_violation| first_violation.0.take())
    }
}
