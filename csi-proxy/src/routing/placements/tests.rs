//! Placements by example and in random walks.

use std::collections::{BTreeMap, BTreeSet};

use csi_proto::csi::v1 as csi;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::routing::selection::{Candidate, OfflinePolicy, Presence};

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
struct Fixture {
    core: Placements,
    disk: BTreeMap<Subject, (u64, Placement)>,
    writes: u64,
    candidates: Vec<Candidate>,
}

impl Fixture {
    fn new() -> Self {
        Self::with(Placements::default())
    }

    fn with(core: Placements) -> Self {
        Self { core, disk: BTreeMap::new(), writes: 0, candidates: candidates(&["a", "b", "c"]) }
    }

    /// Writes a change as a store does, and applies it.
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
        // The index by node is that of the rows.
        let live = self.core.rows.iter().filter(|(_, entry)| entry.placement.status.is_live());
        let mut of_node: HashMap<NodeId, BTreeSet<Subject>> = HashMap::new();
        for (key, entry) in live {
            of_node.entry(entry.placement.node.clone()).or_default().insert(key.clone());
        }
        assert_eq!(self.core.of_node, of_node);
    }

    fn create(&mut self, request: &VolumeRequest) -> Result<Attempt, Refusal> {
        let candidates = self.candidates.clone();
        let selector = NodeSelector { candidates: &candidates, default: None, offline: OfflinePolicy::Wait };
        self.core.create(request, selector)?.into_iter().for_each(|change| self.write(change));
        Ok(self.core.begin(request).unwrap())
    }

    fn ended(
        &mut self,
        request: &VolumeRequest,
        attempt: &Attempt,
        end: AttemptResult<'_>,
    ) -> Result<(), Refusal> {
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

    fn decommission(&mut self, node_name: &str) {
        self.core.decommission(&node(node_name));
        let (lost, free) = self.core.released(&node(node_name));
        lost.into_iter().chain(free).for_each(|change| self.write(change));
    }

    fn restart(&mut self) {
        let decommissioned = std::mem::take(&mut self.core.decommissioned);
        self.core =
            Placements { decommissioned, ..Placements::new(self.core.max_rows, self.core.max_rows_of_node) };
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
fn volume_with_unknown_result_keeps_its_node() {
    let mut fixture = Fixture::new();
    let first = request("pvc-1", 1, &["b", "a"]);
    let attempt = fixture.create(&first).unwrap();
    assert_eq!((attempt.node(), fixture.disk.len()), (&node("b"), 1), "durable before it is sent");
    fixture.ended(&first, &attempt, AttemptResult::Unknown).unwrap();
    let again = request("pvc-1", 1, &["a", "b"]);
    assert_eq!(fixture.create(&again).unwrap().node(), &node("b"));
    fixture.restart();
    assert_eq!(fixture.create(&again).unwrap().node(), &node("b"));
}

#[test]
fn failed_volume_may_move_to_another_node() {
    let mut fixture = Fixture::new();
    let attempt = fixture.create(&request("pvc-1", 1, &["b"])).unwrap();
    fixture.ended(&request("pvc-1", 1, &["b"]), &attempt, AttemptResult::Failed).unwrap();
    assert!(fixture.disk.is_empty());
    assert_eq!(fixture.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("c"));
}

#[test]
fn failure_of_one_request_keeps_node_of_another() {
    let mut fixture = Fixture::new();
    let (first, other) = (request("pvc-1", 1, &["b"]), request("pvc-1", 2, &["c"]));
    let attempt = fixture.create(&first).unwrap();
    fixture.ended(&first, &attempt, AttemptResult::Unknown).unwrap();
    let second = fixture.create(&other).unwrap();
    assert_eq!(second.node(), &node("b"), "its driver decides whether they are compatible");
    fixture.ended(&other, &second, AttemptResult::Failed).unwrap();
    assert_eq!(fixture.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("b"));
}

#[test]
fn unsent_volume_is_selected_again() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let (first, second) = (fixture.create(&wanted).unwrap(), fixture.create(&wanted).unwrap());
    fixture.ended(&wanted, &first, AttemptResult::NotSent).unwrap();
    assert_eq!(fixture.disk.len(), 1, "the other attempt is open");
    fixture.ended(&wanted, &second, AttemptResult::NotSent).unwrap();
    assert!(fixture.disk.is_empty());
    let third = fixture.create(&wanted).unwrap();
    fixture.restart();
    let fourth = fixture.create(&wanted).unwrap();
    fixture.ended(&wanted, &fourth, AttemptResult::NotSent).unwrap();
    assert_eq!(fixture.create(&request("pvc-1", 1, &["c"])).unwrap().node(), third.node());
}

#[test]
fn created_volume_is_found_by_id_and_name() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = fixture.create(&wanted).unwrap();
    fixture.ended(&wanted, &attempt, AttemptResult::Created("vol-1")).unwrap();
    fixture.restart();
    assert_eq!(fixture.node_of_volume("vol-1"), Some(node("b")));
    let again = fixture.create(&request("pvc-1", 1, &["c"])).unwrap();
    assert_eq!(again.node(), &node("b"));
    fixture.ended(&wanted, &again, AttemptResult::Created("vol-1")).unwrap();
    // The driver decides whether another request is compatible.
    let other = request("pvc-1", 2, &["c"]);
    let second = fixture.create(&other).unwrap();
    assert_eq!(second.node(), &node("b"));
    fixture.ended(&other, &second, AttemptResult::Failed).unwrap();
    assert_eq!(fixture.node_of_volume("vol-1"), Some(node("b")));
    fixture.deleted("vol-1");
    assert!(fixture.core.rows() == 0 && fixture.core.is_deleted(&volume("vol-1")));
}

