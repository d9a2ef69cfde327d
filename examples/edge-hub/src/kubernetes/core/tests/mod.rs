//! The core by tables, and by random walks against a model.

mod figures;
mod hubs;
mod objects;
mod walk;

use std::collections::BTreeMap;
use std::panic;

use self::objects::{attachment, claim, driver, pod, volume};
use super::*;
use edge_csi_common::kubernetes::message::object::Kind as ObjectKind;
use edge_csi_common::kubernetes::message::{Attachment, Driver};

fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A core of source 1 in which all kinds were listed, with nothing in it.
fn synced(bounds: Bounds) -> Core {
    let mut core = Core::new(1, bounds);
    for kind in Kind::ALL {
        core.on(Event::ListStarted(kind));
        core.on(Event::ListFinished(kind));
    }
    core
}

fn apply(core: &mut Core, (kind, key, value): (Kind, ObjectKey, Option<Value>)) -> Affected {
    core.on(Event::Applied(kind, key, value))
}

/// Walks from each seed, or from the one in `KUBERNETES_SEED`. A walk of this module that fails prints how to repeat it.
fn each_seed(seeds: u64, module: &str, walk: fn(u64)) {
    let seeds = match std::env::var("KUBERNETES_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..seeds).collect(),
    };
    for seed in seeds {
        if let Err(cause) = panic::catch_unwind(|| walk(seed)) {
            eprintln!(
                "again with: KUBERNETES_SEED={seed} cargo test -p edge-hub --features kubernetes --lib core::tests::{module}"
            );
            panic::resume_unwind(cause);
        }
    }
}

/// A node as it should behave: parts count once the complete one has come.
#[derive(Debug, Default)]
struct Edge {
    source: u64,
    revision: u64,
    versions: BTreeMap<u32, u64>,
    objects: BTreeMap<ObjectKey, ObjectKind>,
}

impl Edge {
    fn has(&self) -> Watch {
        Watch { source: self.source, revision: self.revision, versions: self.versions.clone() }
    }

    /// Takes all parts of a change, or only the first `most` of them, which then count for nothing.
    fn take(&mut self, parts: Vec<Update>, most: usize) {
        if parts.len() > most {
            return;
        }
        let (last, others) = parts.split_last().unwrap();
        assert!(last.complete && others.iter().all(|part| !part.complete));
        assert!(last.source != self.source || last.revision >= self.revision);
        if last.snapshot {
            self.objects.clear();
        }
        (self.source, self.revision) = (last.source, last.revision);
        self.versions = last.versions.clone();
        for part in parts {
            for object in part.changed {
                let object = object.object.unwrap();
                self.objects.insert(object.key(), object);
            }
            for key in part.removed {
                assert!(!part.snapshot);
                self.objects.remove(&key);
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.objects.keys().map(|key| key.name.as_str()).collect()
    }
}

/// All that a subscription has not delivered.
fn deliver(core: &mut Core, subscription: &mut Subscription, edge: &mut Edge) -> bool {
    match core.next(subscription) {
        Next::Change(parts) => {
            edge.take(parts, usize::MAX);
            assert_eq!(core.next(subscription), Next::Nothing, "one change says it all");
            true
        }
        Next::Nothing | Next::Behind(_) => false,
        Next::Replaced => panic!("replaced"),
    }
}

#[test]
fn sends_nothing_before_every_kind_was_listed() {
    let mut core = Core::new(1, Bounds::default());
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    for kind in Kind::ALL {
        assert_eq!(core.next(&mut subscription), Next::Nothing);
        core.on(Event::ListStarted(kind));
        core.on(Event::ListStarted(kind));
        let (_, key, value) = driver("d");
        if kind == Kind::Driver {
            assert_eq!(core.on(Event::Applied(kind, key, value)), Affected::default());
        }
        let expected = if kind == Kind::Driver { Affected::All } else { Affected::default() };
        assert_eq!(core.on(Event::ListFinished(kind)), expected);
    }
    let mut edge = Edge::default();
    assert!(deliver(&mut core, &mut subscription, &mut edge));
    assert_eq!(edge.names(), ["d"]);
}

#[test]
fn sends_a_pod_with_claim_and_volume_to_its_node_only() {
    let mut core = synced(Bounds::default());
    let (mut one, mut other) =
        (core.subscribe(node("one"), &Watch::default()), core.subscribe(node("other"), &Watch::default()));
    let (mut edge, mut far) = (Edge::default(), Edge::default());
    assert!(deliver(&mut core, &mut one, &mut edge) && deliver(&mut core, &mut other, &mut far));
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, claim("c", "v"));
    let mark_outdated = apply(&mut core, pod("p", "one", &["c"]));
    assert_eq!(mark_outdated, Affected::Nodes([node("one")].into()));
    assert!(deliver(&mut core, &mut one, &mut edge) && !deliver(&mut core, &mut other, &mut far));
    assert_eq!(edge.names(), ["p", "c", "v"]);
    assert_eq!(
        apply(&mut core, volume("v", "uid-c", Some("csi"))),
        Affected::default(),
        "nothing has changed"
    );
    for removed in [Kind::PersistentVolume.key("", "v"), Kind::Claim.key("n", "c"), Kind::Pod.key("n", "p")] {
        let kind = Kind::ALL[removed.kind as usize - 1];
        assert_eq!(core.on(Event::Deleted(kind, removed)), Affected::Nodes([node("one")].into()));
        assert!(deliver(&mut core, &mut one, &mut edge));
    }
    assert_eq!(edge.names(), [""; 0]);
}

#[test]
fn omits_volumes_and_claims_of_others() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("v", "uid-of-another", Some("csi")));
    apply(&mut core, claim("c", "v"));
    apply(&mut core, pod("p", "a", &["c"]));
    let (kind, key, value) = pod("q", "a", &["q-scratch"]);
    let Some(Value::Pod(mut record)) = value else { panic!() };
    record.ephemeral = ["q-scratch".to_owned()].into();
    core.on(Event::Applied(kind, key, Some(Value::Pod(record))));
    apply(&mut core, claim("q-scratch", ""));
    deliver(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["p", "q", "c"]);
    let (kind, key, value) = claim("q-scratch", "");
    let Some(Value::Claim(mut record)) = value else { panic!() };
    record.owner = Some("uid-q".to_owned());
    core.on(Event::Applied(kind, key, Some(Value::Claim(record))));
    deliver(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["p", "q", "c", "q-scratch"]);
}

