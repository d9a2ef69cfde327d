//! Where a volume is and why it waits, as data and as a sentence.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use csi_proto::Code;

use crate::driver::CallError;
use crate::lifecycle::{Failure, Outcome, Rpc, VolumeState};
use crate::name::{ConsumerId, VolumeKey};

use super::error::{bounded, rounded};

/// A call that failed: what it means for the volume, and what was said.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallFailure {
    /// The call.
    pub rpc: Rpc,
    /// What it means for the volume, and whether it [was sent](Failure::was_sent). The table over all codes is
    /// [`outcome_of`](crate::lifecycle::outcome_of).
    pub class: Failure,
    /// The number of the gRPC code; `None` if no answer came, or the mount table contradicted a good one.
    pub code: Option<i32>,
    /// The text, cut at 512 bytes, without control characters.
    pub message: String,
}

impl CallFailure {
    pub(super) fn new(rpc: Rpc, class: Failure, code: Option<i32>, message: &str) -> Self {
        Self { rpc, class, code, message: bounded(message) }
    }

    /// What an error of a driver means. One that counts as OK is kept as final until the mount table agrees.
    pub(super) fn of(rpc: Rpc, outcome: Outcome, error: &CallError) -> Self {
        let class = match outcome {
            Outcome::Failed(failure) => failure,
            Outcome::Ok | Outcome::Expanded { .. } => Failure::Final,
        };
        match error {
            CallError::Status { message: said, .. } | CallError::NotSent { reason: said, .. } => {
                Self::new(rpc, class, error.code(), said)
            }
            error => Self::new(rpc, class, None, &crate::excerpt::chain(error)),
        }
    }
}

impl fmt::Display for CallFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.rpc)?;
        match (self.code, self.class) {
            (Some(code), class) => write!(f, "{} ({}): ", code_name(code), class.as_str())?,
            (None, Failure::Contradicted(_) | Failure::Unchecked) => write!(f, "OK, but ")?,
            (None, class) if !class.was_sent() => write!(f, "not called: ")?,
            (None, class) => write!(f, "no answer ({}): ", class.as_str())?,
        }
        f.write_str(&self.message)
    }
}

/// The name of a gRPC code's number.
fn code_name(code: i32) -> &'static str {
    u32::try_from(code).ok().and_then(|number| Code::new(number).name()).unwrap_or("UNKNOWN")
}

/// Why nothing more happens to a volume just now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// It is where it shall be.
    Nothing,
    /// Its record waits for a commit.
    Record,
    /// The store takes no records.
    Store {
        /// What the store said.
        reason: String,
        /// When it is opened again, from now.
        next_try: Duration,
    },
    /// Its driver is not registered, or cannot be reached.
    Driver,
    /// Its call waits for others to the same driver.
    Turn {
        /// How many calls to the driver are in flight.
        in_flight: usize,
        /// How many wait, with this one.
        waiting: usize,
    },
    /// A call runs, or what it did is looked at.
    Call {
        /// The call.
        rpc: Rpc,
        /// For whom, if it is for one consumer.
        consumer: Option<ConsumerId>,
        /// Since when, up to now.
        elapsed: Duration,
    },
    /// Before a call it is looked whether it may be sent.
    Check {
        /// The call.
        rpc: Rpc,
    },
    /// It is attached by others, who have not said so yet.
    Attach,
    /// A call failed, and is tried again.
    Retry {
        /// When, from now.
        next_try: Duration,
        /// How many times in a row it failed.
        attempts: u8,
    },
    /// Its record cannot be read. It is kept, and nothing is done.
    Quarantine {
        /// Why.
        reason: String,
    },
    /// A bind that is not ours keeps the staging in use, and is looked for again.
    Foreign {
        /// When, from now.
        next_try: Duration,
    },
    /// The driver may not be asked again for what is needed, before another version of it registers.
    OtherDriver {
        /// The call that it does not have.
        rpc: Rpc,
    },
    /// The driver may not be asked again for a larger size, before somebody asks for one again.
    Request {
        /// The call that it refused.
        rpc: Rpc,
    },
    /// The driver does not take this kind of volume.
    Refused {
        /// Why.
        reason: String,
    },
}

