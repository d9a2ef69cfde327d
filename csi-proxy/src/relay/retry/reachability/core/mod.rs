//! The state machine of hubs and nodes, without a clock.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::node::{Link, Node, Session};
use super::{Missing, NodeChange, NodeStatus};
use crate::call::{HashMap, NodeId, NodeSession};

/// How long to wait for a complete list of nodes after the loss of a hub, before the nodes count as lost.
const LIST_LIMIT: Duration = Duration::from_secs(30);

/// A node that is offline for this long is evicted: it is treated like an unknown node.
const EVICTED_AFTER: Duration = Duration::from_secs(600);

/// A hub. Never used again for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct HubId(u64);

/// How a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    Lost,
    Drained,
}

/// [`Reachability`](super::Reachability) without a clock. Each event returns whether anything changed.
///
/// A node has the session of its agent with the highest number, at whichever hub. In the table, "a list" is a complete list of
/// any connected hub.
///
/// | Hubs | Node | A call |
/// |---|---|---|
/// | a list | up | is sent |
/// | a list | lost for less than the grace, alone or with its hub | waits until the grace ends |
/// | a list | lost for longer, or flapping, or never seen | fails |
/// | a list of another hub | up when its own hub was lost, which is connected again | waits as long for the list of that hub as without another |
/// | any connected | two agents with its name connected to two hubs | waits until the grace ends that began with the second, then fails |
/// | any connected | one of two agents lost for less than 10 s | waits until then |
/// | connected, no list | up in a new list | is sent |
/// | connected, no list | up when its hub was lost | waits until the grace ends that begins with a list, at the latest 30 s after the loss |
/// | connected, no list | lost before | waits until its grace ends, or fails |
/// | connected, list refused | up when its hub was lost | waits until the grace ends that began with the loss of the last list |
/// | lost for less than the grace | up, or lost for less than the grace | waits until the first of both graces ends |
/// | lost for longer | any | fails |
///
/// Before the first complete list every node counts as up when the hub was lost.
#[derive(Debug)]
pub(super) struct Core {
    grace: Duration,
    hubs: BTreeMap<HubId, Hub>,
    next_hub: u64,
    /// When the last connected hub was lost.
    hub_lost: Instant,
    /// When the last complete list was lost.
    list_lost: Instant,
    nodes: HashMap<NodeId, Node>,
    /// The end of the grace of unknown nodes; `None` before the first complete list.
    unseen: Option<Instant>,
    /// The number of nodes at which offline nodes are evicted.
    evict_at: usize,
}

#[derive(Debug)]
struct Hub {
    state: HubState,
    /// When its last list was lost.
    list_lost: Instant,
    /// Increases with every loss of the hub. A session with this number is in the new list.
    list: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum HubState {
    Lost,
    /// Connected. `failure` says why the hub does not list its nodes, if it has said so.
    Listing {
        failure: Option<Arc<str>>,
    },
    Listed,
}

impl Core {
    pub(super) fn new(grace: Duration, now: Instant) -> Self {
        Self {
            grace,
            hubs: BTreeMap::new(),
            next_hub: 0,
            hub_lost: now,
            list_lost: now,
            nodes: HashMap::default(),
            unseen: None,
            evict_at: 64,
        }
    }

    pub(super) const fn grace(&self) -> Duration {
        self.grace
    }

    pub(super) fn add_hub(&mut self, now: Instant) -> HubId {
        self.next_hub += 1;
        let id = HubId(self.next_hub);
        self.hubs.insert(id, Hub { state: HubState::Lost, list_lost: now, list: 0 });
        id
    }

    pub(super) fn remove_hub(&mut self, id: HubId, now: Instant, changes: &mut Vec<NodeChange>) -> bool {
        self.hub_lost(id, now, changes);
        self.lose_nodes_of(|hub| hub == id, now, changes);
        self.hubs.remove(&id).is_some()
    }