#[test]
fn rejects_id_reported_by_two_nodes() {
    let mut fixture = Fixture::new();
    let (first, second) = (request("pvc-1", 1, &["a"]), request("pvc-2", 1, &["b"]));
    let attempt = fixture.create(&first).unwrap();
    fixture.ended(&first, &attempt, AttemptResult::Created("1")).unwrap();
    let attempt = fixture.create(&second).unwrap();
    let expected =
        Refusal::DuplicateId { subject: Subject::Volume("1".into()), known: node("a"), other: node("b") };
    assert_eq!(fixture.ended(&second, &attempt, AttemptResult::Created("1")), Err(expected.clone()));
    assert_eq!(expected.outcome().code, crate::Code::UNAVAILABLE, "the provisioner must not forget it");
    assert_eq!(fixture.create(&request("pvc-2", 1, &["c"])).unwrap().node(), &node("b"));
    assert_eq!(fixture.node_of_volume("1"), Some(node("a")));
}

#[test]
fn volume_created_during_deletion_keeps_its_node() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = fixture.create(&wanted).unwrap();
    fixture.ended(&wanted, &attempt, AttemptResult::Created("vol-1")).unwrap();
    let again = fixture.create(&wanted).unwrap();
    fixture.deleted("vol-1");
    assert_eq!(fixture.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("b"));
    fixture.ended(&wanted, &again, AttemptResult::Created("vol-2")).unwrap();
    fixture.restart();
    assert_eq!((fixture.node_of_volume("vol-1"), fixture.node_of_volume("vol-2")), (None, Some(node("b"))));
}

#[test]
fn copy_is_placed_on_the_node_of_its_source() {
    let mut fixture = Fixture::new();
    let snapshot = Subject::Snapshot("snap-1".into());
    fixture.found(&snapshot, "c");
    let mut copy = request("pvc-1", 1, &["a", "c"]);
    copy.source = Some(snapshot.clone());
    assert_eq!(fixture.create(&copy).unwrap().node(), &node("c"));
    let mut elsewhere = request("pvc-2", 1, &["a"]);
    elsewhere.source = Some(snapshot);
    assert_eq!(fixture.create(&elsewhere), Err(Refusal::SourceElsewhere { node: node("c") }));
}

