//! Random walks: objects are created, changed and deleted, watches break and list again, nodes leave, lose their disks, and
//! return, and updates are cut off. A node never has another's objects, and at the end has the objects of the model.

use fastrand::Rng;

use super::objects::Applied;
use super::*;

const SEEDS: u64 = 150;
const STEPS: usize = 250;
const NODES: [&str; 3] = ["a", "b", "c"];

/// A watch of one kind, between the API server and the core.
#[derive(Clone)]
enum Link {
    Live,
    Down,
    /// What the list has yet to show, as it was when it began.
    Listing(Vec<Applied>),
}

fn one_of<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(..all.len())]
}

struct World {
    rng: Rng,
    core: Core,
    server: BTreeMap<ObjectKey, Value>,
    links: BTreeMap<Kind, Link>,
    /// What happened at the server since a list began, which the watch after it shows.
    behind: BTreeMap<Kind, Vec<Event>>,
    nodes: Vec<(Edge, Option<Subscription>)>,
}

fn kind_of(key: &ObjectKey) -> Kind {
    Kind::ALL.into_iter().find(|kind| *kind as u32 == key.kind).unwrap()
}

impl World {
    fn new(seed: u64) -> Self {
        let bounds = Bounds { part_bytes: 400, object_bytes: 1000, absent_nodes: 1, remembered_removals: 3 };
        Self {
            rng: Rng::with_seed(seed),
            core: Core::new(seed + 1, bounds),
            server: BTreeMap::new(),
            links: Kind::ALL.into_iter().map(|kind| (kind, Link::Down)).collect(),
            behind: BTreeMap::new(),
            nodes: NODES.iter().map(|_| (Edge::default(), None)).collect(),
        }
    }

    fn random_object(&mut self) -> Applied {
        let names = ["0", "1", "2", "3"];
        let rng = &mut self.rng;
        let name = one_of(rng, &names);
        match rng.usize(..12) {
            0..4 => {
                let claims: Vec<&str> = (0..=rng.usize(..2)).map(|_| one_of(rng, &names)).collect();
                let of = one_of(rng, &NODES);
                let (kind, key, value) = pod(name, of, &claims);
                let Some(Value::Pod(mut record)) = value else { unreachable!() };
                let mut changed = Pod::clone(&record.pod);
                changed.uid = format!("uid@{of}");
                changed.ended = rng.usize(..2) == 0;
                record.pod = changed.into();
                if rng.usize(..3) == 0 {
                    record.ephemeral = [claims[0].to_owned()].into();
                }
                (kind, key, Some(Value::Pod(record)))
            }
            4..7 => {
                let bound = one_of(rng, &[name, name, name, "0", "1", ""]);
                let (kind, key, value) = claim(name, bound);
                let Some(Value::Claim(mut record)) = value else { unreachable!() };
                record.pending = rng.usize(..3) == 0;
                record.owner = (rng.usize(..2) == 0).then(|| format!("uid@{}", one_of(rng, &NODES)));
                (kind, key, Some(Value::Claim(record)))
            }
            7..10 => {
                let of_csi = (rng.usize(..5) > 0).then_some("csi");
                let mut other = name;
                if rng.usize(..4) == 0 {
                    other = one_of(rng, &names);
                }
                volume(name, &format!("uid-{other}"), of_csi)
            }
            10 => attachment(name, NODES[rng.usize(..NODES.len())], rng.usize(..2) == 0),
            _ => driver(name),
        }
    }

    /// Changes the server, and sends the event to the watches.
    fn change_object(&mut self) {
        let (kind, key, value) = self.random_object();
        let event = if self.rng.usize(..3) == 0 {
            self.server.remove(&key);
            Event::Deleted(kind, key)
        } else {
            self.server.insert(key.clone(), value.clone().unwrap());
            Event::Applied(kind, key, value)
        };
        match &self.links[&kind] {
            Link::Live => drop(self.core.on(event)),
            Link::Listing(_) => self.behind.entry(kind).or_default().push(event),
            Link::Down => {}
        }
    }

    fn step_link(&mut self, kind: Kind) {
        let link = self.links[&kind].clone();
        let next = match link {
            Link::Live => Link::Down,
            Link::Down => {
                self.core.on(Event::ListStarted(kind));
                self.behind.remove(&kind);
                let shown = self.server.iter().filter(|(key, _)| kind_of(key) == kind);
                Link::Listing(shown.map(|(key, value)| (kind, key.clone(), Some(value.clone()))).collect())
            }
            Link::Listing(_) if self.rng.usize(..6) == 0 => Link::Down,
            Link::Listing(mut left) => match left.pop() {
                Some((kind, key, value)) => {
                    self.core.on(Event::Applied(kind, key, value));
                    Link::Listing(left)
                }
                None => {
                    self.core.on(Event::ListFinished(kind));
                    for event in self.behind.remove(&kind).unwrap_or_default() {
                        self.core.on(event);
                    }
                    Link::Live
                }
            },
        };
        self.links.insert(kind, next);
    }