#[test]
fn omits_volumes_that_are_not_csi() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("nfs", "uid-c", None));
    apply(&mut core, claim("c", "nfs"));
    apply(&mut core, claim("d", ""));
    apply(&mut core, pod("p", "a", &["c"]));
    apply(&mut core, pod("q", "a", &["c", "d"]));
    deliver(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["q", "d"]);
    let Some(ObjectKind::Pod(pod)) = edge.objects.get(&Kind::Pod.key("n", "q")) else { panic!() };
    assert_eq!(pod.volumes.iter().map(|volume| &volume.claim[..]).collect::<Vec<_>>(), ["d"]);
}

#[test]
fn waiting_claim_has_the_size_of_its_volume() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, pod("p", "a", &["c"]));
    for (pending, expected) in [(false, 0), (true, 100), (false, 0)] {
        let (kind, key, value) = claim("c", "v");
        let Some(Value::Claim(record)) = value else { panic!() };
        core.on(Event::Applied(kind, key.clone(), Some(Value::Claim(ClaimRecord { pending, ..record }))));
        deliver(&mut core, &mut subscription, &mut edge);
        let Some(ObjectKind::Claim(claim)) = edge.objects.get(&key) else { panic!() };
        assert_eq!(claim.expand_to, expected);
    }
}

#[test]
fn new_list_deletes_missing_objects_at_its_end() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    let mut edge = Edge::default();
    for name in ["p", "q"] {
        apply(&mut core, pod(name, "a", &["c"]));
    }
    deliver(&mut core, &mut subscription, &mut edge);
    let listed = |core: &mut Core, name| {
        let (kind, key, value) = pod(name, "a", &["c"]);
        core.on(Event::Applied(kind, key, value))
    };
    // One that is broken off, and one that is whole.
    core.on(Event::ListStarted(Kind::Pod));
    assert_eq!(listed(&mut core, "p"), Affected::default());
    core.on(Event::ListStarted(Kind::Pod));
    assert_eq!(listed(&mut core, "p"), Affected::default());
    assert_eq!(listed(&mut core, "q"), Affected::default());
    assert_eq!(core.on(Event::ListFinished(Kind::Pod)), Affected::default());
    assert!(!deliver(&mut core, &mut subscription, &mut edge));
    core.on(Event::ListStarted(Kind::Pod));
    listed(&mut core, "q");
    assert!(!deliver(&mut core, &mut subscription, &mut edge), "p may still be listed");
    assert_eq!(core.on(Event::ListFinished(Kind::Pod)), Affected::Nodes([node("a")].into()));
    assert!(deliver(&mut core, &mut subscription, &mut edge));
    assert_eq!(edge.names(), ["q"]);
}

/// What the first answer to a subscription is: whole or not, and how many objects.
fn first(core: &mut Core, has: &Watch) -> (bool, usize, usize) {
    let mut subscription = core.subscribe(node("a"), has);
    let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
    core.unsubscribe(&subscription);
    (
        parts[0].snapshot,
        parts.iter().map(|part| part.changed.len()).sum(),
        parts.iter().map(|p| p.removed.len()).sum(),
    )
}

