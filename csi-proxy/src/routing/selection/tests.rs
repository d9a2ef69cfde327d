use prost::Message as _;

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn place(name: &str) -> csi::Topology {
    csi::Topology::from_iter([("topology.example.org/node", name), ("zone", "z")])
}

fn candidate(name: &str, presence: Presence) -> Candidate {
    Candidate { node: node(name), topology: Some(place(name)), presence, room: None }
}

fn request(places: &[&str]) -> VolumeRequest {
    let place = |name: &&str| csi::Topology::from_iter([("Topology.Example.org/Node", *name)]);
    of_topologies(places.iter().map(place).collect())
}

fn of_topologies(preferred: Vec<csi::Topology>) -> VolumeRequest {
    let requirement = csi::TopologyRequirement { preferred, ..Default::default() };
    let request = csi::CreateVolumeRequest {
        name: "pvc-1".to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: 10, limit_bytes: 0 }),
        accessibility_requirements: Some(requirement),
        ..Default::default()
    };
    VolumeRequest::read(&request.encode_to_vec()).unwrap()
}

fn select(candidates: &[Candidate], places: &[&str], offline: OfflinePolicy) -> Result<NodeId, Refusal> {
    NodeSelector { candidates, default: None, offline }.select(&request(places), None)
}

use OfflinePolicy::{Move, Wait};
use Presence::{Offline, Online, Unknown, WithoutDriver};

#[test]
fn selects_first_topology_and_ignores_case_of_keys() {
    let nodes = [candidate("a", Online), candidate("b", Online), candidate("c", Online)];
    assert_eq!(select(&nodes, &["b", "a", "c"], Wait), Ok(node("b")));
    assert_eq!(select(&nodes, &["c"], Wait), Ok(node("c")));
}

#[test]
fn skips_topologies_without_node_or_driver() {
    let nodes = [candidate("a", WithoutDriver), candidate("b", Online)];
    assert_eq!(select(&nodes, &["x", "a", "b"], Wait), Ok(node("b")));
    assert_eq!(select(&nodes, &["x", "a"], Wait), Err(Refusal::NoNodeInTopology));
}

#[test]
fn offline_policy_waits_or_moves() {
    let nodes = [candidate("a", Offline), candidate("b", Online)];
    assert_eq!(select(&nodes, &["a", "b"], Wait), Err(Refusal::Offline { node: node("a") }));
    assert_eq!(select(&nodes, &["a", "b"], Move), Ok(node("b")));
    assert_eq!(select(&nodes, &["a"], Move), Err(Refusal::AllOffline));
}

#[test]
fn skips_node_without_enough_capacity() {
    let mut nodes = [candidate("a", Online), candidate("b", Online)];
    nodes[0].room = Some(9);
    assert_eq!(select(&nodes, &["a", "b"], Wait), Ok(node("b")));
    assert_eq!(select(&nodes, &["a"], Wait), Err(Refusal::NoRoom { required: 10 }));
    nodes[0].room = Some(10);
    assert_eq!(select(&nodes, &["a"], Wait), Ok(node("a")));
}

#[test]
fn no_final_code_while_a_topology_is_unknown() {
    let mut nodes = [candidate("a", Offline), candidate("b", Online)];
    nodes[0].topology = None;
    assert!(matches!(select(&nodes, &["x"], Wait), Err(Refusal::Undetermined { .. })));
    assert_eq!(select(&nodes, &["b"], Wait), Ok(node("b")), "other nodes are not affected");
    assert_eq!(select(&nodes, &["x"], Move), Err(Refusal::AllOffline));
}

#[test]
fn no_final_code_while_a_presence_is_unknown() {
    let nodes = [candidate("a", Unknown), candidate("b", Online), candidate("c", Offline)];
    for policy in [Wait, Move] {
        assert!(matches!(select(&nodes, &["a"], policy), Err(Refusal::Undetermined { .. })), "{policy:?}");
    }
    assert!(matches!(select(&nodes, &["c", "a"], Move), Err(Refusal::Undetermined { .. })));
    assert!(matches!(select(&nodes, &["a", "b"], Wait), Err(Refusal::Undetermined { .. })));
    assert_eq!(select(&nodes, &["a", "b"], Move), Ok(node("b")));
}

