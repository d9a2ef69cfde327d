use std::sync::Arc;
use std::time::Duration;

use csi_proto::{DriverName, VolumeId};
use csi_proxy::NodeId;
use volume_manager::ConsumerId;
use volume_manager::advanced::message::DesiredSet;
use volume_manager::advanced::node::{Event, Node, Reply, Request};
use volume_manager::driver::{
    Access, AccessMode, ConsumerSpec, DriverFacts, DriverPolicy, MountPath, VolumeSpec,
};
use volume_manager::mounts::MountTable;
use volume_manager::node::{DesiredVolume, VolumeSettings};
use volume_manager::store::{BootId, Loaded};

use super::*;

fn name() -> DriverName {
    DriverName::new("d.example").unwrap()
}

fn segment() -> NodeSegment {
    NodeSegment::of_driver(NodeId::new("edge-1").unwrap())
}

/// A node with a registered driver, which has answered if there are facts.
fn node(facts: Option<DriverFacts>) -> Node {
    let boot: BootId = "0d7bb5ac-0e3d-4a3c-9d5e-6b7e4f0c1a2b".parse().unwrap();
    let table = MountTable::default().into();
    let (mut node, _) = Node::open(VolumeSettings::new("/var/lib/volumes"), boot, Loaded::default(), table);
    let registered = Event::DriverRegistered { driver: name(), policy: DriverPolicy::default() };
    let _ = node.step(registered, Duration::ZERO);
    if let Some(facts) = facts {
        let connected = Event::DriverConnected { facts: Box::new(facts), earlier_processes_ended: false };
        let _ = node.step(connected, Duration::ZERO);
    }
    node
}

fn seen(node: &Node, now: Duration) -> Observation {
    let volumes = node.keys().filter_map(|key| Some((key.clone(), node.explain(key, now)?)));
    Observation { drivers: node.known_drivers(), volumes: volumes.collect(), ..Observation::default() }
}

/// A plan with one pod that has one volume, which others attach.
fn plan() -> Plan {
    let key = VolumeKey { driver: name(), id: VolumeId::new("v").unwrap() };
    let spec = VolumeSpec::builder(key.clone(), Access::filesystem(), AccessMode::SingleNodeWriter);
    let consumer = ConsumerId::new("9f0c/data").unwrap();
    let target = MountPath::new("/pods/9f0c/mount").unwrap();
    let volume = DesiredVolume {
        spec: Arc::new(spec.attach(Attach::Awaited).build().unwrap()),
        consumers: vec![Arc::new(ConsumerSpec::new(consumer.clone(), target))],
    };
    let status = PodVolumeStatus {
        namespace: "ns".into(),
        pod: "web-0".into(),
        uid: "9f0c".into(),
        volume: "data".into(),
        ..PodVolumeStatus::default()
    };
    let pod_volume = PodVolumePlan {
        status,
        assignment: Assignment::Assigned { key, consumer, missing: None },
        on_root_mismatch: false,
        read_write_once: true,
    };
    Plan {
        set: DesiredSet::new(1, vec![volume]),
        pod_volumes: vec![pod_volume],
        expansions: Vec::new(),
        unmarked: BTreeSet::new(),
        unknown: Vec::new(),
    }
}

#[test]
fn reports_drivers_that_have_answered() {
    let status = |facts, segment: Option<&NodeSegment>| {
        node_status(None, &seen(&node(facts), Duration::ZERO), segment).drivers
    };
    assert_eq!(status(None, Some(&segment())), []);
    let mut facts = DriverFacts::new(name());
    assert_eq!(status(Some(facts.clone()), None), [], "without NodeGetInfo nothing is reported");
    (facts.node_id, facts.max_volumes) = (Some("node-7".into()), Some(5));
    let [driver] = &status(Some(facts.clone()), Some(&segment()))[..] else { panic!() };
    assert_eq!((driver.node_id.as_str(), driver.max_volumes, driver.ready), ("node-7", 5, true));
    assert_eq!(driver.segments["topology.d.example/node"], "edge-1");
    assert!(status(Some(facts.clone()), None)[0].segments.is_empty());
    facts.topology = [("vendor/zone".to_owned(), "z".to_owned())].into();
    assert_eq!(status(Some(facts.clone()), Some(&segment()))[0].segments, facts.topology);
}

