//! A relay with injected faults, for tests.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::stream;

use crate::call::{Call, Fault, Replies, Reply};
use crate::relay::Relay;

/// The injected fault of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum InjectedFault {
    /// No fault.
    Pass,
    /// The call fails before the far end receives it.
    Lost(Fault),
    /// The far end answers completely, and the answer is lost.
    AnswerLost(Fault),
    /// The answer is truncated after a number of messages.
    Cut {
        /// The number of messages before the cut.
        after: usize,
        /// The end that replaces the real one.
        fault: Fault,
    },
}

/// Injects faults by a script, one per call in order; after the script all calls pass.
#[derive(Debug)]
pub struct FaultyRelay<R> {
    far: R,
    script: Mutex<VecDeque<InjectedFault>>,
}

impl<R: Relay> FaultyRelay<R> {
    /// Creates a relay to this far end with a script.
    #[must_use]
    pub fn new(far: R, script: impl IntoIterator<Item = InjectedFault>) -> Self {
        Self { far, script: Mutex::new(script.into_iter().collect()) }
    }

    /// Appends a fault to the script.
    pub fn push(&self, fault: InjectedFault) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(fault);
    }

    fn next_fault(&self) -> InjectedFault {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(InjectedFault::Pass)
    }
}

#[async_trait]
impl<R: Relay> Relay for FaultyRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match self.next_fault() {
            InjectedFault::Pass => self.far.relay(call).await,
            InjectedFault::Lost(fault) => Err(fault),
            InjectedFault::AnswerLost(fault) => {
                let mut replies = self.far.relay(call).await?;
                while replies.next().await.is_some() {}
                Err(fault)
            }
            InjectedFault::Cut { after, fault } => {
                let replies = self.far.relay(call).await?;
                Ok(Replies::stream(stream::unfold(Some((replies, after, fault)), |state| async move {
                    let (mut replies, left, fault) = state?;
                    match replies.next().await {
                        Some(Reply::Message(message)) if left > 0 => {
                            Some((Reply::Message(message), Some((replies, left - 1, fault))))
                        }
                        _ => Some((Reply::End(fault.into()), None)),
                    }
                })))
            }
        }
    }
}
