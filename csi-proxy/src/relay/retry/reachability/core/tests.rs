#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use super::super::Reachability;
use super::*;

const GRACE: Duration = Duration::from_secs(5);

/// A core with a controlled clock, in seconds since the start of the proxy.
struct World {
    core: Core,
    /// The first hub; the second is never connected, unless a test is about it.
    hub: HubId,
    other: HubId,
    changes: Vec<NodeChange>,
    start: Instant,
    now: Instant,
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

const fn session(instance: u64, number: u64) -> NodeSession {
    NodeSession { instance, number }
}

impl World {
    fn new() -> Self {
        let start = Instant::now();
        let mut core = Core::new(GRACE, start);
        let (hub, other) = (core.add_hub(start), core.add_hub(start));
        Self { core, hub, other, changes: Vec::new(), start, now: start }
    }

    /// With a complete list of these nodes, each with its first session.
    fn with(names: &[&str]) -> Self {
        let mut world = Self::new();
        world.hub_connected();
        world.up(names);
        world.synced();
        world
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        let now = self.start + Duration::from_secs_f64(seconds);
        assert!(now >= self.now, "time must not go backwards");
        self.now = now;
        self
    }

    fn hub_connected(&mut self) {
        self.core.hub_connected(self.hub);
    }

    fn synced(&mut self) {
        self.core.synced(self.hub, self.now, &mut self.changes);
    }

    fn node_up(&mut self, name: &str, session: NodeSession) {
        self.core.node_up(self.hub, &node(name), session, self.now, &mut self.changes);
    }

    fn node_down(&mut self, name: &str, session: NodeSession) {
        self.core.node_down(self.hub, &node(name), (session, SessionEnd::Lost), self.now, &mut self.changes);
    }

    /// Runs the events of the second hub.
    fn at_other(&mut self, events: impl FnOnce(&mut Self)) {
        std::mem::swap(&mut self.hub, &mut self.other);
        events(self);
        std::mem::swap(&mut self.hub, &mut self.other);
    }

    fn take_changes(&mut self) -> Vec<NodeChange> {
        std::mem::take(&mut self.changes)
    }

    fn up(&mut self, names: &[&str]) {
        for name in names {
            self.node_up(name, session(1, 1));
        }
    }

    fn down(&mut self, name: &str) {
        self.node_down(name, session(1, 1));
    }

    fn hub_lost(&mut self, seconds: f64) {
        self.at(seconds);
        self.core.hub_lost(self.hub, self.now, &mut self.changes);
    }

    fn flap(&mut self, seconds: f64) {
        self.at(seconds).up(&["a"]);
        self.down("a");
    }

    fn status(&self, name: &str) -> NodeStatus {
        self.core.status(&node(name), self.now)
    }

    /// The second until which a call waits.
    fn waits(&self, name: &str) -> Option<(f64, Missing)> {
        match self.status(name) {
            NodeStatus::Reconnecting { until, missing } => {
                Some(((until - self.start).as_secs_f64(), missing))
            }
            NodeStatus::Connected(_) | NodeStatus::Away(_) => None,
        }
    }
}

const UP: NodeStatus = NodeStatus::Connected(session(1, 1));
const NODE_AWAY: NodeStatus = NodeStatus::Away(Missing::Node);
const HUB_AWAY: NodeStatus = NodeStatus::Away(Missing::Hub);

#[test]
fn waits_for_lost_node_within_its_grace() {
    let mut world = World::with(&["a", "b"]);
    assert_eq!(world.status("a"), UP);
    world.at(100.0).down("a");
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
    assert_eq!(world.at(104.9).waits("a"), Some((105.0, Missing::Node)));
    assert_eq!(world.at(105.0).status("a"), NODE_AWAY);
    assert_eq!(world.status("b"), UP);
    world.up(&["a"]);
    assert_eq!(world.status("a"), UP);
}

#[test]
fn unlisted_node_is_offline() {
    let mut world = World::with(&["a"]);
    assert_eq!(world.at(100.0).status("never-seen"), NODE_AWAY);
}

#[test]
fn zero_grace_disables_waiting() {
    let mut world = World::with(&["a"]);
    world.core.grace = Duration::ZERO;
    world.at(100.0).down("a");
    assert_eq!(world.status("a"), NODE_AWAY);
    world.hub_lost(100.0);
    assert_eq!(world.status("b"), HUB_AWAY);
}

#[test]
fn waits_for_lost_hub_within_the_grace() {
    let mut world = World::with(&["a", "b"]);
    world.at(50.0).down("b");
    world.hub_lost(100.0);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Hub)));
    assert_eq!(world.status("b"), HUB_AWAY, "it was away before");
    assert_eq!(world.at(105.0).status("a"), HUB_AWAY);
}