#[test]
fn waiting_volume_is_in_use_with_a_constant_reason() {
    let plan = plan();
    let early = node_status(Some(&plan), &Observation::default(), None);
    assert_eq!(early.volumes_in_use, ["kubernetes.io/csi/d.example^v"]);
    assert_eq!(early.pod_volumes[0].reason, "the volume manager has not processed the volume yet");
    let mut node = node(None);
    let request = Request::Reconcile { desired: plan.set.volumes.clone(), reply: Reply::new(()) };
    let _ = node.step(Event::Request(request), Duration::ZERO);
    let _ = node.step(Event::Committed(Ok(())), Duration::ZERO);
    let [first, later] =
        [1, 100].map(|now| node_status(Some(&plan), &seen(&node, Duration::from_secs(now)), None));
    assert_eq!(first, later);
    assert!(!first.pod_volumes[0].published);
    let reason = |node: &Node| {
        node_status(Some(&plan), &seen(node, Duration::ZERO), None).pod_volumes[0].reason.clone()
    };
    assert_eq!(reason(&node), "driver d.example is not connected yet");
    let failed = Event::DriverUnreachable { driver: name(), error: "no such file".to_owned() };
    let _ = node.step(failed, Duration::ZERO);
    assert_eq!(reason(&node), "driver d.example cannot be connected to: no such file");
    let _ = node.step(Event::DriverDeregistered(name()), Duration::ZERO);
    assert_eq!(reason(&node), "driver d.example is not registered");
}

#[test]
fn reports_an_expansion_while_its_claim_waits() {
    let mut plan = plan();
    let expansion = Expansion {
        key: plan.set.volumes[0].spec.key().clone(),
        namespace: "ns".into(),
        name: "data".into(),
        uid: "c1".into(),
        bytes: 5,
    };
    let seen = Observation { expanded: [(expansion.clone(), 8)].into(), ..Observation::default() };
    assert_eq!(node_status(Some(&plan), &seen, None).expanded, []);
    plan.expansions.push(Expansion { bytes: 9, ..expansion.clone() });
    assert_eq!(node_status(Some(&plan), &seen, None).expanded, []);
    plan.expansions = vec![expansion];
    assert_eq!(node_status(Some(&plan), &seen, None).expanded[0].bytes, 8);
}

#[test]
fn status_size_is_bounded() {
    let mut plan = plan();
    plan.pod_volumes[0].assignment = Assignment::Unassigned("€".repeat(1000));
    let one = node_status(Some(&plan), &Observation::default(), None);
    assert_eq!(one.pod_volumes[0].reason.len(), 1023, "whole characters");
    plan.pod_volumes = vec![plan.pod_volumes[0].clone(); 4000];
    let many = node_status(Some(&plan), &Observation::default(), None);
    assert_eq!((many.pod_volumes.len(), many.pod_volumes[0].reason.len()), (4000, 63));
    plan.pod_volumes = vec![plan.pod_volumes[0].clone(); 40_000];
    let most = node_status(Some(&plan), &Observation::default(), None);
    assert!(most.encoded_len() <= MAX_STATUS_BYTES);
    assert_eq!(most.pod_volumes.len(), MAX_POD_VOLUMES);
}

#[test]
fn failures_are_events_at_once_and_waits_later() {
    let plan = plan();
    let failure =
        |seen: &Observation| node_status(Some(&plan), seen, None).pod_volumes[0].failure.clone().unwrap();
    let early = failure(&Observation::default());
    assert_eq!((early.reason.as_str(), early.waits), ("FailedMount", true));
    assert!(
        early
            .message
            .contains("unmounted volumes=[data]: the volume manager has not processed the volume yet"),
        "{}",
        early.message
    );
    // What the node refuses ends only by a change of the pod.
    let key = plan.set.volumes[0].spec.key();
    let mut node = node(None);
    let request = Request::Reconcile { desired: plan.set.volumes.clone(), reply: Reply::new(()) };
    let _ = node.step(Event::Request(request), Duration::ZERO);
    let mut seen = seen(&node, Duration::ZERO);
    assert!(failure(&seen).waits);
    let mut refused = Refused::default();
    (refused.driver, refused.volume_id) = (key.driver.to_string(), key.id.to_string());
    (refused.consumer, refused.reason) = ("9f0c/data".into(), "it is taken".into());
    seen.refused = vec![refused];
    let reported = failure(&seen);
    assert!(!reported.waits && reported.message.ends_with("it is taken"), "{}", reported.message);
    // A group that the files could not be given to.
    let consumer = ConsumerId::new("9f0c/data").unwrap();
    seen.groups = [(consumer, GroupState::Failed("I/O error".into()))].into();
    let reported = failure(&seen);
    assert!(
        !reported.waits && reported.message.contains("applyFSGroup failed for vol v: I/O error"),
        "{}",
        reported.message
    );
}