#[test]
fn known_node_resumes_and_new_node_gets_a_snapshot() {
    let mut core = synced(Bounds { remembered_removals: 2, ..Bounds::default() });
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    let mut edge = Edge::default();
    for name in ["p", "q", "r", "s"] {
        apply(&mut core, pod(name, "a", &["c"]));
    }
    deliver(&mut core, &mut subscription, &mut edge);
    core.unsubscribe(&subscription);
    let has = edge.has();
    let removed = |core: &mut Core, name| core.on(Event::Deleted(Kind::Pod, Kind::Pod.key("n", name)));
    assert_eq!(first(&mut core, &has), (false, 0, 0), "an answer, with nothing in it");
    removed(&mut core, "p");
    apply(&mut core, pod("t", "a", &["c"]));
    assert_eq!(first(&mut core, &has), (false, 1, 1));
    removed(&mut core, "q");
    assert_eq!(first(&mut core, &has), (false, 1, 2));
    removed(&mut core, "r");
    assert_eq!(first(&mut core, &has), (true, 2, 0), "more ends than are remembered");
    let other_hub = Watch { source: 2, ..has.clone() };
    for stranger in [Watch::default(), other_hub, Watch { revision: u64::MAX, ..has }] {
        assert_eq!(first(&mut core, &stranger), (true, 2, 0), "{stranger:?}");
    }
}

#[test]
fn forgets_absent_nodes_in_the_order_they_left() {
    let mut core = synced(Bounds { absent_nodes: 1, ..Bounds::default() });
    let mut stays = core.subscribe(node("stays"), &Watch::default());
    let mut edges = [Edge::default(), Edge::default()];
    for (name, edge) in ["a", "b"].into_iter().zip(&mut edges) {
        let mut subscription = core.subscribe(node(name), &Watch::default());
        deliver(&mut core, &mut subscription, edge);
        core.unsubscribe(&subscription);
    }
    assert_eq!((core.views.len(), core.present()), (2, 1));
    for (name, edge, whole) in [("b", &edges[1], false), ("a", &edges[0], true)] {
        let mut subscription = core.subscribe(node(name), &edge.has());
        let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
        assert_eq!(parts[0].snapshot, whole, "{name}");
    }
    assert!(matches!(core.next(&mut stays), Next::Change(_)));
}

#[test]
fn splits_large_changes_and_drops_oversized_objects() {
    let mut core = synced(Bounds { part_bytes: 600, object_bytes: 1600, ..Bounds::default() });
    let mut subscription = core.subscribe(node("a"), &Watch::default());
    for name in 0..40 {
        apply(&mut core, pod(&format!("pod-{name}"), "a", &["c"]));
    }
    apply(&mut core, pod(&"x".repeat(1000), "a", &["c"]));
    assert_eq!(core.oversized(), 1);
    // One that is larger than a part is a part of its own.
    apply(&mut core, pod(&"y".repeat(700), "a", &["c"]));
    let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
    assert!(parts.len() > 3);
    for part in &parts {
        assert!(prost::Message::encoded_len(part) <= 600 || part.changed.len() == 1);
    }
    let mut edge = Edge::default();
    edge.take(parts, usize::MAX);
    assert_eq!(edge.objects.len(), 41);
}

#[test]
fn secret_must_be_named_by_objects_of_the_node() {
    let mut core = synced(Bounds::default());
    let secret = |name: &str| SecretName { namespace: "s".to_owned(), name: name.to_owned() };
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, claim("c", "v"));
    apply(&mut core, pod("p", "a", &["c"]));
    for (of, name, expected) in
        [("a", "stage-v", true), ("b", "stage-v", false), ("a", "stage-w", false), ("a", "", false)]
    {
        assert_eq!(core.names_secret(&node(of), &secret(name)), expected, "{of} {name}");
    }
    core.on(Event::Deleted(Kind::Pod, Kind::Pod.key("n", "p")));
    assert!(!core.names_secret(&node("a"), &secret("stage-v")));
}

#[test]
fn tokens_are_for_own_pods_and_their_drivers() {
    let mut core = synced(Bounds::default());
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, claim("c", "v"));
    apply(&mut core, pod("p", "a", &["c"]));
    apply(&mut core, driver("csi"));
    apply(&mut core, driver("other"));
    for (of, pod, uid, of_driver, expected) in [
        ("a", "p", "uid-p", "csi", true),
        ("b", "p", "uid-p", "csi", false),
        ("a", "p", "uid-before", "csi", false),
        ("a", "q", "uid-q", "csi", false),
        ("a", "p", "uid-p", "other", false),
    ] {
        let found = core.token_requests(&node(of), ("n", pod, uid), of_driver);
        assert_eq!(found.is_some(), expected, "{of} {pod} {uid} {of_driver}");
    }
    for (of, uid, expected) in [("a", "uid-c", Some(false)), ("b", "uid-c", None), ("a", "uid-before", None)]
    {
        assert_eq!(core.claim_waits(&node(of), ("n", "c", uid)), expected, "{of} {uid}");
    }
}

#[test]
fn sends_attachments_to_their_node_and_drivers_to_all() {
    let mut core = synced(Bounds::default());
    apply(&mut core, attachment("x", "a", true));
    apply(&mut core, driver("csi"));
    for (name, expected) in [("a", &["x", "csi"][..]), ("b", &["csi"])] {
        let mut subscription = core.subscribe(node(name), &Watch::default());
        let mut edge = Edge::default();
        deliver(&mut core, &mut subscription, &mut edge);
        assert_eq!(edge.names(), expected, "{name}");
    }
}
