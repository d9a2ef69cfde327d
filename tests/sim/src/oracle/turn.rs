//! What waits for something else on its volume has its turn in the order of coming, and who is refused hears of it in time.

use std::time::Duration;

use csi_proxy::operation::{AskerId, Key};

use super::Verdict;
use crate::world::PeerIndex;

const PROPERTY: &str = "first come, first served, or refused in time";

/// What a clock that goes wrong may add.
const DRIFT: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(crate) struct Turn {
    wait: Duration,
    /// In the order in which they came.
    line: Vec<(PeerIndex, AskerId, Vec<Key>)>,
    verdict: Verdict,
}

impl Turn {
    pub(crate) fn new(wait: Duration) -> Self {
        Self { wait, line: Vec::new(), verdict: Verdict::default() }
    }

    /// An agent has a request wait for its turn.
    pub(crate) fn waits(&mut self, agent: PeerIndex, asker: AskerId, keys: &[Key]) {
        self.line.push((agent, asker, keys.to_vec()));
    }

    /// A request that waited is not needed.
    pub(crate) fn let_go(&mut self, agent: PeerIndex, asker: AskerId) {
        self.line.retain(|waits| (waits.0, waits.1) != (agent, asker));
    }

    /// An agent is about to have an operation done with the request of a call, which has waited or has just come.
    pub(crate) fn begins(&mut self, at: Duration, agent: PeerIndex, asker: AskerId, keys: &[Key]) {
        let ahead = self.line.iter().take_while(|waits| (waits.0, waits.1) != (agent, asker));
        let passed =
            ahead.filter(|waits| waits.0 == agent).find(|waits| keys.iter().any(|key| waits.2.contains(key)));
        if let Some((_, other, _)) = passed {
            self.verdict.broken(PROPERTY, at, || {
                format!("process {agent} begins {asker:?} before {other:?}, which came first")
            });
        }
        self.let_go(agent, asker);
    }

    /// A call that asked at `asked` is told that something else is pending.
    pub(crate) fn refused(&mut self, at: Duration, asked: Duration, until: Option<Duration>) {
        let in_time = until.is_none_or(|until| at == asked || at < until);
        if at > asked + self.wait + DRIFT || !in_time {
            self.verdict.broken(PROPERTY, at, || {
                format!("who asked at {asked:?} and waits until {until:?} is refused now")
            });
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