    fn step_node(&mut self, at: usize) {
        let (edge, subscription) = &mut self.nodes[at];
        match subscription {
            None => {
                if self.rng.usize(..6) == 0 {
                    *edge = Edge::default();
                }
                *subscription = Some(self.core.subscribe(node(NODES[at]), &edge.has()));
            }
            Some(listens) if self.rng.usize(..4) == 0 => {
                if self.rng.usize(..2) == 0
                    && let Next::Change(parts) = self.core.next(listens)
                {
                    // The link is cut: some parts arrive, perhaps.
                    let arrived = self.rng.usize(..parts.len() + 1);
                    edge.take(parts, arrived);
                }
                // Sometimes the hub notices only after the node has returned.
                if self.rng.usize(..2) == 0 {
                    self.core.unsubscribe(listens);
                }
                *subscription = None;
            }
            Some(listens) => {
                let delivered = deliver(&mut self.core, listens, edge);
                assert!(!delivered || self.core.is_synced(), "sent before all was listed");
                // Nothing is between the server and the node.
                if self.links.values().all(|link| matches!(link, Link::Live)) {
                    assert_eq!(self.nodes[at].0.objects, self.expected(NODES[at]), "node {}", NODES[at]);
                }
            }
        }
        self.holds_only_its_own(at);
    }

    fn holds_only_its_own(&self, at: usize) {
        for object in self.nodes[at].0.objects.values() {
            if let ObjectKind::Pod(pod) = object {
                assert_eq!(pod.uid, format!("uid@{}", NODES[at]), "a pod of another node");
            }
        }
    }

    /// What a node must have: said anew, without indexes.
    fn expected(&self, of: &str) -> BTreeMap<ObjectKey, ObjectKind> {
        let mut expected = BTreeMap::new();
        let mut add = |object: ObjectKind| drop(expected.insert(object.key(), object));
        for value in self.server.values() {
            match value {
                Value::Driver(driver) => add(ObjectKind::Driver(Driver::clone(driver))),
                Value::Attachment(to, attachment) if to.as_str() == of => {
                    add(ObjectKind::Attachment(Attachment::clone(attachment)));
                }
                Value::Pod(record) if record.node.as_str() == of => {
                    let mut pod = Pod::clone(&record.pod);
                    pod.volumes.retain(|volume| {
                        let Some(Value::Claim(found)) = self.server.get(&Kind::Claim.key("n", &volume.claim))
                        else {
                            return true;
                        };
                        if record.ephemeral.contains(&volume.name) && found.owner.as_ref() != Some(&pod.uid) {
                            return true;
                        }
                        let mut claim = found.claim.clone();
                        let key = Kind::PersistentVolume.key("", &claim.volume);
                        match self.server.get(&key) {
                            Some(Value::PersistentVolume(VolumeRecord { volume: None, .. })) => return false,
                            Some(Value::PersistentVolume(VolumeRecord {
                                volume: Some(volume),
                                capacity,
                            })) if volume.claim_uid == claim.uid => {
                                claim.expand_to = if found.pending { *capacity } else { 0 };
                                add(ObjectKind::PersistentVolume(PersistentVolume::clone(volume)));
                            }
                            _ => {}
                        }
                        add(ObjectKind::Claim(claim));
                        true
                    });
                    if !pod.volumes.is_empty() {
                        add(ObjectKind::Pod(pod));
                    }
                }
                _ => {}
            }
        }
        expected
    }

    /// Watches list until they are live, and every node listens until it has delivered all.
    fn heal(&mut self) {
        for kind in Kind::ALL {
            while !matches!(self.links[&kind], Link::Live) {
                self.step_link(kind);
            }
        }
        for (at, name) in NODES.into_iter().enumerate() {
            let expected = self.expected(name);
            let (edge, subscription) = &mut self.nodes[at];
            let listens = subscription.get_or_insert_with(|| self.core.subscribe(node(name), &edge.has()));
            deliver(&mut self.core, listens, edge);
            assert_eq!(edge.objects, expected, "node {name}");
        }
        // Once more, with nothing changed.
        for kind in Kind::ALL {
            self.links.insert(kind, Link::Down);
            while !matches!(self.links[&kind], Link::Live) {
                self.step_link(kind);
            }
        }
        for (edge, subscription) in &mut self.nodes {
            let listens = subscription.as_mut().unwrap();
            assert!(!deliver(&mut self.core, listens, edge), "a list without changes was sent");
        }
    }
}

fn walk(seed: u64) {
    let mut world = World::new(seed);
    for step in 0..STEPS {
        match world.rng.usize(..10) {
            0..4 => world.change_object(),
            4..7 => {
                let kind = one_of(&mut world.rng, &Kind::ALL);
                // A watch that is live mostly stays so.
                if !matches!(world.links[&kind], Link::Live) || world.rng.usize(..8) == 0 {
                    world.step_link(kind);
                }
            }
            _ => {
                let at = world.rng.usize(..NODES.len());
                world.step_node(at);
            }
        }
        if step == STEPS / 2 {
            world.heal();
        }
    }
    world.heal();
}

/// `KUBERNETES_SEED=N cargo test -p edge-hub --features kubernetes --lib core::tests::walk` walks one seed again.
#[test]
fn every_history_ends_with_the_api_servers_objects() {
    each_seed(SEEDS, "walk", walk);
}
