//! A node that moves between hubs, whose watches stall, lag and list again: no hub takes a pod from the node that the API
//! server still has.

use std::collections::VecDeque;

use fastrand::Rng;

use super::*;

const SEEDS: u64 = 400;
const STEPS: usize = 200;
const NODE: &str = "a";
const PODS: [&str; 4] = ["p", "q", "r", "s"];

/// The pods of the API server, each with the `resourceVersion` at which it was created.
type Pods = BTreeMap<&'static str, u64>;

struct Hub {
    core: Core,
    /// The events that the watch has not passed on yet.
    behind: VecDeque<(u64, Event)>,
    /// A watch that passes nothing on, and does not know it.
    stalled: bool,
    /// The list in progress: the pods when it began.
    list: Option<Pods>,
}

struct World {
    rng: Rng,
    version: u64,
    pods: Pods,
    hubs: [Hub; 2],
    edge: Edge,
    at: usize,
    subscription: Option<Subscription>,
}

fn created(name: &str, version: u64) -> Event {
    let (kind, key, value) = pod(name, NODE, &["c"]);
    let Some(Value::Pod(mut record)) = value else { unreachable!() };
    record.pod = Pod { uid: version.to_string(), ..Pod::clone(&record.pod) }.into();
    Event::Applied(kind, key, Some(Value::Pod(record)))
}

impl Hub {
    fn new(source: u64) -> Self {
        let mut core = synced(Bounds::default());
        core.source = source;
        Self { core, behind: VecDeque::new(), stalled: false, list: None }
    }

    /// Passes one event on, unless the watch is stalled or lists.
    fn catch_up(&mut self) {
        if !self.stalled
            && self.list.is_none()
            && let Some((version, event)) = self.behind.pop_front()
        {
            self.core.on(event);
            self.core.on(Event::Version(Kind::Pod, version));
        }
    }

    fn begin_list(&mut self, pods: &Pods, server: Option<u64>) {
        if let Some(version) = server {
            self.core.on(Event::ServerVersion(Kind::Pod, version));
        }
        self.core.on(Event::ListStarted(Kind::Pod));
        self.list = Some(pods.clone());
        self.behind.clear();
        self.stalled = false;
    }

    fn end_list(&mut self) {
        let Some(pods) = self.list.take() else { return };
        for (name, version) in pods {
            self.core.on(created(name, version));
            self.core.on(Event::Version(Kind::Pod, version));
        }
        self.core.on(Event::ListFinished(Kind::Pod));
    }
}

impl World {
    fn new(seed: u64) -> Self {
        Self {
            rng: Rng::with_seed(seed),
            version: 1,
            pods: Pods::new(),
            hubs: [Hub::new(1), Hub::new(2)],
            edge: Edge::default(),
            at: 0,
            subscription: None,
        }
    }

    fn change(&mut self) {
        self.version += 1;
        let (name, version) = (PODS[self.rng.usize(..PODS.len())], self.version);
        let removed = self.pods.remove(name).is_some();
        if !removed {
            self.pods.insert(name, version);
        }
        for hub in &mut self.hubs {
            let event = if removed {
                Event::Deleted(Kind::Pod, Kind::Pod.key("n", name))
            } else {
                created(name, version)
            };
            hub.behind.push_back((version, event));
        }
    }

    fn step_hub(&mut self) {
        let (rng, server) = (&mut self.rng, self.version);
        let hub = &mut self.hubs[rng.usize(..2)];
        match rng.usize(..12) {
            0 => hub.stalled = true,
            // The hub could not read the version first.
            1 if rng.bool() => hub.begin_list(&self.pods, None),
            1 => hub.begin_list(&self.pods, Some(server)),
            2..5 => hub.end_list(),
            _ => hub.catch_up(),
        }
    }