    pub(super) fn status(&self, node: &NodeId, now: Instant) -> NodeStatus {
        let known = self.nodes.get(node);
        let listed = match known.map(|node| node.link) {
            Some(Link::Up(session)) if self.is_current(&session) => {
                let contested = known.and_then(|node| node.contested_until(self.grace, now));
                return match contested {
                    None => NodeStatus::Connected(session.id),
                    Some(until) => waits(until, Missing::OneAgent, now),
                };
            }
            Some(Link::Up(_)) => None,
            Some(Link::Lost { .. })
                if !self.has_list() && known.is_some_and(|node| node.is_suspended(self.list_lost)) =>
            {
                None
            }
            Some(Link::Lost { grace_ends, .. }) => Some(grace_ends),
            None => self.unseen,
        };
        let (until, missing) = match self.best_hub() {
            HubState::Lost => {
                let until = self.hub_lost + self.grace;
                (listed.map_or(until, |listed| listed.min(until)), Missing::Hub)
            }
            HubState::Listing { failure: None } => {
                (listed.unwrap_or(self.list_lost + LIST_LIMIT + self.grace), Missing::Node)
            }
            HubState::Listing { failure: Some(cause) } => {
                (listed.unwrap_or(self.list_lost + self.grace), Missing::List { cause: Arc::clone(cause) })
            }
            HubState::Listed => {
                let own_hub = known.and_then(Node::session).map(|session| session.hub);
                (listed.or_else(|| self.list_expected(own_hub?)).unwrap_or(now), Missing::Node)
            }
        };
        waits(until, missing, now)
    }

    /// Until when nodes that were up when this hub was lost wait for its new list.
    fn list_expected(&self, hub: HubId) -> Option<Instant> {
        let hub = self.hubs.get(&hub)?;
        match hub.state {
            HubState::Listing { failure: None } => Some(hub.list_lost + LIST_LIMIT + self.grace),
            HubState::Lost | HubState::Listing { .. } | HubState::Listed => Some(hub.list_lost + self.grace),
        }
    }

    pub(super) fn contested(&self) -> Vec<NodeId> {
        let contested = self.nodes.iter().filter(|(_, node)| node.is_contested());
        let mut nodes: Vec<_> = contested.map(|(name, _)| name.clone()).collect();
        nodes.sort();
        nodes
    }

    #[cfg(any(test, feature = "edge-transport"))]
    pub(super) fn hub_of(&self, node: &NodeId, session: Option<NodeSession>) -> Option<HubId> {
        let known = self.nodes.get(node)?.session()?;
        (self.is_current(&known) && session.is_none_or(|session| session == known.id)).then_some(known.hub)
    }

    /// Whether a connected hub has listed this session.
    fn is_current(&self, session: &Session) -> bool {
        self.hubs.get(&session.hub).is_some_and(|hub| match hub.state {
            HubState::Lost => false,
            HubState::Listing { .. } => session.list == hub.list,
            HubState::Listed => true,
        })
    }

    /// Whether a connected hub has listed its nodes.
    fn has_list(&self) -> bool {
        *self.best_hub() == HubState::Listed
    }

    /// The state of the hub that knows most.
    fn best_hub(&self) -> &HubState {
        let rank = |state: &&HubState| match state {
            HubState::Lost => 0,
            HubState::Listing { failure: Some(_) } => 1,
            HubState::Listing { failure: None } => 2,
            HubState::Listed => 3,
        };
        self.hubs.values().map(|hub| &hub.state).max_by_key(rank).unwrap_or(&HubState::Lost)
    }

    pub(super) fn hub_connected(&mut self, id: HubId) -> bool {
        let Some(hub) = self.hubs.get_mut(&id) else { return false };
        let is_new = hub.state == HubState::Lost;
        if is_new {
            hub.state = HubState::Listing { failure: None };
        }
        is_new
    }

    pub(super) fn list_failed(&mut self, id: HubId, cause: &str, changes: &mut Vec<NodeChange>) -> bool {
        let Some(Hub { state: HubState::Listing { failure }, .. }) = self.hubs.get_mut(&id) else {
            return false;
        };
        let changed = failure.as_deref() != Some(cause);
        *failure = Some(cause.into());
        changes.push(NodeChange::Failed { cause: cause.to_owned() });
        changed
    }

    pub(super) fn hub_lost(&mut self, id: HubId, now: Instant, changes: &mut Vec<NodeChange>) -> bool {
        let had_list = self.has_list();
        let Some(hub) = self.hubs.get_mut(&id) else { return false };
        match std::mem::replace(&mut hub.state, HubState::Lost) {
            HubState::Lost => return false,
            HubState::Listing { .. } => {}
            HubState::Listed => hub.list_lost = now,
        }
        hub.list += 1;
        if *self.best_hub() == HubState::Lost {
            self.hub_lost = now;
        }
        if had_list && !self.has_list() {
            self.list_lost = now;
        }
        for node in self.nodes.values_mut() {
            node.end_contest(|session| session.hub == id, now);
        }
        if self.has_list() {
            self.lose_nodes_of(|hub| hub == id, now, changes);
        }
        true
    }

