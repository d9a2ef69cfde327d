//! The core by tables, and by random walks against a model.

mod figures;
mod objects;
mod walk;

use std::collections::BTreeMap;

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
        core.on(Event::Began(kind));
        core.on(Event::Done(kind));
    }
    core
}

fn apply(core: &mut Core, (kind, key, value): (Kind, ObjectKey, Option<Value>)) -> Touched {
    core.on(Event::Applied(kind, key, value))
}

/// A node as it should behave: parts count once the complete one has come.
#[derive(Debug, Default)]
struct Edge {
    source: u64,
    revision: u64,
    objects: BTreeMap<ObjectKey, ObjectKind>,
}

impl Edge {
    fn has(&self) -> Watch {
        Watch { source: self.source, revision: self.revision }
    }

    /// Takes all parts of a change, or only the first `most` of them, which then count for nothing.
    fn take(&mut self, parts: Vec<Update>, most: usize) {
        if parts.len() > most {
            return;
        }
        let (last, others) = parts.split_last().unwrap();
        assert!(last.complete && others.iter().all(|part| !part.complete));
        assert!(last.source != self.source || last.revision >= self.revision);
        if last.whole {
            self.objects.clear();
        }
        (self.source, self.revision) = (last.source, last.revision);
        for part in parts {
            for object in part.changed {
                let object = object.object.unwrap();
                self.objects.insert(object.key(), object);
            }
            for key in part.gone {
                assert!(!part.whole);
                self.objects.remove(&key);
            }
        }
    }

    fn names(&self) -> Vec<&str> {
        self.objects.keys().map(|key| key.name.as_str()).collect()
    }
}

/// All that a subscription has not heard.
fn hear(core: &mut Core, subscription: &mut Subscription, edge: &mut Edge) -> bool {
    match core.next(subscription) {
        Next::Change(parts) => {
            edge.take(parts, usize::MAX);
            assert_eq!(core.next(subscription), Next::Nothing, "one change says it all");
            true
        }
        Next::Nothing => false,
        Next::Replaced => panic!("replaced"),
    }
}

#[test]
fn nothing_is_told_before_every_kind_was_listed_once() {
    let mut core = Core::new(1, Bounds::default());
    let mut subscription = core.subscribe(node("a"), Watch::default());
    for kind in Kind::ALL {
        assert_eq!(core.next(&mut subscription), Next::Nothing);
        core.on(Event::Began(kind));
        core.on(Event::Began(kind));
        let (_, key, value) = driver("d");
        if kind == Kind::Driver {
            assert_eq!(core.on(Event::Applied(kind, key, value)), Touched::default());
        }
        let expected = if kind == Kind::Driver { Touched::All } else { Touched::default() };
        assert_eq!(core.on(Event::Done(kind)), expected);
    }
    let mut edge = Edge::default();
    assert!(hear(&mut core, &mut subscription, &mut edge));
    assert_eq!(edge.names(), ["d"]);
}

#[test]
fn a_pod_is_told_with_its_claim_and_its_volume_and_other_nodes_hear_of_neither() {
    let mut core = synced(Bounds::default());
    let (mut one, mut other) =
        (core.subscribe(node("one"), Watch::default()), core.subscribe(node("other"), Watch::default()));
    let (mut edge, mut far) = (Edge::default(), Edge::default());
    assert!(hear(&mut core, &mut one, &mut edge) && hear(&mut core, &mut other, &mut far));
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, claim("c", "v"));
    let wake = apply(&mut core, pod("p", "one", &["c"]));
    assert_eq!(wake, Touched::Nodes([node("one")].into()));
    assert!(hear(&mut core, &mut one, &mut edge) && !hear(&mut core, &mut other, &mut far));
    assert_eq!(edge.names(), ["p", "c", "v"]);
    assert_eq!(
        apply(&mut core, volume("v", "uid-c", Some("csi"))),
        Touched::default(),
        "nothing has changed"
    );
    for gone in [Kind::PersistentVolume.key("", "v"), Kind::Claim.key("n", "c"), Kind::Pod.key("n", "p")] {
        let kind = Kind::ALL[gone.kind as usize - 1];
        assert_eq!(core.on(Event::Deleted(kind, gone)), Touched::Nodes([node("one")].into()));
        assert!(hear(&mut core, &mut one, &mut edge));
    }
    assert_eq!(edge.names(), [""; 0]);
}