    fn step_node(&mut self) {
        if self.rng.usize(..6) == 0 {
            if let Some(subscription) = self.subscription.take() {
                self.hubs[self.at].core.unsubscribe(&subscription);
            }
            self.at = self.rng.usize(..2);
        }
        let before = self.uids();
        let hub = &mut self.hubs[self.at];
        let subscription =
            self.subscription.get_or_insert_with(|| hub.core.subscribe(node(NODE), &self.edge.has()));
        match hub.core.next(subscription) {
            Next::Change(parts) => self.edge.take(parts, usize::MAX),
            Next::Behind(kinds) if !kinds.is_empty() && self.rng.bool() => {
                hub.begin_list(&self.pods, None);
            }
            _ => return,
        }
        let after = self.uids();
        for (name, version) in &self.pods {
            let uid = version.to_string();
            assert!(!before.contains(&uid) || after.contains(&uid), "{name} was taken from the node");
        }
    }

    fn uids(&self) -> Vec<String> {
        let pods = self.edge.objects.values().filter_map(|object| match object {
            ObjectKind::Pod(pod) => Some(pod.uid.clone()),
            _ => None,
        });
        pods.collect()
    }

    /// Once the hub of the node has listed again, the node has all pods.
    fn heal(&mut self) {
        let hub = &mut self.hubs[self.at];
        hub.begin_list(&self.pods, None);
        hub.end_list();
        let subscription =
            self.subscription.get_or_insert_with(|| hub.core.subscribe(node(NODE), &self.edge.has()));
        if let Next::Change(parts) = hub.core.next(subscription) {
            self.edge.take(parts, usize::MAX);
        }
        let mut uids: Vec<String> = self.pods.values().map(u64::to_string).collect();
        let mut has = self.uids();
        uids.sort();
        has.sort();
        assert_eq!(has, uids);
    }
}

fn walk(seed: u64) {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        match world.rng.usize(..4) {
            0 => world.change(),
            1 | 2 => world.step_hub(),
            _ => world.step_node(),
        }
    }
    world.heal();
}

/// `KUBERNETES_SEED=N cargo test -p edge-hub --features kubernetes --lib core::tests::hubs` walks one seed again.
#[test]
fn no_hub_takes_a_pod_that_another_hub_has_sent() {
    each_seed(SEEDS, "hubs", walk);
}

#[test]
fn newest_version_that_a_hub_knows_lets_a_node_in() {
    let mut core = synced(Bounds::default());
    let has = |version| Watch { versions: [(Kind::Pod as u32, version)].into(), ..Watch::default() };
    let mut subscription = core.subscribe(node(NODE), &has(7));
    assert_eq!(core.next(&mut subscription), Next::Behind([Kind::Pod].into()));
    core.on(Event::Applied(Kind::Pod, Kind::Pod.key("n", "p"), None));
    // Each event of the kind wakes those that wait.
    assert_eq!(core.on(Event::Version(Kind::Pod, 6)), Affected::default(), "it was woken by the event");
    assert_eq!(core.next(&mut subscription), Next::Behind([Kind::Pod].into()));
    assert_eq!(core.on(Event::Version(Kind::Pod, 7)), Affected::Nodes([node(NODE)].into()));
    let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
    assert_eq!(parts[0].versions, [(Kind::Pod as u32, 7)].into());

    // A list that has begun is waited for; the version of the server counts at its end.
    core.on(Event::ServerVersion(Kind::Pod, 20));
    core.on(Event::ListStarted(Kind::Pod));
    let (mut known, mut newer) = (core.subscribe(node("b"), &has(15)), core.subscribe(node("c"), &has(21)));
    assert!(matches!(core.next(&mut known), Next::Behind(_)));
    core.on(Event::ListFinished(Kind::Pod));
    let Next::Change(parts) = core.next(&mut known) else { panic!() };
    assert_eq!(parts[0].versions, [(Kind::Pod as u32, 7)].into(), "no object is newer");
    // A list that began before the node asked may be older than what the node has.
    assert_eq!(core.next(&mut newer), Next::Behind([Kind::Pod].into()));
    core.on(Event::ListStarted(Kind::Pod));
    assert_eq!(core.next(&mut newer), Next::Behind([].into()));
    core.on(Event::ListFinished(Kind::Pod));
    assert!(matches!(core.next(&mut newer), Next::Change(_)), "the server itself has nothing newer");
}