#[test]
fn decommissioned_node_has_no_rows() {
    let mut fixture = Fixture::new();
    for (name, place) in [("pvc-1", "a"), ("pvc-2", "b")] {
        let wanted = request(name, 1, &[place]);
        let attempt = fixture.create(&wanted).unwrap();
        fixture.ended(&wanted, &attempt, AttemptResult::Created(name)).unwrap();
    }
    let open = request("pvc-3", 1, &["a"]);
    let attempt = fixture.create(&open).unwrap();
    fixture.decommission("a");
    let refused = Err(Refusal::Decommissioned { node: node("a") });
    assert_eq!(fixture.ended(&open, &attempt, AttemptResult::Created("late")), refused);
    fixture.restart();
    assert_eq!(fixture.create(&open).map(drop), refused);
    let lost = Subject::Volume("pvc-1".into());
    assert!(fixture.core.is_deleted(&lost) && fixture.core.rows() == 1, "its deletion succeeds");
    fixture.found(&lost, "a");
    assert!(
        fixture.core.is_deleted(&lost) && !fixture.core.has_rows_of(&node("a")),
        "nothing is found there"
    );
    assert_eq!((fixture.node_of_volume("pvc-1"), fixture.node_of_volume("pvc-2")), (None, Some(node("b"))));
    assert_eq!(fixture.create(&request("pvc-1", 1, &["c"])).unwrap().node(), &node("c"));
    fixture.core.recommission(&node("a"));
    fixture.restart();
    assert!(!fixture.core.is_deleted(&lost), "it may exist after all");
    assert_eq!(fixture.create(&open).unwrap().node(), &node("a"));
}

#[test]
fn failed_and_unsent_attempts_leave_no_row() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["a"]);
    let (first, second) = (fixture.create(&wanted).unwrap(), fixture.create(&wanted).unwrap());
    fixture.ended(&wanted, &first, AttemptResult::Failed).unwrap();
    assert_eq!(fixture.core.rows(), 1, "the other may still be created");
    fixture.ended(&wanted, &second, AttemptResult::NotSent).unwrap();
    assert_eq!(fixture.core.rows(), 0);
}