#[test]
fn node_lost_before_the_hub_keeps_its_grace() {
    let mut world = World::with(&["a"]);
    world.at(100.0).down("a");
    world.hub_lost(102.0);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Hub)));
    world.at(103.0).hub_connected();
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
}

#[test]
fn grace_starts_with_the_list_of_the_next_hub() {
    let mut world = World::with(&["a", "b"]);
    world.hub_lost(100.0);
    world.at(115.0).hub_connected();
    world.up(&["b"]);
    assert_eq!(world.status("b"), UP, "a listed node needs no complete list");
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    world.at(120.0).down("a");
    world.synced();
    assert_eq!(world.waits("a"), Some((125.0, Missing::Node)));
    assert_eq!(world.at(125.0).status("a"), NODE_AWAY);
}

#[test]
fn grace_starts_at_most_30_s_after_hub_loss() {
    let mut world = World::with(&["a"]);
    world.hub_lost(100.0);
    world.at(131.0).hub_connected();
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    world.at(133.0).down("a");
    world.synced();
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    assert_eq!(world.at(135.0).status("a"), NODE_AWAY);
}

#[test]
fn repeated_hub_loss_does_not_extend_the_limit() {
    let mut world = World::with(&["a"]);
    for lost in [100.0, 110.0, 120.0] {
        world.hub_lost(lost);
        world.at(lost + 2.0).hub_connected();
    }
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
}

#[test]
fn unreported_node_is_up_after_sync() {
    let mut world = World::with(&["a"]);
    world.hub_lost(100.0);
    world.hub_connected();
    assert!(world.waits("a").is_some());
    world.synced();
    assert_eq!(world.status("a"), UP);
}

#[test]
fn start_behaves_like_a_hub_loss() {
    let mut world = World::new();
    assert_eq!(world.waits("a"), Some((5.0, Missing::Hub)));
    assert_eq!(world.at(5.0).status("a"), HUB_AWAY);
    world.at(10.0).hub_connected();
    assert_eq!(world.waits("a"), Some((35.0, Missing::Node)));
    world.synced();
    assert_eq!(world.waits("a"), Some((15.0, Missing::Node)));
    assert_eq!(world.at(15.0).status("a"), NODE_AWAY);
    world.hub_lost(100.0);
    assert_eq!(world.status("a"), HUB_AWAY, "the later hub did not list the node");
}

#[test]
fn flapping_node_has_no_grace() {
    let mut world = World::with(&["a"]);
    world.at(100.0).down("a");
    world.flap(130.0);
    assert!(world.waits("a").is_some(), "the second");
    world.flap(159.0);
    assert_eq!(world.status("a"), NODE_AWAY, "the third");
    world.at(161.0).up(&["a"]);
    world.at(190.9).down("a");
    assert_eq!(world.status("a"), NODE_AWAY, "it was up for less than 30 s");
    world.at(200.0).up(&["a"]);
    assert_eq!(world.status("a"), UP, "only the grace is missing");
    world.at(230.0).down("a");
    assert_eq!(world.waits("a"), Some((235.0, Missing::Node)), "it was up for 30 s");
}

/// An update of all hubs moves each node several times.
#[test]
fn drained_sessions_are_no_losses() {
    let mut world = World::with(&["a"]);
    for seconds in [100.0, 110.0, 120.0, 130.0] {
        world.at(seconds).up(&["a"]);
        let end = (session(1, 1), SessionEnd::Drained);
        world.core.node_down(world.hub, &a(), end, world.now, &mut world.changes);
        assert_eq!(world.waits("a"), Some((seconds + 5.0, Missing::Node)));
    }
}

#[test]
fn slow_losses_keep_the_grace() {
    let mut world = World::with(&["a"]);
    world.at(100.0).down("a");
    world.flap(130.0);
    world.flap(160.0);
    assert_eq!(world.waits("a"), Some((165.0, Missing::Node)));
}

#[test]
fn hub_loss_is_not_a_node_loss() {
    let mut world = World::with(&["a"]);
    for lost in [100.0, 105.0, 110.0, 115.0] {
        world.hub_lost(lost);
        world.hub_connected();
        world.down("a");
        world.synced();
        assert!(world.waits("a").is_some(), "{lost}");
        world.up(&["a"]);
    }
}

#[test]
fn ignores_stale_session_events() {
    let mut world = World::with(&["a"]);
    let newer = session(1, 2);
    world.node_up("a", newer);
    world.down("a");
    world.up(&["a"]);
    assert_eq!(world.status("a"), NodeStatus::Connected(newer));
    let other = session(7, 1);
    world.node_up("a", other);
    world.node_down("a", newer);
    assert_eq!(world.status("a"), NodeStatus::Connected(other));
}

