//! What a caller gets is the driver's answer to its own call, whole and in order, or a failure that lets it ask again.

use std::time::Duration;

use bytes::Bytes;
use csi_proxy::{Code, Fault, Origin, Outcome};
use edge_transport::frame::End;
use edge_transport::{Failure, Reason};

use super::Verdict;
use crate::answer::{Closing, Part};
use crate::world::PeerIndex;

const PROPERTY: &str = "an answer is the driver's own, to the call that was made";

#[derive(Debug, Default)]
pub(crate) struct OwnAnswer {
    whole: bool,
    verdict: Verdict,
}

impl OwnAnswer {
    pub(crate) fn new(whole: bool) -> Self {
        Self { whole, verdict: Verdict::default() }
    }

    /// A caller gets the end that a driver gave. Returns the execution that it tells of.
    pub(crate) fn finished(
        &mut self,
        at: Duration,
        operation: usize,
        messages: &[Bytes],
        outcome: &Outcome,
    ) -> Option<usize> {
        if !self.whole {
            return None;
        }
        let Some(end) = Closing::read(outcome).filter(|_| outcome.origin == Origin::Driver) else {
            self.verdict.broken(PROPERTY, at, || format!("operation {operation} ended with {outcome:?}"));
            return None;
        };
        let parts: Vec<Option<Part>> = messages.iter().map(Part::read).collect();
        let expected: Vec<Option<Part>> = (1..=end.messages)
            .map(|number| Some(Part { operation, execution: end.execution, number }))
            .collect();
        if end.operation != operation || parts != expected {
            self.verdict.broken(PROPERTY, at, || {
                format!("operation {operation} got the messages {parts:?} and the end {end:?}")
            });
        }
        Some(end.execution)
    }

    /// A caller gets a failure of ours. Those that say for sure that nothing runs would be lies here.
    pub(crate) fn failed(&mut self, at: Duration, number: u64, failure: &Failure) {
        let expected = matches!(
            failure.reason(),
            Reason::PeerOffline
                | Reason::LinkLost
                | Reason::Draining
                | Reason::Deadline
                | Reason::Overloaded
                | Reason::ServiceLost
        );
        let broken_on_the_way = !self.whole;
        if !expected && !broken_on_the_way && failure.reason() != Reason::Protocol {
            self.verdict.broken(PROPERTY, at, || format!("call {number} failed with {failure}"));
        }
    }

    /// A caller gets a fault that an agent has found.
    pub(crate) fn fault(&mut self, at: Duration, number: u64, fault: &Fault) {
        let Outcome { code, message: text, .. } = fault.to_status();
        let may_go_on = [Code::CANCELLED, Code::DEADLINE_EXCEEDED, Code::UNAVAILABLE, Code::ABORTED];
        if self.whole && !may_go_on.contains(&code) {
            self.verdict
                .broken(PROPERTY, at, || format!("call {number} failed with the final code {code}: {text}"));
        }
    }

    /// A caller gets an end that says nothing.
    pub(crate) fn no_closing(&mut self, at: Duration, number: u64) {
        if self.whole {
            self.verdict.broken(PROPERTY, at, || format!("call {number} ended without a closing"));
        }
    }

    /// A caller gets an end of a kind that nothing here knows.
    pub(crate) fn unknown_end(&mut self, at: Duration, number: u64, end: &End) {
        self.verdict.broken(PROPERTY, at, || format!("call {number} ended with {end:?}"));
    }

    /// A session hands something over for a call that nobody waits for.
    pub(crate) fn nobody_asked(&mut self, at: Duration, peer: PeerIndex, number: u64) {
        self.verdict
            .broken(PROPERTY, at, || format!("process {peer} got something for call {number} after its end"));
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
