#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use super::*;

const GRACE: Duration = Duration::from_secs(5);

/// A core with a controlled clock, in seconds since the start of the proxy.
struct World {
    core: Core,
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
        Self { core: Core::new(GRACE, start), start, now: start }
    }

    /// With a complete list of these nodes, each with its first session.
    fn with(names: &[&str]) -> Self {
        let mut world = Self::new();
        world.core.hub_connected();
        world.up(names);
        world.core.synced(world.now);
        world
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        let now = self.start + Duration::from_secs_f64(seconds);
        assert!(now >= self.now, "time must not go backwards");
        self.now = now;
        self
    }

    fn up(&mut self, names: &[&str]) {
        for name in names {
            self.core.node_up(&node(name), session(1, 1), self.now);
        }
    }

    fn down(&mut self, name: &str) {
        self.core.node_down(&node(name), session(1, 1), self.now);
    }

    fn hub_lost(&mut self, seconds: f64) {
        self.at(seconds);
        self.core.hub_lost(self.now);
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
    world.core.hub_lost(world.now);
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
    world.at(103.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
}

#[test]
fn grace_starts_with_the_list_of_the_next_hub() {
    let mut world = World::with(&["a", "b"]);
    world.hub_lost(100.0);
    world.at(115.0).core.hub_connected();
    world.up(&["b"]);
    assert_eq!(world.status("b"), UP, "a listed node needs no complete list");
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    world.at(120.0).down("a");
    world.core.synced(world.now);
    assert_eq!(world.waits("a"), Some((125.0, Missing::Node)));
    assert_eq!(world.at(125.0).status("a"), NODE_AWAY);
}

#[test]
fn grace_starts_at_most_30_s_after_hub_loss() {
    let mut world = World::with(&["a"]);
    world.hub_lost(100.0);
    world.at(131.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    world.at(133.0).down("a");
    world.core.synced(world.now);
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    assert_eq!(world.at(135.0).status("a"), NODE_AWAY);
}

#[test]
fn repeated_hub_loss_does_not_extend_the_limit() {
    let mut world = World::with(&["a"]);
    for lost in [100.0, 110.0, 120.0] {
        world.hub_lost(lost);
        world.at(lost + 2.0).core.hub_connected();
    }
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
}

#[test]
fn unreported_node_is_up_after_sync() {
    let mut world = World::with(&["a"]);
    world.hub_lost(100.0);
    world.core.hub_connected();
    assert!(world.waits("a").is_some());
    world.core.synced(world.now);
    assert_eq!(world.status("a"), UP);
}

#[test]
fn start_behaves_like_a_hub_loss() {
    let mut world = World::new();
    assert_eq!(world.waits("a"), Some((5.0, Missing::Hub)));
    assert_eq!(world.at(5.0).status("a"), HUB_AWAY);
    world.at(10.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((35.0, Missing::Node)));
    world.core.synced(world.now);
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
        world.core.hub_connected();
        world.down("a");
        world.core.synced(world.now);
        assert!(world.waits("a").is_some(), "{lost}");
        world.up(&["a"]);
    }
}

#[test]
fn ignores_stale_session_events() {
    let mut world = World::with(&["a"]);
    let newer = session(1, 2);
    world.core.node_up(&node("a"), newer, world.now);
    world.down("a");
    world.up(&["a"]);
    assert_eq!(world.status("a"), NodeStatus::Connected(newer));
    let other = session(7, 1);
    world.core.node_up(&node("a"), other, world.now);
    world.core.node_down(&node("a"), newer, world.now);
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
    reachability.hub_connected();
    for name in ["a", "b"] {
        reachability.node_up(&node(name), session(1, 1));
    }
    reachability.synced();
    assert_eq!(reachability.settled(&node("a")).await, UP);
    for name in ["a", "b"] {
        reachability.node_down(&node(name), session(1, 1));
    }
    let before = tokio::time::Instant::now();
    let back = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        reachability.node_up(&node("b"), session(1, 1));
    };
    let (a, b) = (node("a"), node("b"));
    let (away, up, ()) = tokio::join!(reachability.settled(&a), reachability.settled(&b), back);
    assert_eq!((away, up, before.elapsed()), (NODE_AWAY, UP, GRACE));
}

#[test]
fn hub_that_refuses_the_list_counts_as_lost() {
    let mut world = World::new();
    world.at(1.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((35.0, Missing::Node)));
    assert!(world.core.list_failed("forbidden"));
    let missing = Missing::List { cause: "forbidden".into() };
    assert_eq!(world.waits("a"), Some((5.0, missing.clone())));
    assert_eq!(world.at(5.0).status("a"), NodeStatus::Away(missing));
    world.up(&["a"]);
    world.core.synced(world.now);
    assert!(!world.core.list_failed("late"));
    assert_eq!(world.status("a"), UP);
}
