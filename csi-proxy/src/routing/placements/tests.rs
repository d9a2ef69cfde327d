//! Placements, one by one and in random walks.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::csi::v1 as csi;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::routing::election::{Candidate, OfflinePolicy, Presence};

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn place(name: &str) -> csi::Topology {
    csi::Topology::from_iter([("node", name)])
}

fn request(name: &str, size: i64, places: &[&str]) -> VolumeRequest {
    let preferred = places.iter().map(|name| place(name)).collect();
    let request = csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(csi::CapacityRange { required_bytes: size, limit_bytes: 0 }),
        accessibility_requirements: Some(csi::TopologyRequirement { preferred, ..Default::default() }),
        ..Default::default()
    };
    VolumeRequest::read(&request.encode_to_vec()).unwrap()
}

fn candidates(names: &[&str]) -> Vec<Candidate> {
    let candidate = |name: &&str| Candidate {
        node: node(name),
        topology: Some(place(name)),
        presence: Presence::Online,
        room: None,
    };
    names.iter().map(candidate).collect()
}

/// Placements and their store.
struct Desk {
    core: Placements,
    disk: BTreeMap<Subject, (u64, Placement)>,
    writes: u64,
    candidates: Vec<Candidate>,
}

impl Desk {
    fn new() -> Self {
        Self::with(Placements::default())
    }

    fn with(core: Placements) -> Self {
        Self { core, disk: BTreeMap::new(), writes: 0, candidates: candidates(&["a", "b", "c"]) }
    }

    /// As a store makes it, and takes in that it did.
    fn write(&mut self, change: Change) {
        self.writes += 1;
        let revision = Revision(self.writes.to_string().into());
        let there =
            |key: &Subject| self.disk.get(key).map(|(revision, _)| Revision(revision.to_string().into()));
        assert_eq!(there(&change.key), change.expected, "{}", change.key);
        match change.placement.clone() {
            Some(placement) => drop(self.disk.insert(change.key.clone(), (self.writes, placement))),
            None => drop(self.disk.remove(&change.key)),
        }
        self.core.apply(change, revision);
    }

    fn create(&mut self, request: &VolumeRequest) -> Result<Attempt, Refusal> {
        let candidates = self.candidates.clone();
        let ballot = Ballot { candidates: &candidates, default: None, offline: OfflinePolicy::Wait };
        self.core.create(request, ballot)?.into_iter().for_each(|change| self.write(change));
        Ok(self.core.begin(request).unwrap())
    }

    fn ended(&mut self, request: &VolumeRequest, attempt: &Attempt, end: End<'_>) -> Result<(), Refusal> {
        self.core.ended(request, attempt, end)?.into_iter().for_each(|change| self.write(change));
        Ok(())
    }

    fn found(&mut self, subject: &Subject, at: &str) {
        self.core.found(subject, &node(at)).unwrap().into_iter().for_each(|change| self.write(change));
    }

    fn deleted(&mut self, id: &str) {
        self.deleted_at(id, SystemTime::UNIX_EPOCH);
    }

    fn deleted_at(&mut self, id: &str, at: SystemTime) {
        self.core.deleted(&volume(id), at).into_iter().for_each(|change| self.write(change));
    }

    fn decommission(&mut self, gone: &str) {
        self.core.decommission(&node(gone));
        let (lost, free) = self.core.forgotten(&node(gone));
        lost.into_iter().chain(free).for_each(|change| self.write(change));
    }

    fn restart(&mut self) {
        let decommissioned = std::mem::take(&mut self.core.decommissioned);
        self.core = Placements { decommissioned, ..Placements::new(self.core.max_rows) };
        for (key, (revision, placement)) in &self.disk {
            let (key, revision) = (key.clone(), Revision(revision.to_string().into()));
            self.core.restore(Row { key, revision, placement: Ok(placement.clone()) });
        }
    }

    fn node_of_volume(&self, id: &str) -> Option<NodeId> {
        self.core.node_of(&volume(id)).cloned()
    }
}

fn volume(id: &str) -> Subject {
    Subject::Volume(id.into())
}

