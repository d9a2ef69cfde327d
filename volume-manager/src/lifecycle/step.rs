//! The transition function.

use super::ladder::{DriverCapabilities, Floor, Ladder};
use super::state::{Direction, Goal, Rpc, VolumeState};

/// One volume with one target: what is to be recorded of it, and what is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Volume {
    state: VolumeState,
    goal: Goal,
    floor: Floor,
    capabilities: DriverCapabilities,
    activity: Activity,
}

/// What the volume waits for. Not on disk: a new process waits for nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Activity {
    Nothing,
    /// The end of a call.
    Call(Rpc),
    /// The time to repeat a call.
    BackOff(Rpc),
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// From now on the volume shall be here. A goal that this volume lacks means the next lower one that it has, or
    /// its floor.
    Want(Goal),
    /// A call ended, or is known never to answer.
    Finished {
        /// The call.
        rpc: Rpc,
        /// How it ended.
        outcome: Result<(), Failure>,
    },
    /// Time to go on: the back-off is over, or the volume was just restored.
    Resume,
}

/// How a call failed.
///
/// Both leave the volume where it is. They differ in what is worth trying, which is for the caller to weigh: a
/// [`Effect::BackOff`] says which it was.
#[allow(clippy::exhaustive_enums, reason = "the driver is done with the call, or it may not be")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The driver answered, and nothing of this call runs any more.
    Final,
    /// No answer, or one that says that the call may still be running.
    Uncertain,
}

/// What to do, in the order given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// Make [`Volume::state`] and [`Volume::goal`] durable before any effect that follows.
    Record,
    /// Make the call; then send [`Event::Finished`].
    Call(Rpc),
    /// Wait; then send [`Event::Resume`].
    BackOff {
        /// The call that failed.
        rpc: Rpc,
        /// How it failed.
        failure: Failure,
    },
    /// The volume is where it shall be: at this goal, at the next lower state that it has, or on its floor.
    Reached(Goal),
}

impl Volume {
    /// A volume that nothing was done with yet, wanted where it is: on its floor.
    #[must_use]
    pub fn new(floor: Floor, capabilities: DriverCapabilities) -> Self {
        let goal = Ladder { floor, capabilities }.floor();
        Self { state: goal.state(), goal, floor, capabilities, activity: Activity::Nothing }
    }

    /// A volume as it was recorded. [`Event::Resume`] sets it going.
    ///
    /// A state of rest that the volume cannot have is taken as the next lower one that it can, or as its floor.
    #[must_use]
    pub fn restored(state: VolumeState, goal: Goal, floor: Floor, capabilities: DriverCapabilities) -> Self {
        let state = Ladder { floor, capabilities }.state(state);
        Self { state, goal, floor, capabilities, activity: Activity::Nothing }
    }

    /// Where the volume is.
    #[must_use]
    pub fn state(&self) -> VolumeState {
        self.state
    }

    /// Where the volume shall be.
    #[must_use]
    pub fn goal(&self) -> Goal {
        self.goal
    }

    /// Where the volume begins and ends.
    #[must_use]
    pub fn floor(&self) -> Floor {
        self.floor
    }

    /// What its driver can do.
    #[must_use]
    pub fn capabilities(&self) -> DriverCapabilities {
        self.capabilities
    }

    /// The call that is under way; never more than one.
    #[must_use]
    pub fn in_flight(&self) -> Option<Rpc> {
        match self.activity {
            Activity::Call(rpc) => Some(rpc),
            Activity::Nothing | Activity::BackOff(_) => None,
        }
    }

    fn ladder(&self) -> Ladder {
        Ladder { floor: self.floor, capabilities: self.capabilities }
    }

    /// The next call on the way to the goal; `None` at the goal.
    fn next(&self) -> Option<Rpc> {
        let ladder = self.ladder();
        let goal = ladder.at_or_below(self.goal);
        if let Some(rpc) = self.state.rpc() {
            // The spec's rule for a call whose good end is not known: upward repeat or negate, downward only repeat.
            let repeat = rpc.direction() == Direction::Down || goal >= rpc.rung().goal();
            return Some(if repeat { rpc } else { rpc.negation() });
        }
        let here = Goal::ALL.into_iter().find(|here| here.state() == self.state)?;
        match here.cmp(&goal) {
            std::cmp::Ordering::Less => ladder.rung_above(here).map(Rpc::entering),
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => ladder.rung_at_or_below(here).map(Rpc::leaving),
        }
    }

    /// Where the volume is after a call ended well.
    pub(super) fn after(&self, rpc: Rpc) -> VolumeState {
        let goal = match rpc.direction() {
            Direction::Up => self.ladder().at_or_below(rpc.rung().goal()),
            Direction::Down => self.ladder().below(rpc.rung()),
        };
        goal.state()
    }

    /// Starts the next call, or says that there is none to make.
    fn proceed(&mut self) -> Effect {
        match self.next() {
            Some(rpc) => {
                self.state = rpc.state();
                self.activity = Activity::Call(rpc);
                Effect::Call(rpc)
            }
            None => {
                self.activity = Activity::Nothing;
                Effect::Reached(self.goal)
            }
        }
    }
}

/// The one transition: takes a volume and what happened, answers the volume as it then is and what to do.
///
/// An event that does not fit, such as the end of a call that is not under way, changes nothing.
#[must_use]
pub fn step(volume: &Volume, event: Event) -> (Volume, Vec<Effect>) {
    let mut then = *volume;
    let effect = match (event, volume.activity) {
        (Event::Want(goal), activity) => {
            then.goal = goal;
            match activity {
                // One call at a time: the new goal counts from the end of this one.
                Activity::Call(_) => None,
                // The same call would come next, and its time has not come.
                Activity::BackOff(rpc) if then.next() == Some(rpc) => None,
                Activity::BackOff(_) | Activity::Nothing => Some(then.proceed()),
            }
        }
        (Event::Finished { rpc, outcome }, Activity::Call(running)) if rpc == running => match outcome {
            Ok(()) => {
                then.state = volume.after(rpc);
                Some(then.proceed())
            }
            Err(failure) => match then.next() {
                Some(next) if next == rpc => {
                    then.activity = Activity::BackOff(rpc);
                    Some(Effect::BackOff { rpc, failure })
                }
                // The goal moved meanwhile: the negation need not wait for the repetition's time.
                _ => Some(then.proceed()),
            },
        },
        (Event::Resume, Activity::Nothing | Activity::BackOff(_)) => Some(then.proceed()),
        (Event::Finished { .. }, _) | (Event::Resume, Activity::Call(_)) => None,
    };
    let record = (then.state, then.goal) != (volume.state, volume.goal);
    (then, record.then_some(Effect::Record).into_iter().chain(effect).collect())
}