#[test]
fn evicts_nodes_that_are_offline_for_long() {
    let mut world = World::with(&["stays"]);
    for number in 0..10_000 {
        let name = format!("n-{number}");
        world.at(f64::from(number) * 10.0).up(&[&name]);
        world.down(&name);
    }
    assert!(world.core.nodes.len() < 200, "{}", world.core.nodes.len());
    assert_eq!(world.status("stays"), UP);
}

#[tokio::test(start_paused = true)]
async fn settles_after_the_grace_or_reconnect() {
    let reachability = Reachability::new(GRACE);
    let hub = reachability.add_hub();
    hub.connected();
    for name in ["a", "b"] {
        hub.node_up(&node(name), session(1, 1));
    }
    hub.synced();
    assert_eq!(reachability.settled(&node("a")).await, UP);
    for name in ["a", "b"] {
        hub.node_down(&node(name), session(1, 1));
    }
    let before = tokio::time::Instant::now();
    let back = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        hub.node_up(&node("b"), session(1, 1));
    };
    let (a, b) = (node("a"), node("b"));
    let (away, up, ()) = tokio::join!(reachability.settled(&a), reachability.settled(&b), back);
    assert_eq!((away, up, before.elapsed()), (NODE_AWAY, UP, GRACE));
}

#[test]
fn hub_that_refuses_the_list_counts_as_lost() {
    let mut world = World::new();
    world.at(1.0).hub_connected();
    assert_eq!(world.waits("a"), Some((35.0, Missing::Node)));
    assert!(world.core.list_failed(world.hub, "forbidden", &mut Vec::new()));
    let missing = Missing::List { cause: "forbidden".into() };
    assert_eq!(world.waits("a"), Some((5.0, missing.clone())));
    assert_eq!(world.at(5.0).status("a"), NodeStatus::Away(missing));
    world.up(&["a"]);
    world.synced();
    assert!(!world.core.list_failed(world.hub, "late", &mut Vec::new()));
    assert_eq!(world.status("a"), UP);
}

/// A world in which `a` is at the first hub and `b` at the second.
fn two_hubs() -> World {
    let mut world = World::with(&["a"]);
    world.at_other(|world| {
        world.hub_connected();
        world.up(&["b"]);
        world.synced();
    });
    world.take_changes();
    world
}

fn a() -> NodeId {
    node("a")
}

#[test]
fn nodes_of_two_hubs_are_up_at_theirs() {
    let world = two_hubs();
    assert_eq!((world.status("a"), world.status("b")), (UP, UP));
    assert_eq!(world.core.hub_of(&a(), None), Some(world.hub));
    assert_eq!(world.core.hub_of(&node("b"), None), Some(world.other));
    assert_eq!(world.core.hub_of(&a(), Some(session(1, 2))), None, "another session");
}

/// The end of the old session may be reported before or after the new one.
#[test]
fn node_is_at_the_hub_with_its_highest_session_number() {
    for late in [false, true] {
        let mut world = two_hubs();
        world.at(100.0);
        if !late {
            world.down("a");
            assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
        }
        world.at_other(|world| world.node_up("a", session(1, 2)));
        if late {
            world.down("a");
        }
        assert_eq!(world.status("a"), NodeStatus::Connected(session(1, 2)), "late: {late}");
        assert_eq!(world.core.hub_of(&a(), Some(session(1, 2))), Some(world.other));
        // A half-open link: the first hub still lists the old session after its own link was lost.
        world.hub_lost(200.0);
        world.hub_connected();
        world.up(&["a"]);
        world.synced();
        assert_eq!(world.core.hub_of(&a(), None), Some(world.other), "late: {late}");
    }
}

#[test]
fn nodes_of_a_lost_hub_have_a_grace_beside_another_hub() {
    let mut world = two_hubs();
    world.hub_lost(100.0);
    assert_eq!(world.status("b"), UP);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
    assert_eq!(world.take_changes(), [NodeChange::Down(a())]);
    world.at(103.0);
    world.at_other(|world| world.node_up("a", session(1, 2)));
    assert_eq!(world.status("a"), NodeStatus::Connected(session(1, 2)));
    assert_eq!(world.take_changes(), [NodeChange::Up(a())]);
    // The hub returns with an older list.
    world.at(104.0).hub_connected();
    world.up(&["a"]);
    world.synced();
    assert_eq!(world.status("a"), NodeStatus::Connected(session(1, 2)));
}

