//! Explanations of volumes: the state and the reason for waiting, as data and as a sentence.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use csi_proto::Code;

use crate::driver::CallError;
use crate::lifecycle::{Failure, Outcome, Rpc, VolumeState};
use crate::name::{ConsumerId, VolumeKey};

use super::error::{bounded, rounded};

/// A failed call: its class and its error.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallFailure {
    /// The RPC.
    pub rpc: Rpc,
    /// The failure class, and whether the call [was sent](Failure::was_sent).
    /// [`outcome_of`](crate::lifecycle::outcome_of) lists the classes of all codes.
    pub class: Failure,
    /// The gRPC code; `None` if there was no response, or if the mount table contradicts an OK.
    pub code: Option<i32>,
    /// The error text, at most 512 bytes, without control characters.
    pub message: String,
}

impl CallFailure {
    pub(super) fn new(rpc: Rpc, class: Failure, code: Option<i32>, message: &str) -> Self {
        Self { rpc, class, code, message: bounded(message) }
    }

    /// Classifies an error of a driver. An error that counts as OK is final until the mount table agrees.
    pub(super) fn of(rpc: Rpc, outcome: Outcome, error: &CallError) -> Self {
        let class = match outcome {
            Outcome::Failed(failure) => failure,
            Outcome::Ok | Outcome::Expanded { .. } => Failure::Final,
        };
        match error {
            CallError::Status { message: text, .. } | CallError::NotSent { reason: text, .. } => {
                Self::new(rpc, class, error.code(), text)
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
            (None, class) if !class.was_sent() => write!(f, "call blocked: ")?,
            (None, class) => write!(f, "no response ({}): ", class.as_str())?,
        }
        f.write_str(&self.message)
    }
}

/// Returns the name of a gRPC code.
fn code_name(code: i32) -> &'static str {
    u32::try_from(code).ok().and_then(|number| Code::new(number).name()).unwrap_or("UNKNOWN")
}

/// The reason why a volume makes no progress.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waiting {
    /// The volume is in the desired state.
    Nothing,
    /// The record waits for a commit.
    Record,
    /// The store is unavailable.
    Store {
        /// The text of the error.
        reason: String,
        /// The time until it is reopened.
        next_try: Duration,
    },
    /// The driver is not [registered](crate::node::Volumes::driver_registered).
    Registration,
    /// The driver is registered, but not connected.
    Driver {
        /// The text of the error of the last attempt, at most 512 bytes; `None` if it is not complete.
        last_error: Option<String>,
    },
    /// The call waits for a call slot of the driver.
    CallSlot {
        /// The number of calls to the driver in flight.
        in_flight: usize,
        /// The number of waiting calls, including this one.
        waiting: usize,
    },
    /// A call or its verification is running.
    Call {
        /// The RPC.
        rpc: Rpc,
        /// The consumer, for a call that concerns one target.
        consumer: Option<ConsumerId>,
        /// The time since the call started.
        elapsed: Duration,
    },
    /// The check before a call is running.
    Check {
        /// The RPC.
        rpc: Rpc,
    },
    /// The external attach is pending.
    Attach,
    /// A call failed and is retried.
    Retry {
        /// The time until the retry.
        next_try: Duration,
        /// The number of consecutive failures.
        attempts: u8,
    },
    /// The record is unreadable and is kept, and no call is made.
    Quarantine {
        /// The reason for the quarantine.
        reason: String,
    },
    /// A foreign bind mount uses the staging path, which is checked again.
    ForeignMount {
        /// The time until the retry.
        next_try: Duration,
    },
    /// The RPC must not be sent to the driver again before another version of the driver registers.
    OtherDriver {
        /// The unsupported RPC.
        rpc: Rpc,
    },
    /// The RPC must not be sent to the driver again before a new expansion request.
    Request {
        /// The rejected RPC.
        rpc: Rpc,
    },
    /// The driver does not support the lifecycle mode of the volume.
    Refused {
        /// The reason why the volume is refused.
        reason: String,
    },
}

/// The status of a consumer in an [`Explanation`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConsumerStatus {
    /// The consumer.
    pub consumer: ConsumerId,
    /// The target path.
    pub target: PathBuf,
    /// True if the volume is wanted at the target; otherwise the volume is being unpublished.
    pub wanted: bool,
    /// True if the volume is published at the target, in this boot of the node.
    pub published: bool,
}

