//! A relay that fails on purpose, for tests of what stands before it.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use async_trait::async_trait;
use futures_util::stream;

use crate::call::{Call, Fault, Replies, Reply};
use crate::relay::Relay;

/// What becomes of one call.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fate {
    /// It passes.
    Pass,
    /// It fails before the far end has seen it.
    Lost(Fault),
    /// The far end answers in full, and the answer is lost.
    AnswerLost(Fault),
    /// The answer is cut after so many messages.
    Cut {
        /// Messages that still arrive.
        after: usize,
        /// The end that stands in the place of the real one.
        fault: Fault,
    },
}

/// Deals out fates by a script, one a call in the order in which calls come; when the script is over, all calls pass.
#[derive(Debug)]
pub struct FaultyRelay<R> {
    far: R,
    script: Mutex<VecDeque<Fate>>,
}

impl<R: Relay> FaultyRelay<R> {
    /// A relay to this far end, with a script.
    #[must_use]
    pub fn new(far: R, script: impl IntoIterator<Item = Fate>) -> Self {
        Self { far, script: Mutex::new(script.into_iter().collect()) }
    }

    /// Adds to the end of the script.
    pub fn push(&self, fate: Fate) {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).push_back(fate);
    }

    fn next_fate(&self) -> Fate {
        self.script.lock().unwrap_or_else(PoisonError::into_inner).pop_front().unwrap_or(Fate::Pass)
    }
}

#[async_trait]
impl<R: Relay> Relay for FaultyRelay<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        match self.next_fate() {
            Fate::Pass => self.far.relay(call).await,
            Fate::Lost(fault) => Err(fault),
            Fate::AnswerLost(fault) => {
                let mut replies = self.far.relay(call).await?;
                while replies.next().await.is_some() {}
                Err(fault)
            }
            Fate::Cut { after, fault } => {
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
