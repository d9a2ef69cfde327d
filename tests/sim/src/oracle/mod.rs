//! The properties that must hold under any faults, one file each. A property checks observed facts only, and does not
//! depend on how the parts work.

mod attack;
mod bounds;
mod fence;
mod healing;
mod lost;
mod once;
mod own_answer;
mod retry;
mod rivals;
mod sent;
mod stale;
mod turn;
mod void;

use std::time::Duration;

use bytes::Bytes;

pub(crate) use bounds::Bounds;
pub(crate) use healing::{Healing, Leftovers};

use self::attack::Attack;
use self::fence::Fence;
use self::lost::Lost;
use self::once::Once;
use self::own_answer::OwnAnswer;
use self::retry::Retry;
use self::rivals::Rivals;
use self::sent::Sent;
use self::stale::Stale;
use self::turn::Turn;
use self::void::Void;
use crate::facts::{End, Facts, Replied};
use crate::ids::{AttemptId, ExecutionId, Moment};
use crate::plan::Plan;

/// The violation of a property.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{property}, at {:.6} s: {what}", at.as_secs_f64())]
#[non_exhaustive]
pub struct Violation {
    /// The property, as a sentence.
    pub property: &'static str,
    /// The time of the violation since the start of the run.
    pub at: Duration,
    /// The observed facts.
    pub what: String,
}

/// The first violation of a property.
#[derive(Debug, Default)]
struct FirstViolation(Option<Violation>);

impl FirstViolation {
    fn broken(&mut self, property: &'static str, at: Duration, what: impl FnOnce() -> String) {
        if self.0.is_none() {
            self.0 = Some(Violation { property, at, what: what() });
        }
    }
}

/// The conditions of a run that limit what the oracle can expect.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expect {
    /// Links corrupt no frames. With corrupted frames, the owner of an answer is unknown.
    pub(crate) whole: bool,
    /// No bound is so low that a result is dropped because of it.
    pub(crate) keeps: bool,
    /// Links accept frames at once.
    pub(crate) prompt: bool,
    /// Frames may arrive twice.
    pub(crate) doubles: bool,
    /// A proxy receives its hub's reports soon, and no call is refused because of a bound.
    pub(crate) informed: bool,
    /// The longest time that a call waits for its turn.
    pub(crate) wait: Duration,
}

impl Expect {
    pub(crate) fn new(plan: &Plan, wait: Duration) -> Self {
        use crate::fault::Fault;
        let delays_reports = |fault: &Fault| match fault {
            Fault::Stall { place, .. }
            | Fault::Delay { place, .. }
            | Fault::HalfOpen { place, .. }
            | Fault::Outage { place, .. } => !plan.is_agent(*place),
            _ => false,
        };
        let stalls = |fault: &Fault| matches!(fault, Fault::Stall { .. });
        Self {
            whole: plan.hostile.corrupted == 0,
            keeps: !plan.narrow,
            doubles: plan.hostile.duplicated > 0,
            informed: plan.hostile.is_none()
                && !plan.narrow
                && !plan.faults.iter().any(|(_, fault)| delays_reports(fault)),
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
    rivals: Rivals,
    lost: Lost,
    pub(crate) attack: Attack,
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
            rivals: Rivals::new(expect),
            lost: Lost::new(expect),
            attack: Attack::new(expect),
            bounds: Bounds::default(),
            healing: Healing::default(),
        }
    }

    /// Checks the begin of an execution in a driver.
    pub(crate) fn began(&mut self, now: Moment, facts: &Facts, execution: ExecutionId) {
        let Some(run) = facts.execution(execution) else { return };
        self.once.began(now, facts, execution, run);
        self.turn.began(now, facts, run);
        self.fence.began(now, facts, run);
        self.stale.began(now, facts, run);
        self.sent.began(now, facts, run);
    }

    /// Checks the deliveries after a frame has arrived at a peer.
    pub(crate) fn arrives(&mut self, now: Moment, facts: &Facts) {
        self.retry.arrives(now, facts);
        self.rivals.arrives(now, facts);
    }

    /// Checks an agent's answer to a call.
    pub(crate) fn replies(&mut self, now: Moment, facts: &Facts, replied: Replied) {
        self.turn.replies(now, facts, &replied);
        self.once.replies(now, facts, &replied);
        self.void.replies(now, facts, &replied);
    }

    /// Checks the end of a sidecar's call.
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
        self.attack.ends(now, attempt, end, messages);
    }

    /// Returns a violation, if there was one, and removes it.
    pub(crate) fn violation(&mut self) -> Option<Violation> {
        let Self {
            once,
            own_answer,
            void,
            turn,
            fence,
            stale,
            sent,
            retry,
            rivals,
            lost,
            attack,
            bounds,
            healing,
        } = self;
        [
            once.first_violation(),
            own_answer.first_violation(),
            void.first_violation(),
            turn.first_violation(),
            fence.first_violation(),
            stale.first_violation(),
            sent.first_violation(),
            retry.first_violation(),
            rivals.first_violation(),
            lost.first_violation(),
            attack.first_violation(),
            bounds.first_violation(),
            healing.first_violation(),
        ]
        .into_iter()
        .find_map(|first_violation| first_violation.0.take())
    }
}