    pub(super) fn node_up(
        &mut self,
        hub: HubId,
        name: &NodeId,
        session: NodeSession,
        now: Instant,
        changes: &mut Vec<NodeChange>,
    ) -> bool {
        self.evict(now);
        let Some(list) = self.hubs.get(&hub).map(|hub| hub.list) else { return false };
        let fresh = Session { hub, id: session, since: now, list };
        let hubs = &self.hubs;
        let is_live = |hub: HubId| hubs.get(&hub).is_some_and(|hub| hub.state != HubState::Lost);
        let Some(node) = self.nodes.get_mut(name) else {
            self.nodes.insert(name.clone(), Node::new(fresh));
            changes.push(NodeChange::Up(name.clone()));
            return true;
        };
        let was_contested = node.is_contested();
        let is_repeated = node.session().is_some_and(|known| known.id == session);
        if !node.up(fresh, is_live) {
            return false;
        }
        if node.is_contested() && !was_contested {
            changes.push(NodeChange::Contested(name.clone()));
        } else if !is_repeated {
            changes.push(NodeChange::Up(name.clone()));
        }
        true
    }

    pub(super) fn node_down(
        &mut self,
        hub: HubId,
        name: &NodeId,
        (lost, end): (NodeSession, SessionEnd),
        now: Instant,
        changes: &mut Vec<NodeChange>,
    ) -> bool {
        let (Some(node), Some(hub)) = (self.nodes.get_mut(name), self.hubs.get(&hub)) else { return false };
        if node.end_contest(|session| session.id == lost, now) {
            return true;
        }
        let Link::Up(Session { id, since, list, .. }) = node.link else { return false };
        if id != lost {
            return false;
        }
        let begins = if list < hub.list && hub.state != HubState::Listed {
            // The node is not in the new list of the hub, after it was lost together with the hub.
            now.min(hub.list_lost + LIST_LIMIT)
        } else {
            if end == SessionEnd::Lost {
                node.count_loss(since, now);
            }
            now
        };
        node.lose(begins, false, self.grace, now);
        changes.push(NodeChange::Down(name.clone()));
        true
    }

    pub(super) fn synced(&mut self, id: HubId, now: Instant, changes: &mut Vec<NodeChange>) -> bool {
        let had_list = self.has_list();
        let Some(hub) = self.hubs.get_mut(&id) else { return false };
        if hub.state == HubState::Listed {
            return false;
        }
        hub.state = HubState::Listed;
        if !had_list {
            let begins = now.min(self.list_lost + LIST_LIMIT);
            for node in self.nodes.values_mut().filter(|node| node.is_suspended(self.list_lost)) {
                node.lose(begins, true, self.grace, now);
            }
        }
        self.unseen.get_or_insert_with(|| now.min(self.list_lost + LIST_LIMIT) + self.grace);
        // The nodes of hubs that were lost are expected at this one or another.
        let lost: Vec<_> =
            self.hubs.iter().filter(|(_, hub)| hub.state == HubState::Lost).map(|(id, _)| *id).collect();
        if !lost.is_empty() {
            self.lose_nodes_of(|hub| lost.contains(&hub), now, changes);
        }
        if !self.hubs.values().any(|hub| matches!(hub.state, HubState::Listing { failure: None })) {
            changes.push(NodeChange::Synced);
        }
        true
    }

    /// Records the loss of the nodes of some hubs that are lost, while another hub has listed its nodes. The grace begins now, at
    /// the latest 30 s after the loss of the hub.
    fn lose_nodes_of(
        &mut self,
        is_lost: impl Fn(HubId) -> bool,
        now: Instant,
        changes: &mut Vec<NodeChange>,
    ) {
        for (name, node) in &mut self.nodes {
            let Link::Up(session) = node.link else { continue };
            if is_lost(session.hub) {
                let hub_lost = self.hubs.get(&session.hub).map_or(now, |hub| hub.list_lost);
                node.lose(now.min(hub_lost + LIST_LIMIT), true, self.grace, now);
                changes.push(NodeChange::Down(name.clone()));
            }
        }
    }

    /// Evicts nodes that are offline for [`EVICTED_AFTER`], if there are many nodes.
    fn evict(&mut self, now: Instant) {
        if self.nodes.len() >= self.evict_at {
            let is_known = |link: Link| match link {
                Link::Up(_) => true,
                Link::Lost { since, .. } => now < since + EVICTED_AFTER,
            };
            self.nodes.retain(|_, node| is_known(node.link));
            self.evict_at = 64.max(2 * self.nodes.len());
        }
    }
}

/// Waits until a time, or no longer.
fn waits(until: Instant, missing: Missing, now: Instant) -> NodeStatus {
    if now < until { NodeStatus::Reconnecting { until, missing } } else { NodeStatus::Away(missing) }
}

#[cfg(test)]
mod tests;