/// A consumer of a volume, in an [`Explanation`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// Who.
    pub consumer: ConsumerId,
    /// Where.
    pub target: PathBuf,
    /// Whether the volume is wanted there; if not, it is on its way out.
    pub wanted: bool,
    /// Whether the volume is there now.
    pub published: bool,
}

/// Where a volume is, why it waits, and who holds it. The text is one sentence, or two with an error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The volume.
    pub key: VolumeKey,
    /// The state of the volume as a whole; `None` if its record cannot be read.
    pub state: Option<VolumeState>,
    /// Since when it is in this state, up to now.
    pub dwell: Duration,
    /// Why nothing more happens.
    pub waiting: Waiting,
    /// Who has it, or shall have it.
    pub holders: Vec<Holder>,
    /// What the last failure said; kept until the call succeeds, or somebody gets what was asked for.
    pub last_error: Option<CallFailure>,
    /// What was asked for and is not done by anyone, such as a group that the driver does not set.
    pub not_done: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if let Some(state) = self.state {
            write!(f, " is {state} since {:?}", rounded(self.dwell))?;
        }
        match &self.waiting {
            Waiting::Nothing => write!(f, ", where it shall be")?,
            Waiting::Record => write!(f, " and waits for its record to be on disk")?,
            Waiting::Store { reason, next_try } => {
                let next_try = rounded(*next_try);
                write!(f, " and waits for the store ({reason}), which is opened again in {next_try:?}")?;
            }
            Waiting::Driver => write!(f, " and waits for its driver to register and answer")?,
            Waiting::Turn { in_flight, waiting } => {
                write!(f, " and waits for its turn: {in_flight} calls to its driver run and {waiting} wait")?;
            }
            Waiting::Call { rpc, consumer, elapsed } => {
                write!(f, " while {rpc}")?;
                if let Some(consumer) = consumer {
                    write!(f, " for {consumer}")?;
                }
                write!(f, " runs, since {:?}", rounded(*elapsed))?;
            }
            Waiting::Check { rpc } => write!(f, " while the mount table is read for {rpc}")?,
            Waiting::Attach => write!(f, " and waits to be attached by others")?,
            Waiting::Retry { next_try, attempts } => {
                let failures = if *attempts == 1 { "failure" } else { "failures" };
                write!(f, " and tries again in {:?}, after {attempts} {failures}", rounded(*next_try))?;
            }
            Waiting::Quarantine { reason } => {
                write!(f, " has a record that cannot be read ({reason}); it is kept, and nothing is done")?;
            }
            Waiting::Foreign { next_try } => {
                let next_try = rounded(*next_try);
                write!(
                    f,
                    " and waits for a foreign bind of its staging to go, looked for again in {next_try:?}"
                )?;
            }
            Waiting::OtherDriver { rpc } => {
                write!(
                    f,
                    " and waits for a driver that has {rpc}, which this one may not be asked for again"
                )?;
            }
            Waiting::Request { rpc } => {
                write!(f, " and waits for its size to be asked for again, since the driver refused {rpc}")?;
            }
            Waiting::Refused { reason } => write!(f, " and cannot go on: {reason}")?,
        }
        match &self.holders[..] {
            [] => write!(f, "; no one holds it")?,
            holders => {
                write!(f, "; held by ")?;
                for (at, holder) in holders.iter().enumerate().take(SHOWN_HOLDERS) {
                    let comma = if at == 0 { "" } else { ", " };
                    let going = if holder.wanted { "" } else { " (going)" };
                    write!(f, "{comma}{}{going}", holder.consumer)?;
                }
                if let Some(more) = holders.len().checked_sub(SHOWN_HOLDERS).filter(|more| *more > 0) {
                    write!(f, " and {more} more")?;
                }
            }
        }
        if let Some(error) = &self.last_error {
            write!(f, "; last error: {error}")?;
        }
        for not_done in &self.not_done {
            write!(f, "; not done: {not_done}")?;
        }
        f.write_str(".")
    }
}

/// How many holders the sentence names.
const SHOWN_HOLDERS: usize = 8;