#[test]
fn an_uncertain_volume_is_asked_for_at_the_same_node_though_the_request_has_another_order_and_after_a_restart()
 {
    let mut desk = Desk::new();
    let first = request("pvc-1", 1, &["b", "a"]);
    let attempt = desk.create(&first).unwrap();
    assert_eq!((attempt.node(), desk.disk.len()), (&node("b"), 1), "durable before it is sent");
    desk.ended(&first, &attempt, End::Uncertain).unwrap();
    let again = request("pvc-1", 1, &["a", "b"]);
    assert_eq!(desk.create(&again).unwrap().node(), &node("b"));
    desk.restart();
    assert_eq!(desk.create(&again).unwrap().node(), &node("b"));
}

#[test]
fn a_volume_that_the_driver_refused_may_go_elsewhere() {
    let mut desk = Desk::new();
    let attempt = desk.create(&request("pvc-1", 1, &["b"])).unwrap();
    desk.ended(&request("pvc-1", 1, &["b"]), &attempt, End::Refused).unwrap();
    assert!(desk.disk.is_empty());
    assert_eq!(desk.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("c"));
}

#[test]
fn a_refusal_of_one_request_says_nothing_of_another_that_may_be_under_way() {
    let mut desk = Desk::new();
    let (first, other) = (request("pvc-1", 1, &["b"]), request("pvc-1", 2, &["c"]));
    let attempt = desk.create(&first).unwrap();
    desk.ended(&first, &attempt, End::Uncertain).unwrap();
    let second = desk.create(&other).unwrap();
    assert_eq!(second.node(), &node("b"), "the driver there knows whether they are compatible");
    desk.ended(&other, &second, End::Refused).unwrap();
    assert_eq!(desk.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("b"));
}

#[test]
fn a_volume_that_never_left_is_chosen_anew_unless_another_attempt_may_have() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let (first, second) = (desk.create(&wanted).unwrap(), desk.create(&wanted).unwrap());
    desk.ended(&wanted, &first, End::NeverLeft).unwrap();
    assert_eq!(desk.disk.len(), 1, "the other attempt is under way");
    desk.ended(&wanted, &second, End::NeverLeft).unwrap();
    assert!(desk.disk.is_empty());
    let third = desk.create(&wanted).unwrap();
    desk.restart();
    let fourth = desk.create(&wanted).unwrap();
    desk.ended(&wanted, &fourth, End::NeverLeft).unwrap();
    assert_eq!(desk.create(&request("pvc-1", 1, &["c"])).unwrap().node(), third.node());
}

#[test]
fn a_volume_that_was_made_is_found_by_its_id_and_its_name_until_it_is_deleted() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = desk.create(&wanted).unwrap();
    desk.ended(&wanted, &attempt, End::Made("vol-1")).unwrap();
    desk.restart();
    assert_eq!(desk.node_of_volume("vol-1"), Some(node("b")));
    let again = desk.create(&request("pvc-1", 1, &["c"])).unwrap();
    assert_eq!(again.node(), &node("b"));
    desk.ended(&wanted, &again, End::Made("vol-1")).unwrap();
    // The driver knows whether another request is compatible.
    let other = request("pvc-1", 2, &["c"]);
    let second = desk.create(&other).unwrap();
    assert_eq!(second.node(), &node("b"));
    desk.ended(&other, &second, End::Refused).unwrap();
    assert_eq!(desk.node_of_volume("vol-1"), Some(node("b")));
    desk.deleted("vol-1");
    assert!(desk.core.rows() == 0 && desk.core.is_deleted(&volume("vol-1")));
}

#[test]
fn an_id_that_two_nodes_gave_is_refused_and_the_second_volume_is_not_forgotten() {
    let mut desk = Desk::new();
    let (first, second) = (request("pvc-1", 1, &["a"]), request("pvc-2", 1, &["b"]));
    let attempt = desk.create(&first).unwrap();
    desk.ended(&first, &attempt, End::Made("1")).unwrap();
    let attempt = desk.create(&second).unwrap();
    let expected =
        Refusal::SameId { subject: Subject::Volume("1".into()), known: node("a"), other: node("b") };
    assert_eq!(desk.ended(&second, &attempt, End::Made("1")), Err(expected.clone()));
    assert_eq!(expected.outcome().code, crate::Code::UNAVAILABLE, "the provisioner must not forget it");
    assert_eq!(desk.create(&request("pvc-2", 1, &["c"])).unwrap().node(), &node("b"));
    assert_eq!(desk.node_of_volume("1"), Some(node("a")));
}

