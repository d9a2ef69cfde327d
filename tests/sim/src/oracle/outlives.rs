//! A call outlives its link: while both of its peers live, and the way between them comes back in time, it ends with what the
//! driver says.

use std::time::Duration;

use edge_transport::{Failure, Reason};

use super::Verdict;

const PROPERTY: &str = "a call outlives its links";

/// How long a call may take to go on once its way is back: a few times the slowest way there and back.
const PROMPT: Duration = Duration::from_secs(8);

#[derive(Debug)]
pub(crate) struct Outlives {
    /// How long a way may be gone. `None` where calls may end for other reasons: they cannot be resumed at all, bounds are
    /// narrow, or frames are lost on links that stay.
    window: Option<Duration>,
    verdict: Verdict,
}

/// A call that has failed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed {
    pub(crate) number: u64,
    pub(crate) began: Duration,
    /// Its requester and its target are the processes that they were when it was made, and no other life of them runs.
    pub(crate) lived: bool,
    /// A life of its target has worked on it.
    pub(crate) served: bool,
    /// For how long both have had links to one hub that nothing happens to.
    pub(crate) sound: Option<Duration>,
}

impl Outlives {
    pub(crate) fn new(window: Option<Duration>) -> Self {
        Self { window, verdict: Verdict::default() }
    }

    pub(crate) fn failed(&mut self, at: Duration, call: Failed, failure: &Failure) {
        let Some(window) = self.window else { return };
        let Failed { number, began, lived, served, sound } = call;
        let broken = match failure.reason() {
            Reason::LinkLost | Reason::ServiceLost => {
                lived && (at - began < window || sound.is_some_and(|sound| sound > PROMPT))
            }
            // It says that the request was not handed over.
            Reason::PeerOffline => served,
            Reason::Protocol => true,
            _ => false,
        };
        if broken {
            self.verdict.broken(PROPERTY, at, || {
                format!("call {number}, made at {began:?} and served: {served}, ended with {failure}")
            });
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
