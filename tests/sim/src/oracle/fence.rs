//! Once a hub has let a later life of a peer in, nothing of an older one passes through it.

use std::collections::BTreeMap;
use std::time::Duration;

use edge_transport::{Epoch, PeerId};

use super::Verdict;

const PROPERTY: &str = "no frame and no answer comes from a fenced epoch";

#[derive(Debug)]
pub(crate) struct Fence {
    /// Where bits are twisted, a hello may claim any epoch.
    whole: bool,
    /// By life of the hub and name: the epochs that were let in, and when.
    admitted: BTreeMap<(u32, String), Vec<(Epoch, Duration)>>,
    verdict: Verdict,
}

impl Fence {
    pub(crate) fn new(whole: bool) -> Self {
        Self { whole, admitted: BTreeMap::new(), verdict: Verdict::default() }
    }

    /// A hub has let a peer in.
    pub(crate) fn admitted(&mut self, hub: u32, name: &str, epoch: Epoch, at: Duration) {
        let lives = self.admitted.entry((hub, name.to_owned())).or_default();
        if self.whole
            && let Some((later, since)) = lives.iter().find(|(later, _)| *later > epoch)
        {
            let since = *since;
            self.verdict.broken(PROPERTY, at, || {
                format!("{name} was let in with epoch {epoch}, after epoch {later} at {since:?}")
            });
        }
        lives.push((epoch, at));
    }

    fn fenced(&self, hub: u32, name: &str, epoch: Epoch) -> Option<(Epoch, Duration)> {
        let lives = self.admitted.get(&(hub, name.to_owned()))?;
        lives.iter().find(|(later, _)| *later > epoch).copied()
    }

    /// A hub was given a frame of a call by a peer, and has passed it on or not.
    pub(crate) fn routed(&mut self, hub: u32, name: &PeerId, epoch: Epoch, passed: bool) {
        if passed
            && self.whole
            && let Some((later, at)) = self.fenced(hub, name.as_str(), epoch)
        {
            self.verdict.broken(PROPERTY, at, || {
                format!("the hub passed on a frame of {name} epoch {epoch} after it had let epoch {later} in")
            });
        }
    }

    /// A caller has got an answer through a hub, of an execution that an agent's life began at `began`.
    pub(crate) fn answered(&mut self, at: Duration, hub: u32, agent: &str, epoch: Epoch, began: Duration) {
        if let Some((later, since)) = self.fenced(hub, agent, epoch)
            && self.whole
            && since < began
        {
            self.verdict.broken(PROPERTY, at, || {
                format!("an answer that {agent} epoch {epoch} began at {began:?} came through a hub that had let epoch {later} in at {since:?}")
            });
        }
    }

    pub(super) const fn verdict(&mut self) -> &mut Verdict {
        &mut self.verdict
    }
}