#[test]
fn a_volume_that_is_made_anew_while_it_is_deleted_keeps_its_node() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = desk.create(&wanted).unwrap();
    desk.ended(&wanted, &attempt, End::Made("vol-1")).unwrap();
    let again = desk.create(&wanted).unwrap();
    desk.deleted("vol-1");
    assert_eq!(desk.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("b"));
    desk.ended(&wanted, &again, End::Made("vol-2")).unwrap();
    desk.restart();
    assert_eq!((desk.node_of_volume("vol-1"), desk.node_of_volume("vol-2")), (None, Some(node("b"))));
}

#[test]
fn a_copy_goes_where_its_source_is_known_to_be() {
    let mut desk = Desk::new();
    let snapshot = Subject::Snapshot("snap-1".into());
    desk.found(&snapshot, "c");
    let mut copy = request("pvc-1", 1, &["a", "c"]);
    copy.source = Some(snapshot.clone());
    assert_eq!(desk.create(&copy).unwrap().node(), &node("c"));
    let mut elsewhere = request("pvc-2", 1, &["a"]);
    elsewhere.source = Some(snapshot);
    assert_eq!(desk.create(&elsewhere), Err(Refusal::SourceElsewhere { node: node("c") }));
}

#[test]
fn a_decommissioned_node_has_no_rows_and_gets_none() {
    let mut desk = Desk::new();
    for (name, place) in [("pvc-1", "a"), ("pvc-2", "b")] {
        let wanted = request(name, 1, &[place]);
        let attempt = desk.create(&wanted).unwrap();
        desk.ended(&wanted, &attempt, End::Made(name)).unwrap();
    }
    let open = request("pvc-3", 1, &["a"]);
    let attempt = desk.create(&open).unwrap();
    desk.decommission("a");
    let refused = Err(Refusal::Decommissioned { node: node("a") });
    assert_eq!(desk.ended(&open, &attempt, End::Made("late")), refused);
    desk.restart();
    assert_eq!(desk.create(&open).map(drop), refused);
    let lost = Subject::Volume("pvc-1".into());
    assert!(desk.core.is_deleted(&lost) && desk.core.rows() == 1, "its deletion succeeds");
    desk.found(&lost, "a");
    assert!(desk.core.is_deleted(&lost) && !desk.core.has_rows_of(&node("a")), "nothing is found there");
    assert_eq!((desk.node_of_volume("pvc-1"), desk.node_of_volume("pvc-2")), (None, Some(node("b"))));
    assert_eq!(desk.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("c"));
    desk.core.recommission(&node("a"));
    desk.restart();
    assert!(!desk.core.is_deleted(&lost), "it may be there after all");
    assert_eq!(desk.create(&open).unwrap().node(), &node("a"));
}

#[test]
fn one_attempt_refused_and_one_that_never_left_leave_nothing() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["a"]);
    let (first, second) = (desk.create(&wanted).unwrap(), desk.create(&wanted).unwrap());
    desk.ended(&wanted, &first, End::Refused).unwrap();
    assert_eq!(desk.core.rows(), 1, "the other may still be made");
    desk.ended(&wanted, &second, End::NeverLeft).unwrap();
    assert_eq!(desk.core.rows(), 0);
}

#[test]
fn a_full_table_takes_no_new_volume_and_always_the_id_of_one_that_it_took() {
    let mut desk = Desk::new();
    desk.core = Placements::new(1);
    let (first, second) = (request("pvc-1", 1, &["a"]), request("pvc-2", 1, &["a"]));
    let attempt = desk.create(&first).unwrap();
    desk.ended(&first, &attempt, End::Made("vol-1")).unwrap();
    assert_eq!(desk.create(&second), Err(Refusal::Full { max: 1 }));
    desk.deleted("vol-1");
    let room = desk.core.expired(SystemTime::UNIX_EPOCH).unwrap();
    desk.write(room);
    assert!(desk.create(&second).is_ok());
}

