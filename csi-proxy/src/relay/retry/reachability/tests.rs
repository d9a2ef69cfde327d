#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use super::*;

const GRACE: Duration = Duration::from_secs(5);

/// A core and its clock, in seconds since the proxy's start.
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

    /// With a complete list that has these nodes, each with its first session.
    fn with(names: &[&str]) -> Self {
        let mut world = Self::new();
        world.core.hub_connected();
        world.up(names);
        world.core.synced(world.now);
        world
    }

    fn at(&mut self, seconds: f64) -> &mut Self {
        let now = self.start + Duration::from_secs_f64(seconds);
        assert!(now >= self.now, "time does not go back");
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

    /// The second up to which a call waits.
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
fn a_lost_node_is_waited_for_within_its_grace() {
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
fn a_node_that_was_not_in_the_list_is_away_at_once() {
    let mut world = World::with(&["a"]);
    assert_eq!(world.at(100.0).status("never-seen"), NODE_AWAY);
}

#[test]
fn a_grace_of_zero_waits_for_nothing() {
    let mut world = World::with(&["a"]);
    world.core.grace = Duration::ZERO;
    world.at(100.0).down("a");
    assert_eq!(world.status("a"), NODE_AWAY);
    world.core.hub_lost(world.now);
    assert_eq!(world.status("b"), HUB_AWAY);
}

#[test]
fn a_lost_hub_is_waited_for_within_the_grace() {
    let mut world = World::with(&["a", "b"]);
    world.at(50.0).down("b");
    world.hub_lost(100.0);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Hub)));
    assert_eq!(world.status("b"), HUB_AWAY, "it was away before");
    assert_eq!(world.at(105.0).status("a"), HUB_AWAY);
}

#[test]
fn a_node_lost_shortly_before_the_hub_keeps_its_own_grace() {
    let mut world = World::with(&["a"]);
    world.at(100.0).down("a");
    world.hub_lost(102.0);
    assert_eq!(world.waits("a"), Some((105.0, Missing::Hub)));
    world.at(103.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((105.0, Missing::Node)));
}

#[test]
fn after_a_lost_hub_the_grace_starts_with_the_list() {
    let mut world = World::with(&["a", "b"]);
    world.hub_lost(100.0);
    world.at(115.0).core.hub_connected();
    world.up(&["b"]);
    assert_eq!(world.status("b"), UP, "no list has to be complete for one that is in it");
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
    world.at(120.0).down("a");
    world.core.synced(world.now);
    assert_eq!(world.waits("a"), Some((125.0, Missing::Node)));
    assert_eq!(world.at(125.0).status("a"), NODE_AWAY);
}

#[test]
fn after_a_lost_hub_the_grace_starts_after_30_s_at_the_latest() {
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
fn a_hub_that_is_lost_again_does_not_prolong_the_30_s() {
    let mut world = World::with(&["a"]);
    for lost in [100.0, 110.0, 120.0] {
        world.hub_lost(lost);
        world.at(lost + 2.0).core.hub_connected();
    }
    assert_eq!(world.waits("a"), Some((135.0, Missing::Node)));
}

#[test]
fn a_node_that_stayed_is_up_when_the_list_is_complete() {
    let mut world = World::with(&["a"]);
    world.hub_lost(100.0);
    world.core.hub_connected();
    assert!(world.waits("a").is_some());
    world.core.synced(world.now);
    assert_eq!(world.status("a"), UP);
}

#[test]
fn a_start_is_like_the_loss_of_a_hub() {
    let mut world = World::new();
    assert_eq!(world.waits("a"), Some((5.0, Missing::Hub)));
    assert_eq!(world.at(5.0).status("a"), HUB_AWAY);
    world.at(10.0).core.hub_connected();
    assert_eq!(world.waits("a"), Some((35.0, Missing::Node)));
    world.core.synced(world.now);
    assert_eq!(world.waits("a"), Some((15.0, Missing::Node)));
    assert_eq!(world.at(15.0).status("a"), NODE_AWAY);
    world.hub_lost(100.0);
    assert_eq!(world.status("a"), HUB_AWAY, "a hub that is lost later had no such node");
}

#[test]
fn after_three_losses_in_a_minute_a_node_has_no_grace() {
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
    assert_eq!(world.status("a"), UP, "it is only not waited for");
    world.at(230.0).down("a");
    assert_eq!(world.waits("a"), Some((235.0, Missing::Node)), "it was up for 30 s");
}

#[test]
fn three_losses_in_more_than_a_minute_take_no_grace() {
    let mut world = World::with(&["a"]);
    world.at(100.0).down("a");
    world.flap(130.0);
    world.flap(160.0);
    assert_eq!(world.waits("a"), Some((165.0, Missing::Node)));
}

#[test]
fn the_loss_of_a_hub_is_no_loss_of_its_nodes() {
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
fn old_news_of_another_session_is_ignored() {
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
fn nodes_that_have_been_away_for_long_are_forgotten() {
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
async fn a_node_is_settled_when_its_grace_has_ended_or_it_is_back() {
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