#[test]
fn a_volume_that_is_not_of_this_claim_and_a_claim_that_is_not_of_this_pod_are_not_told() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("v", "uid-of-another", Some("csi")));
    apply(&mut core, claim("c", "v"));
    apply(&mut core, pod("p", "a", &["c"]));
    let (kind, key, value) = pod("q", "a", &["q-scratch"]);
    let Some(Value::Pod(mut record)) = value else { panic!() };
    record.ephemeral = ["q-scratch".to_owned()].into();
    core.on(Event::Applied(kind, key, Some(Value::Pod(record))));
    apply(&mut core, claim("q-scratch", ""));
    hear(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["p", "q", "c"]);
    let (kind, key, value) = claim("q-scratch", "");
    let Some(Value::Claim(mut record)) = value else { panic!() };
    record.owner = Some("uid-q".to_owned());
    core.on(Event::Applied(kind, key, Some(Value::Claim(record))));
    hear(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["p", "q", "c", "q-scratch"]);
}

#[test]
fn volumes_that_are_not_of_csi_are_left_out_of_their_pods() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("nfs", "uid-c", None));
    apply(&mut core, claim("c", "nfs"));
    apply(&mut core, claim("d", ""));
    apply(&mut core, pod("p", "a", &["c"]));
    apply(&mut core, pod("q", "a", &["c", "d"]));
    hear(&mut core, &mut subscription, &mut edge);
    assert_eq!(edge.names(), ["q", "d"]);
    let Some(ObjectKind::Pod(pod)) = edge.objects.get(&Kind::Pod.key("n", "q")) else { panic!() };
    assert_eq!(pod.volumes.iter().map(|volume| &volume.claim[..]).collect::<Vec<_>>(), ["d"]);
}

#[test]
fn a_claim_that_waits_for_its_node_is_told_the_size_of_its_volume() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), Watch::default());
    let mut edge = Edge::default();
    apply(&mut core, volume("v", "uid-c", Some("csi")));
    apply(&mut core, pod("p", "a", &["c"]));
    for (pending, expected) in [(false, 0), (true, 100), (false, 0)] {
        let (kind, key, value) = claim("c", "v");
        let Some(Value::Claim(record)) = value else { panic!() };
        core.on(Event::Applied(kind, key.clone(), Some(Value::Claim(ClaimRecord { pending, ..record }))));
        hear(&mut core, &mut subscription, &mut edge);
        let Some(ObjectKind::Claim(claim)) = edge.objects.get(&key) else { panic!() };
        assert_eq!(claim.expand_to, expected);
    }
}

#[test]
fn a_list_made_anew_deletes_at_its_end_what_it_did_not_show_and_says_nothing_if_all_is_as_it_was() {
    let mut core = synced(Bounds::default());
    let mut subscription = core.subscribe(node("a"), Watch::default());
    let mut edge = Edge::default();
    for name in ["p", "q"] {
        apply(&mut core, pod(name, "a", &["c"]));
    }
    hear(&mut core, &mut subscription, &mut edge);
    let listed = |core: &mut Core, name| {
        let (kind, key, value) = pod(name, "a", &["c"]);
        core.on(Event::Applied(kind, key, value))
    };
    // One that is broken off, and one that is whole.
    core.on(Event::Began(Kind::Pod));
    assert_eq!(listed(&mut core, "p"), Touched::default());
    core.on(Event::Began(Kind::Pod));
    assert_eq!(listed(&mut core, "p"), Touched::default());
    assert_eq!(listed(&mut core, "q"), Touched::default());
    assert_eq!(core.on(Event::Done(Kind::Pod)), Touched::default());
    assert!(!hear(&mut core, &mut subscription, &mut edge));
    core.on(Event::Began(Kind::Pod));
    listed(&mut core, "q");
    assert!(!hear(&mut core, &mut subscription, &mut edge), "p may still come");
    assert_eq!(core.on(Event::Done(Kind::Pod)), Touched::Nodes([node("a")].into()));
    assert!(hear(&mut core, &mut subscription, &mut edge));
    assert_eq!(edge.names(), ["q"]);
}

/// What the first answer to a subscription is: whole or not, and how many objects.
fn first(core: &mut Core, has: &Watch) -> (bool, usize, usize) {
    let mut subscription = core.subscribe(node("a"), *has);
    let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
    core.unsubscribe(&subscription);
    (
        parts[0].whole,
        parts.iter().map(|part| part.changed.len()).sum(),
        parts.iter().map(|p| p.gone.len()).sum(),
    )
}

