//! A caller gets the driver's answer to its own call, complete and in order, or a failure that permits a retry.

use bytes::Bytes;
use csi_proxy::{Code, Origin, Outcome};

use super::{Expect, FirstViolation};
use crate::answer::{Closing, Part};
use crate::facts::{End, Facts};
use crate::ids::{AttemptId, Moment, OperationId};

const PROPERTY: &str = "an answer is the driver's own, to the call that was made";

#[derive(Debug)]
pub(crate) struct OwnAnswer {
    expect: Expect,
    first_violation: FirstViolation,
}

impl OwnAnswer {
    pub(crate) fn new(expect: Expect) -> Self {
        Self { expect, first_violation: FirstViolation::default() }
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
        let Some(operation) = facts.attempt(attempt).map(|attempt| attempt.operation) else { return };
        if !self.expect.whole {
            return;
        }
        match end {
            End::Answered(outcome) => self.answered(now, operation, messages, outcome),
            End::Failed(fault) => {
                let Outcome { code, message: text, .. } = fault.to_status();
                let retryable = [Code::CANCELLED, Code::DEADLINE_EXCEEDED, Code::UNAVAILABLE, Code::ABORTED];
                if !retryable.contains(&code) {
                    self.first_violation.broken(PROPERTY, now.at, || {
                        format!("{attempt:?} failed with the final code {code}: {text}")
                    });
                }
            }
            End::Left | End::Late | End::Died => {}
        }
    }

    fn answered(&mut self, now: Moment, operation: OperationId, messages: &[Bytes], outcome: &Outcome) {
        let Some(end) = Closing::read(outcome).filter(|_| outcome.origin == Origin::Driver) else {
            self.first_violation.broken(PROPERTY, now.at, || format!("{operation:?} ended with {outcome:?}"));
            return;
        };
        let parts: Vec<Option<Part>> = messages.iter().map(Part::read).collect();
        let expected: Vec<Option<Part>> = (1..=end.messages)
            .map(|number| Some(Part { operation, execution: end.execution, number }))
            .collect();
        if end.operation != operation || parts != expected {
            self.first_violation.broken(PROPERTY, now.at, || {
                format!("{operation:?} got the messages {parts:?} and the end {end:?}")
            });
        }
    }

    pub(super) const fn first_violation(&mut self) -> &mut FirstViolation {
        &mut self.first_violation
    }
}