#[test]
fn spreads_volumes_over_online_nodes_of_a_topology() {
    let zone = of_topologies(vec![csi::Topology::from_iter([("zone", "z")])]);
    let names: Vec<_> = (0..40).map(|number| format!("pvc-{number}")).collect();
    let chosen = |candidates: &[Candidate]| -> std::collections::BTreeSet<NodeId> {
        let selector = NodeSelector { candidates, default: None, offline: Wait };
        let one = |name: &String| {
            let request = VolumeRequest { name: name.as_str().into(), ..zone.clone() };
            selector.select(&request, None).unwrap()
        };
        names.iter().map(one).collect()
    };
    assert_eq!(chosen(&[candidate("a", Online), candidate("b", Online), candidate("c", Offline)]).len(), 2);
    assert_eq!(chosen(&[candidate("a", Online), candidate("b", Offline), candidate("c", Offline)]).len(), 1);
}

#[test]
fn uses_default_node_without_topology() {
    let nodes = [candidate("a", Online), candidate("b", Offline)];
    let of = |default: Option<&str>| {
        let default = default.map(node);
        NodeSelector { candidates: &nodes, default: default.as_ref(), offline: Move }
            .select(&request(&[]), None)
    };
    assert_eq!(of(Some("a")), Ok(node("a")));
    assert_eq!(of(Some("b")), Err(Refusal::Offline { node: node("b") }), "no node to move to");
    assert_eq!(of(None), Err(Refusal::NoTopology));
}

#[test]
fn selects_node_of_the_content_source() {
    let nodes = [candidate("a", Online), candidate("b", Offline)];
    let of = |places: &[&str], source: &str| {
        NodeSelector { candidates: &nodes, default: None, offline: Move }
            .select(&request(places), Some(&node(source)))
    };
    assert_eq!(of(&["b", "a"], "a"), Ok(node("a")));
    assert_eq!(of(&[], "a"), Ok(node("a")));
    assert_eq!(of(&["b"], "a"), Err(Refusal::SourceElsewhere { node: node("a") }));
    assert_eq!(of(&["b"], "b"), Err(Refusal::Offline { node: node("b") }), "no alternative");
}

/// Segments of one value under different keys are different places, and a node with both is one node.
#[test]
fn equal_values_under_other_keys_are_other_places() {
    let at = |segments: &[(&str, &str)]| csi::Topology::from_iter(segments.iter().copied());
    let of = |name: &str, segments| Candidate { topology: Some(at(segments)), ..candidate(name, Online) };
    let nodes = [of("a", &[("rack", "1"), ("zone", "2")]), of("b", &[("rack", "1"), ("zone", "1")])];
    let selected = |segments: &[(&str, &str)], name: &str| {
        let request = VolumeRequest { name: name.into(), ..of_topologies(vec![at(segments)]) };
        NodeSelector { candidates: &nodes, default: None, offline: Wait }.select(&request, None)
    };
    assert_eq!(selected(&[("zone", "1")], "pvc-1"), Ok(node("b")));
    assert_eq!(selected(&[("zone", "2"), ("rack", "1")], "pvc-1"), Ok(node("a")));
    assert_eq!(selected(&[("zone", "2"), ("rack", "2")], "pvc-1"), Err(Refusal::NoNodeInTopology));
    let rack: Vec<_> = (0..40).map(|number| selected(&[("rack", "1")], &format!("pvc-{number}"))).collect();
    assert!(nodes.iter().all(|one| rack.contains(&Ok(one.node.clone()))), "{rack:?}");
    // A place without segments is everywhere.
    assert!(selected(&[], "pvc-1").is_ok());
}

/// Each of many places is found by its values: a search among all nodes would take a minute in a debug build.
#[test]
fn selects_among_many_nodes_and_places() {
    let nodes: Vec<_> = (0..10_000).map(|number| candidate(&format!("n{number}"), Offline)).collect();
    let names: Vec<_> = (0..10_000).rev().map(|number| format!("n{number}")).collect();
    let mut places: Vec<_> = names.iter().map(String::as_str).collect();
    assert_eq!(select(&nodes, &places, Move), Err(Refusal::AllOffline));
    places.insert(0, "x");
    assert_eq!(select(&nodes, &places, Wait), Err(Refusal::Offline { node: node("n9999") }));
}