#[test]
fn a_node_that_comes_back_hears_what_it_missed_and_a_stranger_hears_everything() {
    let mut core = synced(Bounds { remembered_ends: 2, ..Bounds::default() });
    let mut subscription = core.subscribe(node("a"), Watch::default());
    let mut edge = Edge::default();
    for name in ["p", "q", "r", "s"] {
        apply(&mut core, pod(name, "a", &["c"]));
    }
    hear(&mut core, &mut subscription, &mut edge);
    core.unsubscribe(&subscription);
    let has = edge.has();
    let gone = |core: &mut Core, name| core.on(Event::Deleted(Kind::Pod, Kind::Pod.key("n", name)));
    assert_eq!(first(&mut core, &has), (false, 0, 0), "an answer, with nothing in it");
    gone(&mut core, "p");
    apply(&mut core, pod("t", "a", &["c"]));
    assert_eq!(first(&mut core, &has), (false, 1, 1));
    gone(&mut core, "q");
    assert_eq!(first(&mut core, &has), (false, 1, 2));
    gone(&mut core, "r");
    assert_eq!(first(&mut core, &has), (true, 2, 0), "more ends than are remembered");
    for stranger in [Watch::default(), Watch { source: 2, ..has }, Watch { revision: u64::MAX, ..has }] {
        assert_eq!(first(&mut core, &stranger), (true, 2, 0), "{stranger:?}");
    }
}

#[test]
fn nodes_that_are_away_are_forgotten_in_the_order_in_which_they_left() {
    let mut core = synced(Bounds { absent_nodes: 1, ..Bounds::default() });
    let mut stays = core.subscribe(node("stays"), Watch::default());
    let mut edges = [Edge::default(), Edge::default()];
    for (name, edge) in ["a", "b"].into_iter().zip(&mut edges) {
        let mut subscription = core.subscribe(node(name), Watch::default());
        hear(&mut core, &mut subscription, edge);
        core.unsubscribe(&subscription);
    }
    assert_eq!((core.views.len(), core.present()), (2, 1));
    for (name, edge, whole) in [("b", &edges[1], false), ("a", &edges[0], true)] {
        let mut subscription = core.subscribe(node(name), edge.has());
        let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
        assert_eq!(parts[0].whole, whole, "{name}");
    }
    assert!(matches!(core.next(&mut stays), Next::Change(_)));
}

#[test]
fn a_change_too_large_for_a_message_comes_in_parts_and_an_object_too_large_not_at_all() {
    let mut core = synced(Bounds { part_bytes: 600, ..Bounds::default() });
    let mut subscription = core.subscribe(node("a"), Watch::default());
    for name in 0..40 {
        apply(&mut core, pod(&format!("pod-{name}"), "a", &["c"]));
    }
    apply(&mut core, pod(&"x".repeat(700), "a", &["c"]));
    assert_eq!(core.oversized(), 1);
    let Next::Change(parts) = core.next(&mut subscription) else { panic!() };
    assert!(parts.len() > 3);
    for part in &parts {
        assert!(prost::Message::encoded_len(part) <= 600);
    }
    let mut edge = Edge::default();
    edge.take(parts, usize::MAX);
    assert_eq!(edge.objects.len(), 40);
}

#[test]
fn a_secret_is_named_only_by_the_objects_of_the_node() {
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
fn tokens_are_for_pods_of_the_node_and_drivers_of_their_volumes() {
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
        let found = core.tokens_of(&node(of), ("n", pod, uid), of_driver);
        assert_eq!(found.is_some(), expected, "{of} {pod} {uid} {of_driver}");
    }
    for (of, uid, expected) in [("a", "uid-c", Some(false)), ("b", "uid-c", None), ("a", "uid-before", None)]
    {
        assert_eq!(core.claim_waits(&node(of), ("n", "c", uid)), expected, "{of} {uid}");
    }
}

#[test]
fn attachments_are_told_to_their_node_and_drivers_to_all() {
    let mut core = synced(Bounds::default());
    apply(&mut core, attachment("x", "a", true));
    apply(&mut core, driver("csi"));
    for (name, expected) in [("a", &["x", "csi"][..]), ("b", &["csi"])] {
        let mut subscription = core.subscribe(node(name), Watch::default());
        let mut edge = Edge::default();
        hear(&mut core, &mut subscription, &mut edge);
        assert_eq!(edge.names(), expected, "{name}");
    }
}
