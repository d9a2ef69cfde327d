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

fn elect(candidates: &[Candidate], places: &[&str], offline: OfflinePolicy) -> Result<NodeId, Refusal> {
    Ballot { candidates, default: None, offline }.elect(&request(places), None)
}

use OfflinePolicy::{Move, Wait};
use Presence::{Offline, Online, Unknown, WithoutDriver};

#[test]
fn the_first_place_in_order_decides_and_the_keys_compare_without_case() {
    let nodes = [candidate("a", Online), candidate("b", Online), candidate("c", Online)];
    assert_eq!(elect(&nodes, &["b", "a", "c"], Wait), Ok(node("b")));
    assert_eq!(elect(&nodes, &["c"], Wait), Ok(node("c")));
}

#[test]
fn places_without_a_node_or_without_the_driver_are_passed_over_and_at_the_end_resource_exhausted() {
    let nodes = [candidate("a", WithoutDriver), candidate("b", Online)];
    assert_eq!(elect(&nodes, &["x", "a", "b"], Wait), Ok(node("b")));
    assert_eq!(elect(&nodes, &["x", "a"], Wait), Err(Refusal::NoNodeThere));
}

#[test]
fn a_volume_waits_for_its_offline_node_or_moves_on_as_the_policy_says() {
    let nodes = [candidate("a", Offline), candidate("b", Online)];
    assert_eq!(elect(&nodes, &["a", "b"], Wait), Err(Refusal::Offline { node: node("a") }));
    assert_eq!(elect(&nodes, &["a", "b"], Move), Ok(node("b")));
    assert_eq!(elect(&nodes, &["a"], Move), Err(Refusal::AllOffline));
}

#[test]
fn a_node_without_enough_room_is_passed_over() {
    let mut nodes = [candidate("a", Online), candidate("b", Online)];
    nodes[0].room = Some(9);
    assert_eq!(elect(&nodes, &["a", "b"], Wait), Ok(node("b")));
    assert_eq!(elect(&nodes, &["a"], Wait), Err(Refusal::NoRoom { required: 10 }));
    nodes[0].room = Some(10);
    assert_eq!(elect(&nodes, &["a"], Wait), Ok(node("a")));
}

#[test]
fn no_final_answer_is_given_while_a_node_has_not_said_where_it_is() {
    let mut nodes = [candidate("a", Offline), candidate("b", Online)];
    nodes[0].topology = None;
    assert!(matches!(elect(&nodes, &["x"], Wait), Err(Refusal::NotKnown { .. })));
    assert_eq!(elect(&nodes, &["b"], Wait), Ok(node("b")), "others are not held up by it");
    assert_eq!(elect(&nodes, &["x"], Move), Err(Refusal::AllOffline));
}

#[test]
fn a_volume_is_not_given_back_to_the_scheduler_before_it_is_known_that_its_node_is_offline() {
    let nodes = [candidate("a", Unknown), candidate("b", Online), candidate("c", Offline)];
    for policy in [Wait, Move] {
        assert!(matches!(elect(&nodes, &["a"], policy), Err(Refusal::NotKnown { .. })), "{policy:?}");
    }
    assert!(matches!(elect(&nodes, &["c", "a"], Move), Err(Refusal::NotKnown { .. })));
    assert!(matches!(elect(&nodes, &["a", "b"], Wait), Err(Refusal::NotKnown { .. })));
    assert_eq!(elect(&nodes, &["a", "b"], Move), Ok(node("b")));
}

#[test]
fn volumes_are_spread_over_the_nodes_of_one_place_and_those_online_come_first() {
    let zone = of_topologies(vec![csi::Topology::from_iter([("zone", "z")])]);
    let names: Vec<_> = (0..40).map(|number| format!("pvc-{number}")).collect();
    let chosen = |candidates: &[Candidate]| -> std::collections::BTreeSet<NodeId> {
        let ballot = Ballot { candidates, default: None, offline: Wait };
        let one = |name: &String| {
            let request = VolumeRequest { name: name.as_str().into(), ..zone.clone() };
            ballot.elect(&request, None).unwrap()
        };
        names.iter().map(one).collect()
    };
    assert_eq!(chosen(&[candidate("a", Online), candidate("b", Online), candidate("c", Offline)]).len(), 2);
    assert_eq!(chosen(&[candidate("a", Online), candidate("b", Offline), candidate("c", Offline)]).len(), 1);
}

#[test]
fn without_topology_the_default_node_is_taken_and_without_that_it_is_an_invalid_argument() {
    let nodes = [candidate("a", Online), candidate("b", Offline)];
    let of = |default: Option<&str>| {
        let default = default.map(node);
        Ballot { candidates: &nodes, default: default.as_ref(), offline: Move }.elect(&request(&[]), None)
    };
    assert_eq!(of(Some("a")), Ok(node("a")));
    assert_eq!(of(Some("b")), Err(Refusal::Offline { node: node("b") }), "there is nowhere to move to");
    assert_eq!(of(None), Err(Refusal::NoTopology));
}

#[test]
fn a_copy_is_made_where_its_source_is_or_nowhere() {
    let nodes = [candidate("a", Online), candidate("b", Offline)];
    let of = |places: &[&str], source: &str| {
        Ballot { candidates: &nodes, default: None, offline: Move }
            .elect(&request(places), Some(&node(source)))
    };
    assert_eq!(of(&["b", "a"], "a"), Ok(node("a")));
    assert_eq!(of(&[], "a"), Ok(node("a")));
    assert_eq!(of(&["b"], "a"), Err(Refusal::SourceElsewhere { node: node("a") }));
    assert_eq!(of(&["b"], "b"), Err(Refusal::Offline { node: node("b") }), "it can be nowhere else");
}
