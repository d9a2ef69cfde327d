//! One node: its session, other agents with its name, and its losses.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::core::HubId;
use crate::call::NodeSession;

/// The number of losses within [`FLAPPING_WINDOW`] after which a node has no grace.
const FLAPPING_LOSSES: usize = 3;

/// The time within which losses are counted.
const FLAPPING_WINDOW: Duration = Duration::from_secs(60);

/// How long a node must be up to regain its grace.
const STEADY_AFTER: Duration = Duration::from_secs(30);

/// How long one of two agents with one name must be lost before calls are sent to the other.
const CONTESTED_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Node {
    pub(super) link: Link,
    /// The sessions of other agents with the node's name, each at another hub.
    rivals: Vec<Session>,
    contest: Contest,
    /// The last losses, at most [`FLAPPING_LOSSES`], without those of the hub.
    losses: VecDeque<Instant>,
    /// Whether the node was lost too often, and was not up for [`STEADY_AFTER`] since.
    flapping: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Link {
    Up(Session),
    /// `with_hub`: the node was up when its hub was lost.
    Lost {
        since: Instant,
        grace_ends: Instant,
        with_hub: bool,
    },
}

/// A session as a hub reports it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Session {
    pub(super) hub: HubId,
    pub(super) id: NodeSession,
    pub(super) since: Instant,
    /// The number of the hub's list that contains it.
    pub(super) list: u64,
}

/// Whether several agents have the node's name.
#[derive(Debug, Clone, Copy)]
enum Contest {
    Never,
    Since(Instant),
    EndedAt(Instant),
}

impl Node {
    pub(super) const fn new(session: Session) -> Self {
        Self {
            link: Link::Up(session),
            rivals: Vec::new(),
            contest: Contest::Never,
            losses: VecDeque::new(),
            flapping: false,
        }
    }

    /// The node's session.
    pub(super) const fn session(&self) -> Option<Session> {
        match self.link {
            Link::Up(session) => Some(session),
            Link::Lost { .. } => None,
        }
    }

    /// Records a session. Returns `false` if it has ended already. `is_live` says whether a hub is connected.
    pub(super) fn up(&mut self, new: Session, is_live: impl Fn(HubId) -> bool) -> bool {
        let all: Vec<Session> = self.session().into_iter().chain(self.rivals.iter().copied()).collect();
        let known = all.iter().position(|known| known.id.instance == new.id.instance);
        let known_session = known.map(|at| all[at]);
        if known_session.is_some_and(|known| known.id.number > new.id.number) {
            return false;
        }
        // A new list repeats a known session.
        let since = known_session.filter(|known| known.id == new.id).map_or(new.since, |known| known.since);
        let new = Session { since, ..new };
        // A hub has only one session of a name, and a hub that is not connected proves nothing.
        let mut others: Vec<Session> = all
            .into_iter()
            .filter(|other| {
                other.id.instance != new.id.instance && other.hub != new.hub && is_live(other.hub)
            })
            .collect();
        if known == Some(0) || others.is_empty() {
            self.link = Link::Up(new);
        } else {
            self.link = Link::Up(others.remove(0));
            others.push(new);
        }
        self.set_rivals(others, new.since);
        true
    }

    /// Whether several agents with the node's name are connected.
    pub(super) const fn is_contested(&self) -> bool {
        matches!(self.contest, Contest::Since(_))
    }

    /// Until when no call is sent because several agents have the node's name; `None` if there is one.
    pub(super) fn contested_until(&self, grace: Duration, now: Instant) -> Option<Instant> {
        match self.contest {
            Contest::Never => None,
            // A report of the end of the older one may be under way.
            Contest::Since(since) => Some(since + grace),
            Contest::EndedAt(at) => Some(at + CONTESTED_AFTER).filter(|until| now < *until),
        }
    }

    /// Removes the sessions that are lost, while another is left. Returns whether any was.
    pub(super) fn end_contest(&mut self, is_lost: impl Fn(&Session) -> bool, now: Instant) -> bool {
        if !self.is_contested() {
            return false;
        }
        let mut rivals = std::mem::take(&mut self.rivals);
        let before = rivals.len();
        rivals.retain(|rival| !is_lost(rival));
        let mut ended = rivals.len() < before;
        if self.session().is_some_and(|session| is_lost(&session)) && !rivals.is_empty() {
            self.link = Link::Up(rivals.remove(0));
            ended = true;
        }
        self.set_rivals(rivals, now);
        ended
    }

    fn set_rivals(&mut self, rivals: Vec<Session>, now: Instant) {
        self.rivals = rivals;
        self.contest = match (self.contest, self.rivals.is_empty()) {
            (Contest::Since(_), true) => Contest::EndedAt(now),
            (Contest::Never | Contest::EndedAt(_), false) => Contest::Since(now),
            (contest, _) => contest,
        };
    }

    /// Records the loss of the session; its grace begins at `begins`.
    pub(super) fn lose(&mut self, begins: Instant, with_hub: bool, grace: Duration, now: Instant) {
        let grace_ends = if self.flapping { now } else { begins + grace };
        self.link = Link::Lost { since: now, grace_ends, with_hub };
    }

    /// Whether the grace of a node that was lost with its hub was running when the last list was lost. It begins again with
    /// the next list.
    pub(super) fn is_suspended(&self, list_lost: Instant) -> bool {
        matches!(self.link, Link::Lost { grace_ends, with_hub: true, .. } if grace_ends > list_lost)
    }

    /// Counts a loss that is not the hub's.
    pub(super) fn count_loss(&mut self, up_since: Instant, now: Instant) {
        if self.flapping && now >= up_since + STEADY_AFTER {
            self.flapping = false;
            self.losses.clear();
        }
        self.losses.push_back(now);
        self.losses.retain(|loss| now < *loss + FLAPPING_WINDOW);
        self.flapping |= self.losses.len() >= FLAPPING_LOSSES;
        self.losses.truncate(FLAPPING_LOSSES);
    }
}