#[derive(Debug, Clone)]
enum Act {
    Create { name: u8, size: u8, places: Vec<u8> },
    End { attempt: prop::sample::Index, end: u8 },
    Delete { volume: prop::sample::Index },
    Restart,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        4 => (0..4_u8, 0..2_u8, prop::collection::vec(0..3_u8, 1..3))
            .prop_map(|(name, size, places)| Act::Create { name, size, places }),
        5 => (any::<prop::sample::Index>(), 0..6_u8).prop_map(|(attempt, end)| Act::End { attempt, end }),
        2 => any::<prop::sample::Index>().prop_map(|volume| Act::Delete { volume }),
        1 => Just(Act::Restart),
    ]
}

/// Drivers, as the world has them, beside placements that only hear of them.
#[derive(Default)]
struct World {
    /// The volumes: by node and name, with the fingerprint that they were made for.
    volumes: BTreeMap<(NodeId, Box<str>), Digest>,
    /// Attempts that may still do something at their node, told or not.
    afoot: Vec<(VolumeRequest, Attempt)>,
}

proptest! {
    /// Whatever the order of attempts, answers, restarts and deletions: a name never has volumes on two nodes, no volume exists
    /// of which the placements know nothing, a new node is always one that the request allows, and what is at rest leaves no row.
    #[test]
    fn a_name_has_at_most_one_node_and_no_volume_is_forgotten(acts in prop::collection::vec(act(), 1..80)) {
        let mut desk = Desk::new();
        let mut world = World::default();
        // Attempts that the placements wait for. Those of an earlier life it does not know.
        let mut open: Vec<(VolumeRequest, Attempt)> = Vec::new();
        // Whether every end was told, and each name was asked for by one request.
        let mut certain = true;
        for act in acts {
            match act {
                Act::Create { name, size, places } => {
                    let places: Vec<_> = places.iter().map(|at| ["a", "b", "c"][usize::from(*at)]).collect();
                    certain &= size == 0;
                    let wanted = request(&format!("pvc-{name}"), i64::from(size), &places);
                    let known = desk.core.node_of(&Subject::VolumeName(wanted.name.clone())).cloned();
                    match desk.create(&wanted) {
                        Ok(attempt) => {
                            match known {
                                Some(known) => prop_assert_eq!(&known, attempt.node()),
                                None => prop_assert_eq!(&node(places[0]), attempt.node()),
                            }
                            open.push((wanted, attempt));
                        }
                        Err(refusal) => prop_assert!(false, "{:?}", refusal),
                    }
                }
                Act::End { attempt, end } if !open.is_empty() => {
                    let (wanted, attempt) = open.swap_remove(attempt.index(open.len()));
                    let key = (attempt.node().clone(), wanted.name.clone());
                    let id = format!("{}-{}", attempt.node(), wanted.name);
                    let made = world.volumes.get(&key).copied();
                    let end = match (end, made) {
                        (0, _) => End::NeverLeft,
                        // The driver may be at it, have made it, or never do so.
                        (1, _) => {
                            certain = false;
                            world.afoot.push((wanted.clone(), attempt.clone()));
                            End::Uncertain
                        }
                        // A driver refuses what is incompatible, or what it cannot make; then it has ended what it had begun on it.
                        (_, Some(made)) if made != wanted.fingerprint => End::Refused,
                        (2, None) => {
                            world.afoot.retain(|(other, at)| (at.node(), &other.name, other.fingerprint) != (&key.0, &key.1, wanted.fingerprint));
                            End::Refused
                        }
                        _ => {
                            world.volumes.insert(key, wanted.fingerprint);
                            End::Made(&id)
                        }
                    };
                    prop_assert_eq!(desk.ended(&wanted, &attempt, end), Ok(()));
                }
                Act::Delete { volume } if !world.volumes.is_empty() => {
                    let key = world.volumes.keys().nth(volume.index(world.volumes.len())).unwrap().clone();
                    let id = format!("{}-{}", key.0, key.1);
                    // A sidecar deletes what it was told of, and nothing that it still asks for.
                    if desk.node_of_volume(&id).is_some() && !open.iter().any(|(wanted, _)| wanted.name == key.1) {
                        world.afoot.retain(|(other, at)| (at.node(), &other.name) != (&key.0, &key.1));
                        world.volumes.remove(&key);
                        desk.deleted(&id);
                    }
                }
                Act::Restart => {
                    certain &= open.is_empty();
                    world.afoot.append(&mut open);
                    desk.restart();
                }
                Act::End { .. } | Act::Delete { .. } => {}
            }
            let mut nodes: BTreeMap<&str, BTreeSet<&NodeId>> = BTreeMap::new();
            let afoot = world.afoot.iter().chain(&open).map(|(wanted, attempt)| (&*wanted.name, attempt.node()));
            for (name, at) in world.volumes.keys().map(|(at, name)| (&**name, at)).chain(afoot) {
                nodes.entry(name).or_default().insert(at);
            }
            for (name, nodes) in nodes {
                prop_assert_eq!(nodes.len(), 1, "{} is on {:?}", name, nodes);
                let known = desk.core.node_of(&Subject::VolumeName(name.into()));
                prop_assert_eq!(known, nodes.first().copied(), "{}", name);
            }
            let live = desk.disk.values().filter(|(_, placement)| placement.status.is_live()).count();
            prop_assert_eq!(live, desk.core.rows());
            if certain && world.volumes.is_empty() && open.is_empty() {
                prop_assert_eq!(desk.core.rows(), 0);
            }
        }
    }
}