/// The state of a volume, the reason for waiting, and its consumers. The text is one sentence.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The volume.
    pub key: VolumeKey,
    /// The state of the volume as a whole; `None` if its record is unreadable.
    pub state: Option<VolumeState>,
    /// The time since the state was entered.
    pub time_in_state: Duration,
    /// The reason why the volume makes no progress.
    pub waiting: Waiting,
    /// The consumers.
    pub consumers: Vec<ConsumerStatus>,
    /// The last failure, until the call succeeds or a request completes.
    pub last_error: Option<CallFailure>,
    /// Requested properties that no component applies, such as an fsGroup that the driver does not support.
    pub unapplied: Vec<String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.key)?;
        if let Some(state) = self.state {
            write!(f, " is {state} for {:?}", rounded(self.time_in_state))?;
        }
        match &self.waiting {
            Waiting::Nothing => write!(f, ", as desired")?,
            Waiting::Record => write!(f, ", waiting for its record to be on disk")?,
            Waiting::Store { reason, next_try } => {
                let next_try = rounded(*next_try);
                write!(f, ", waiting for the store ({reason}), which is reopened in {next_try:?}")?;
            }
            Waiting::Registration => write!(f, ", waiting for its driver to be registered")?,
            Waiting::Driver { last_error } => {
                write!(f, ", waiting for its driver to connect")?;
                if let Some(error) = last_error {
                    write!(f, " (last attempt: {error})")?;
                }
            }
            Waiting::CallSlot { in_flight, waiting } => {
                write!(
                    f,
                    ", waiting for a call slot: {in_flight} calls to its driver in flight, {waiting} waiting"
                )?;
            }
            Waiting::Call { rpc, consumer, elapsed } => {
                write!(f, ", {rpc}")?;
                if let Some(consumer) = consumer {
                    write!(f, " for {consumer}")?;
                }
                write!(f, " in flight for {:?}", rounded(*elapsed))?;
            }
            Waiting::Check { rpc } => write!(f, ", checking the mount table before {rpc}")?,
            Waiting::Attach => write!(f, ", waiting for the external attach")?,
            Waiting::Retry { next_try, attempts } => {
                let failures = if *attempts == 1 { "failure" } else { "failures" };
                write!(f, ", retrying in {:?} after {attempts} {failures}", rounded(*next_try))?;
            }
            Waiting::Quarantine { reason } => {
                write!(f, " has an unreadable record ({reason}), which is kept; no call is made")?;
            }
            Waiting::ForeignMount { next_try } => {
                let next_try = rounded(*next_try);
                write!(
                    f,
                    ", waiting for a foreign bind mount of its staging path to be removed, next check in {next_try:?}"
                )?;
            }
            Waiting::OtherDriver { rpc } => {
                write!(f, ", waiting for a driver that supports {rpc}")?;
            }
            Waiting::Request { rpc } => {
                write!(f, ", waiting for a new expansion request, since the driver rejected {rpc}")?;
            }
            Waiting::Refused { reason } => write!(f, ", blocked: {reason}")?,
        }
        match &self.consumers[..] {
            [] => write!(f, "; no consumers")?,
            consumers => {
                write!(f, "; consumers: ")?;
                for (at, consumer) in consumers.iter().enumerate().take(MAX_LISTED_CONSUMERS) {
                    let comma = if at == 0 { "" } else { ", " };
                    let state = if consumer.wanted { "" } else { " (terminating)" };
                    write!(f, "{comma}{}{state}", consumer.consumer)?;
                }
                if let Some(more) = consumers.len().checked_sub(MAX_LISTED_CONSUMERS).filter(|more| *more > 0)
                {
                    write!(f, " and {more} more")?;
                }
            }
        }
        if let Some(error) = &self.last_error {
            write!(f, "; last error: {error}")?;
        }
        for unapplied in &self.unapplied {
            write!(f, "; {unapplied}")?;
        }
        f.write_str(".")
    }
}

/// The maximum number of consumers in the text.
const MAX_LISTED_CONSUMERS: usize = 8;