#[test]
fn full_table_accepts_ids_but_no_new_volumes() {
    let mut fixture = Fixture::new();
    fixture.core = Placements::new(1, DEFAULT_MAX_ROWS_OF_NODE);
    let (first, second) = (request("pvc-1", 1, &["a"]), request("pvc-2", 1, &["a"]));
    let attempt = fixture.create(&first).unwrap();
    fixture.ended(&first, &attempt, AttemptResult::Created("vol-1")).unwrap();
    assert_eq!(fixture.create(&second), Err(Refusal::Full { max: 1 }));
    fixture.deleted("vol-1");
    let room = fixture.core.expired(SystemTime::UNIX_EPOCH).unwrap();
    fixture.write(room);
    assert!(fixture.create(&second).is_ok());
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

/// The drivers, whose state the placements learn only from results.
#[derive(Default)]
struct Drivers {
    /// The volumes by node and name, with the fingerprint of their request.
    volumes: BTreeMap<(NodeId, Box<str>), Digest>,
    /// Attempts that may still have an effect at their node, with or without a recorded result.
    in_flight: Vec<(VolumeRequest, Attempt)>,
}

proptest! {
    /// For any order of attempts, answers, restarts and deletions: a name never has volumes on two nodes, no volume is
    /// unknown to the placements, a new node is always allowed by the request, and nothing leaves a row when idle.
    #[test]
    fn each_name_has_at_most_one_node(acts in prop::collection::vec(act(), 1..80)) {
        let mut fixture = Fixture::new();
        let mut drivers = Drivers::default();
        // Attempts without a result. Those of an earlier run are unknown to the placements.
        let mut open: Vec<(VolumeRequest, Attempt)> = Vec::new();
        // Whether every result was recorded, and each name was requested by one request.
        let mut certain = true;
        for act in acts {
            match act {
                Act::Create { name, size, places } => {
                    let places: Vec<_> = places.iter().map(|at| ["a", "b", "c"][usize::from(*at)]).collect();
                    certain &= size == 0;
                    let wanted = request(&format!("pvc-{name}"), i64::from(size), &places);
                    let known = fixture.core.node_of(&Subject::VolumeName(wanted.name.clone())).cloned();
                    match fixture.create(&wanted) {
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
                    let made = drivers.volumes.get(&key).copied();
                    let end = match (end, made) {
                        (0, _) => AttemptResult::NotSent,
                        // The driver may be executing it, have executed it, or never do so.
                        (1, _) => {
                            certain = false;
                            drivers.in_flight.push((wanted.clone(), attempt.clone()));
                            AttemptResult::Unknown
                        }
                        // A driver fails for what is incompatible, or what it cannot create; then it has ended what it
                        // began.
                        (_, Some(made)) if made != wanted.fingerprint => AttemptResult::Failed,
                        (2, None) => {
                            drivers.in_flight.retain(|(other, at)| (at.node(), &other.name, other.fingerprint) != (&key.0, &key.1, wanted.fingerprint));
                            AttemptResult::Failed
                        }
                        _ => {
                            drivers.volumes.insert(key, wanted.fingerprint);
                            AttemptResult::Created(&id)
                        }
                    };
                    prop_assert_eq!(fixture.ended(&wanted, &attempt, end), Ok(()));
                }
                Act::Delete { volume } if !drivers.volumes.is_empty() => {
                    let key = drivers.volumes.keys().nth(volume.index(drivers.volumes.len())).unwrap().clone();
                    let id = format!("{}-{}", key.0, key.1);
                    // A sidecar deletes what was reported to it, and nothing that it still requests.
                    if fixture.node_of_volume(&id).is_some() && !open.iter().any(|(wanted, _)| wanted.name == key.1) {
                        drivers.in_flight.retain(|(other, at)| (at.node(), &other.name) != (&key.0, &key.1));
                        drivers.volumes.remove(&key);
                        fixture.deleted(&id);
                    }
                }
                Act::Restart => {
                    certain &= open.is_empty();
                    drivers.in_flight.append(&mut open);
                    fixture.restart();
                }
                Act::End { .. } | Act::Delete { .. } => {}
            }
            let mut nodes: BTreeMap<&str, BTreeSet<&NodeId>> = BTreeMap::new();
            let in_flight = drivers.in_flight.iter().chain(&open).map(|(wanted, attempt)| (&*wanted.name, attempt.node()));
            for (name, at) in drivers.volumes.keys().map(|(at, name)| (&**name, at)).chain(in_flight) {
                nodes.entry(name).or_default().insert(at);
            }
            for (name, nodes) in nodes {
                prop_assert_eq!(nodes.len(), 1, "{} is on {:?}", name, nodes);
                let known = fixture.core.node_of(&Subject::VolumeName(name.into()));
                prop_assert_eq!(known, nodes.first().copied(), "{}", name);
            }
            let live = fixture.disk.values().filter(|(_, placement)| placement.status.is_live()).count();
            prop_assert_eq!(live, fixture.core.rows());
            if certain && drivers.volumes.is_empty() && open.is_empty() {
                prop_assert_eq!(fixture.core.rows(), 0);
            }
        }
    }
}

#[test]
fn damaged_placement_blocks_only_its_name() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["a"]);
    fixture.create(&wanted).unwrap();
    fixture.create(&request("pvc-2", 1, &["a"])).unwrap();
    let key = Subject::VolumeName("pvc-1".into());
    let revision = Revision("1".into());
    fixture.core.restore(Row { key: key.clone(), revision, placement: Err(Defect::Checksum) });
    let refused = fixture.create(&wanted).unwrap_err();
    assert_eq!(refused.outcome().code, crate::Code::UNAVAILABLE, "{refused:?}");
    assert_eq!((fixture.core.node_of(&key), fixture.core.damaged().count()), (None, 1));
    assert_eq!(fixture.create(&request("pvc-2", 1, &["a"])).unwrap().node(), &node("a"));
}