/// Only the link between the proxy and the hub was lost: the node has the same session.
#[test]
fn a_hub_that_returns_has_its_nodes() {
    let mut world = two_hubs();
    world.hub_lost(100.0);
    world.at(120.0).hub_connected();
    assert_eq!(world.status("a"), NODE_AWAY);
    world.take_changes();
    world.up(&["a"]);
    assert_eq!((world.status("a"), world.take_changes()), (UP, vec![NodeChange::Up(a())]));
}

#[test]
fn grace_starts_with_the_list_of_the_first_hub_of_two() {
    let mut world = two_hubs();
    world.hub_lost(100.0);
    world.at_other(|world| world.hub_lost(101.0));
    assert_eq!(world.waits("b"), Some((106.0, Missing::Hub)));
    world.at(110.0);
    world.at_other(World::hub_connected);
    assert_eq!(world.waits("b"), Some((136.0, Missing::Node)));
    world.at_other(World::synced);
    assert_eq!(world.status("b"), UP, "it was not reported as down");
    assert_eq!(world.waits("a"), Some((115.0, Missing::Node)), "its grace was running");
}

/// The link of the proxy to both hubs was cut.
#[test]
fn a_node_waits_for_the_list_of_its_own_hub() {
    let mut world = two_hubs();
    world.hub_lost(100.0);
    world.at_other(|world| world.hub_lost(100.0));
    world.at(102.0).hub_connected();
    world.at_other(|world| {
        world.hub_connected();
        world.up(&["b"]);
        world.synced();
    });
    assert_eq!(world.status("b"), UP);
    assert_eq!(world.waits("a"), Some((107.0, Missing::Node)), "it may be at the second hub by now");
    world.up(&["a"]);
    assert_eq!(world.status("a"), UP);
}

#[test]
fn a_removed_hub_loses_its_nodes() {
    let mut world = two_hubs();
    world.at(100.0);
    world.core.remove_hub(world.hub, world.now, &mut world.changes);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
    assert_eq!(world.status("b"), UP);
    assert!(!world.core.hub_connected(world.hub));
}

#[test]
fn two_live_agents_of_one_name_get_no_call() {
    let mut world = two_hubs();
    world.at(100.0);
    world.at_other(|world| world.node_up("a", session(7, 1)));
    assert_eq!(world.take_changes(), [NodeChange::Contested(a())]);
    assert_eq!(world.core.contested(), [a()]);
    assert_eq!(world.waits("a"), Some((105.0, Missing::OneAgent)));
    assert_eq!(world.at(105.0).status("a"), NodeStatus::Away(Missing::OneAgent));
    world.at(120.0).down("a");
    assert_eq!(world.waits("a"), Some((130.0, Missing::OneAgent)), "until one has been lost for 10 s");
    assert_eq!(world.at(130.0).status("a"), NodeStatus::Connected(session(7, 1)));
    assert_eq!(world.core.hub_of(&a(), None), Some(world.other));
    // The first agent was only cut off.
    world.at(140.0).up(&["a"]);
    assert_eq!(world.core.contested(), [a()]);
}

#[test]
fn an_agent_of_a_lost_hub_does_not_contest() {
    let mut world = two_hubs();
    world.at(100.0);
    world.at_other(|world| world.node_up("a", session(7, 1)));
    world.hub_lost(110.0);
    assert_eq!(world.waits("a"), Some((120.0, Missing::OneAgent)));
    assert_eq!(world.at(120.0).status("a"), NodeStatus::Connected(session(7, 1)));
}

/// A third agent comes and goes: the others are not forgotten.
#[test]
fn three_agents_of_one_name_leave_the_last_one() {
    let mut world = two_hubs();
    let third = world.core.add_hub(world.now);
    world.core.hub_connected(third);
    world.core.synced(third, world.now, &mut Vec::new());
    world.at(100.0);
    world.at_other(|world| world.node_up("a", session(7, 1)));
    world.core.node_up(third, &a(), session(8, 1), world.now, &mut Vec::new());
    let end = (session(8, 1), SessionEnd::Lost);
    world.core.node_down(third, &a(), end, world.now, &mut Vec::new());
    assert_eq!(world.core.contested(), [a()]);
    world.down("a");
    assert_eq!(world.at(110.0).status("a"), NodeStatus::Connected(session(7, 1)));
}

#[test]
fn a_restarted_agent_at_another_hub_gets_calls_at_once() {
    let mut world = two_hubs();
    world.at(100.0).down("a");
    world.at_other(|world| world.node_up("a", session(7, 1)));
    assert_eq!(world.status("a"), NodeStatus::Connected(session(7, 1)));
}