#[test]
fn a_damaged_placement_bars_its_name_and_nothing_else() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["a"]);
    desk.create(&wanted).unwrap();
    desk.create(&request("pvc-2", 1, &["a"])).unwrap();
    let key = Subject::VolumeName("pvc-1".into());
    let revision = Revision("1".into());
    desk.core.restore(Row { key: key.clone(), revision, placement: Err(Defect::Checksum) });
    let refused = desk.create(&wanted).unwrap_err();
    assert_eq!(refused.outcome().code, crate::Code::UNAVAILABLE, "{refused:?}");
    assert_eq!((desk.core.node_of(&key), desk.core.damaged()), (None, 1));
    assert_eq!(desk.create(&request("pvc-2", 1, &["a"])).unwrap().node(), &node("a"));
}

#[test]
fn a_deletion_is_remembered_for_a_day() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = desk.create(&wanted).unwrap();
    desk.ended(&wanted, &attempt, End::Made("vol-1")).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    desk.deleted_at("vol-1", at);
    desk.restart();
    assert!(desk.core.is_deleted(&volume("vol-1")));
    assert_eq!(desk.core.expired(at + DELETED_FOR - Duration::from_secs(1)), None);
    let expired = desk.core.expired(at + DELETED_FOR).unwrap();
    desk.write(expired);
    assert!(desk.disk.is_empty() && !desk.core.is_deleted(&volume("vol-1")));
}

#[test]
fn a_name_whose_volume_is_deleted_is_a_new_volume_anywhere() {
    let mut desk = Desk::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = desk.create(&wanted).unwrap();
    desk.ended(&wanted, &attempt, End::Made("pvc-1")).unwrap();
    desk.deleted("pvc-1");
    let again = request("pvc-1", 1, &["c"]);
    let attempt = desk.create(&again).unwrap();
    assert_eq!(attempt.node(), &node("c"));
    desk.ended(&again, &attempt, End::NeverLeft).unwrap();
    assert!(desk.disk.is_empty(), "nothing was sent for the new one");
    let attempt = desk.create(&again).unwrap();
    desk.ended(&again, &attempt, End::Made("pvc-1")).unwrap();
    assert!(!desk.core.is_deleted(&volume("pvc-1")) && desk.node_of_volume("pvc-1") == Some(node("c")));
}