/// The report of an operator counts like a request that the node may have received.
#[test]
fn repaired_placement_keeps_its_node_or_frees_its_name() {
    let mut fixture = Fixture::new();
    let key = Subject::VolumeName("pvc-1".into());
    for (reported, expected) in [(Some(node("b")), "b"), (None, "a")] {
        fixture.create(&request("pvc-1", 1, &["a"])).unwrap();
        assert_eq!(fixture.core.repaired("pvc-1", reported.as_ref()), None, "not damaged");
        let revision = Revision(fixture.disk[&key].0.to_string().into());
        fixture.core.restore(Row { key: key.clone(), revision, placement: Err(Defect::Checksum) });
        let change = fixture.core.repaired("pvc-1", reported.as_ref()).unwrap();
        fixture.write(change);
        let wanted = request("pvc-1", 1, &["a"]);
        let attempt = fixture.create(&wanted).unwrap();
        assert_eq!((attempt.node(), fixture.core.damaged().count()), (&node(expected), 0));
        let change = fixture.core.ended(&wanted, &attempt, AttemptResult::NotSent).unwrap();
        assert_eq!(change.is_some(), reported.is_none(), "an earlier attempt may have reached the node");
    }
}

#[test]
fn damaged_id_gets_the_node_that_reports_it() {
    let mut fixture = Fixture::new();
    fixture.found(&volume("vol-1"), "a");
    let (key, revision) = (volume("vol-1"), Revision("1".into()));
    fixture.core.restore(Row { key, revision, placement: Err(Defect::Checksum) });
    assert_eq!((fixture.node_of_volume("vol-1"), fixture.core.damaged().count()), (None, 1));
    fixture.found(&volume("vol-1"), "b");
    assert_eq!((fixture.node_of_volume("vol-1"), fixture.core.damaged().count()), (Some(node("b")), 0));
}

/// Also with what a node reports.
#[test]
fn one_node_cannot_fill_the_table() {
    let mut fixture = Fixture::with(Placements::new(5, 3));
    fixture.create(&request("pvc-1", 1, &["a"])).unwrap();
    for number in 0..10 {
        fixture.found(&volume(&format!("vol-{number}")), "a");
    }
    assert_eq!(fixture.core.rows(), 3);
    let refused = fixture.create(&request("pvc-2", 1, &["a"])).unwrap_err();
    assert_eq!(refused.outcome().code, crate::Code::RESOURCE_EXHAUSTED, "{refused:?}");
    fixture.create(&request("pvc-1", 1, &["a"])).unwrap();
    fixture.create(&request("pvc-2", 1, &["b"])).unwrap();
    assert_eq!(fixture.core.volumes_of(&node("a")).len(), 2);
    fixture.restart();
    assert_eq!(fixture.core.volumes_of(&node("a")).len(), 2);
    fixture.deleted("vol-0");
    fixture.create(&request("pvc-3", 1, &["a"])).unwrap();
}

#[test]
fn deletion_is_remembered_for_a_day() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = fixture.create(&wanted).unwrap();
    fixture.ended(&wanted, &attempt, AttemptResult::Created("vol-1")).unwrap();
    let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    fixture.deleted_at("vol-1", at);
    fixture.restart();
    assert!(fixture.core.is_deleted(&volume("vol-1")));
    assert_eq!(fixture.core.expired(at + DELETED_FOR - Duration::from_secs(1)), None);
    let expired = fixture.core.expired(at + DELETED_FOR).unwrap();
    fixture.write(expired);
    assert!(fixture.disk.is_empty() && !fixture.core.is_deleted(&volume("vol-1")));
}

#[test]
fn name_of_deleted_volume_is_free() {
    let mut fixture = Fixture::new();
    let wanted = request("pvc-1", 1, &["b"]);
    let attempt = fixture.create(&wanted).unwrap();
    fixture.ended(&wanted, &attempt, AttemptResult::Created("pvc-1")).unwrap();
    fixture.deleted("pvc-1");
    let again = request("pvc-1", 1, &["c"]);
    let attempt = fixture.create(&again).unwrap();
    assert_eq!(attempt.node(), &node("c"));
    fixture.ended(&again, &attempt, AttemptResult::NotSent).unwrap();
    assert!(fixture.disk.is_empty(), "nothing was sent for the new one");
    let attempt = fixture.create(&again).unwrap();
    fixture.ended(&again, &attempt, AttemptResult::Created("pvc-1")).unwrap();
    assert!(!fixture.core.is_deleted(&volume("pvc-1")) && fixture.node_of_volume("pvc-1") == Some(node("c")));
}
