//! Each rule broken once, and calls that break none. Random legal orchestrators are in `legal.rs`.

mod legal;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use prost::Message as _;

use super::core::Monitor;
use super::event::{CallNumber, End, Event, InitialState, Limits};
use super::rule::{Rule, Violation};
use super::*;
use csi_proto::Code;

const NODE: &str = "node-1";

/// The target of a pod, as kubelet names it.
const OF_POD: &str = "/var/lib/kubelet/pods/1c2d/volumes/kubernetes.io~csi/pv/mount";

/// A monitor and an orchestrator with sequential calls.
struct Bench {
    monitor: Monitor,
    now: Instant,
    calls: u64,
}

/// A call: its method and its request.
type Made = (Method, Vec<u8>);

fn capability() -> Option<csi::VolumeCapability> {
    Some(csi::VolumeCapability::default())
}

fn context(argument: &str) -> std::collections::BTreeMap<String, String> {
    [("argument".to_owned(), argument.to_owned())].into()
}

fn attach_with(volume: &str, argument: &str) -> Made {
    let (volume_id, node_id) = (volume.to_owned(), NODE.to_owned());
    let (volume_capability, volume_context) = (capability(), context(argument));
    let request = csi::ControllerPublishVolumeRequest {
        volume_id,
        node_id,
        volume_capability,
        volume_context,
        ..Default::default()
    };
    (Method::ControllerPublishVolume, request.encode_to_vec())
}

fn attach(volume: &str) -> Made {
    attach_with(volume, "")
}

fn detach(volume: &str, node: &str) -> Made {
    let (volume_id, node_id) = (volume.to_owned(), node.to_owned());
    let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
    (Method::ControllerUnpublishVolume, request.encode_to_vec())
}

fn stage_with(volume: &str, path: &str, argument: &str) -> Made {
    let (volume_id, staging_target_path) = (volume.to_owned(), path.to_owned());
    let (volume_capability, volume_context) = (capability(), context(argument));
    let request = csi::NodeStageVolumeRequest {
        volume_id,
        staging_target_path,
        volume_capability,
        volume_context,
        ..Default::default()
    };
    (Method::NodeStageVolume, request.encode_to_vec())
}

fn stage(volume: &str) -> Made {
    stage_with(volume, &format!("/stage/{volume}"), "")
}

fn unstage(volume: &str) -> Made {
    let (volume_id, staging_target_path) = (volume.to_owned(), format!("/stage/{volume}"));
    let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
    (Method::NodeUnstageVolume, request.encode_to_vec())
}

fn publish_from(volume: &str, staging: &str, target: &str, argument: &str) -> Made {
    let (volume_id, target_path) = (volume.to_owned(), target.to_owned());
    let (volume_capability, volume_context) = (capability(), context(argument));
    let request = csi::NodePublishVolumeRequest {
        volume_id,
        target_path,
        staging_target_path: staging.to_owned(),
        volume_capability,
        volume_context,
        ..Default::default()
    };
    (Method::NodePublishVolume, request.encode_to_vec())
}

fn publish(volume: &str, target: &str) -> Made {
    publish_from(volume, &format!("/stage/{volume}"), target, "")
}

fn unpublish(volume: &str, target: &str) -> Made {
    let (volume_id, target_path) = (volume.to_owned(), target.to_owned());
    let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
    (Method::NodeUnpublishVolume, request.encode_to_vec())
}

fn expand(volume: &str) -> Made {
    let (volume_id, volume_path) = (volume.to_owned(), format!("/stage/{volume}"));
    let request = csi::NodeExpandVolumeRequest { volume_id, volume_path, ..Default::default() };
    (Method::NodeExpandVolume, request.encode_to_vec())
}

fn delete(volume: &str) -> Made {
    let request = csi::DeleteVolumeRequest { volume_id: volume.to_owned(), ..Default::default() };
    (Method::DeleteVolume, request.encode_to_vec())
}

fn offers(types: &[csi::node_service_capability::rpc::Type]) -> Vec<u8> {
    use csi::node_service_capability::{Rpc, Type};
    let one = |r#type: &csi::node_service_capability::rpc::Type| csi::NodeServiceCapability {
        r#type: Some(Type::Rpc(Rpc { r#type: (*r#type).into() })),
    };
    csi::NodeGetCapabilitiesResponse { capabilities: types.iter().map(one).collect() }.encode_to_vec()
}

impl Bench {
    /// Monitors since the boot a driver that stages and expands.
    fn new() -> Self {
        Self::with(Limits::default(), InitialState::Empty)
    }

    fn with(limits: Limits, before: InitialState) -> Self {
        use csi::node_service_capability::rpc::Type::{ExpandVolume, StageUnstageVolume};
        let mut bench = Self { monitor: Monitor::new(limits, before), now: Instant::now(), calls: 0 };
        bench.learn(Method::NodeGetCapabilities, &offers(&[StageUnstageVolume, ExpandVolume]));
        let info = csi::NodeGetInfoResponse { node_id: NODE.to_owned(), ..Default::default() };
        bench.learn(Method::NodeGetInfo, &info.encode_to_vec());
        bench
    }

    fn learn(&mut self, method: Method, message: &[u8]) {
        let (call, violations) = self.begin(&(method, Vec::new()));
        assert_eq!(violations, []);
        let end = End::Answered { code: Code::OK, message: Some(message) };
        assert_eq!(self.monitor.handle(self.now, Event::Ended { call, end }), []);
    }

    fn begin(&mut self, (method, body): &Made) -> (CallNumber, Vec<Violation>) {
        self.calls += 1;
        self.now += Duration::from_millis(1);
        let call = CallNumber::new(self.calls);
        (call, self.monitor.handle(self.now, Event::Began { call, method: *method, body }))
    }

    fn end(&mut self, call: CallNumber, code: Code) {
        let end = End::Answered { code, message: None };
        assert_eq!(self.monitor.handle(self.now, Event::Ended { call, end }), []);
    }

    /// Makes a call and returns the broken rules.
    fn call(&mut self, made: &Made, code: Code) -> Vec<Rule> {
        let (call, violations) = self.begin(made);
        self.end(call, code);
        violations.iter().map(|violation| violation.rule).collect()
    }

    /// Makes calls that succeed and break nothing.
    fn all_well(&mut self, calls: &[Made]) {
        for made in calls {
            assert_eq!(self.call(made, Code::OK), [], "{}", made.0);
        }
    }
}

/// Legal calls, calls that end with a code, and a call that breaks a rule.
type Break = (Rule, Vec<Made>, Vec<(Made, Code)>, Made);

fn breaks() -> Vec<Break> {
    let up = || vec![attach("v"), stage("v"), publish("v", "/t")];
    let missing_fields =
        (Method::NodePublishVolume, csi::NodePublishVolumeRequest::default().encode_to_vec());
    vec![
        (Rule::RequiredField, vec![], vec![], missing_fields),
        (Rule::RequiredField, vec![stage("v")], vec![], publish_from("v", "", "/t", "")),
        (Rule::AttachBeforeUse, vec![attach("v"), detach("v", NODE)], vec![], stage("v")),
        (Rule::AttachBeforeUse, vec![attach("v"), detach("v", "")], vec![], stage("v")),
        (
            Rule::AttachBeforeUse,
            vec![attach("v"), detach("v", NODE)],
            vec![(attach("v"), Code::DEADLINE_EXCEEDED)],
            stage("v"),
        ),
        (Rule::StageBeforeUse, vec![], vec![], publish("v", "/t")),
        (Rule::StageBeforeUse, vec![stage("v"), unstage("v")], vec![], publish("v", "/t")),
        (Rule::StageBeforeUse, vec![], vec![(stage("v"), Code::DEADLINE_EXCEEDED)], publish("v", "/t")),
        (Rule::StageBeforeUse, vec![], vec![(stage("v"), Code::INTERNAL)], publish("v", "/t")),
        (Rule::StageBeforeUse, vec![], vec![], expand("v")),
        (Rule::UnstageWhilePublished, up(), vec![], unstage("v")),
        (Rule::UnstageWhilePublished, up(), vec![(unpublish("v", "/t"), Code::INTERNAL)], unstage("v")),
        (
            Rule::UnstageWhilePublished,
            vec![stage("v")],
            vec![(publish("v", "/t"), Code::UNAVAILABLE)],
            unstage("v"),
        ),
        (
            Rule::UnpublishWhileInUse,
            vec![stage("v"), publish("v", OF_POD), unpublish("v", OF_POD), unstage("v"), stage("v")],
            vec![],
            publish("v", OF_POD),
        ),
        (Rule::DetachWhileInUse, up(), vec![], detach("v", NODE)),
        (Rule::DetachWhileInUse, vec![attach("v"), stage("v")], vec![], detach("v", "")),
        (Rule::DetachWhileInUse, vec![stage("v")], vec![(unstage("v"), Code::ABORTED)], detach("v", NODE)),
        (Rule::DeleteWhileInUse, vec![stage("v")], vec![], delete("v")),
        (Rule::FinishTeardown, up(), vec![(unpublish("v", "/t"), Code::INTERNAL)], publish("v", "/t")),
        (Rule::FinishTeardown, vec![stage("v")], vec![(unstage("v"), Code::DEADLINE_EXCEEDED)], stage("v")),
        (Rule::FinishTeardown, vec![stage("v")], vec![(unstage("v"), Code::UNKNOWN)], publish("v", "/t")),
        (Rule::FinishTeardown, vec![attach("v")], vec![(detach("v", NODE), Code::UNAVAILABLE)], attach("v")),
        (Rule::FinishTeardown, vec![attach("v")], vec![(detach("v", ""), Code::INTERNAL)], stage("v")),
        (Rule::SameArguments, vec![attach("v")], vec![], attach_with("v", "other")),
        (
            Rule::SameArguments,
            vec![attach("v"), detach("v", NODE)],
            vec![(attach("v"), Code::UNAVAILABLE)],
            attach_with("v", "other"),
        ),
        (Rule::SameArguments, vec![stage("v")], vec![], stage_with("v", "/stage/v", "other")),
        (
            Rule::SameArguments,
            vec![],
            vec![(stage("v"), Code::DEADLINE_EXCEEDED)],
            stage_with("v", "/stage/v", "other"),
        ),
        (Rule::SameArguments, up(), vec![], publish_from("v", "/stage/v", "/t", "other")),
        (Rule::OneStagingPath, vec![stage("v")], vec![], stage_with("v", "/elsewhere", "")),
        (Rule::OneStagingPath, vec![stage("v")], vec![], publish_from("v", "/elsewhere", "/t", "")),
        (Rule::PathOfAnotherVolume, [up(), vec![stage("w")]].concat(), vec![], publish("w", "/t")),
        (Rule::PathOfAnotherVolume, vec![stage("v")], vec![], stage_with("w", "/stage/v", "")),
        (Rule::PathOfAnotherVolume, up(), vec![], unpublish("w", "/t")),
    ]
}

#[test]
fn reports_exactly_the_broken_rule() {
    let mut seen = BTreeSet::new();
    for (at, (rule, before, then, breaking)) in breaks().into_iter().enumerate() {
        let mut bench = Bench::new();
        bench.all_well(&before);
        for (made, code) in then {
            assert_eq!(bench.call(&made, code), [], "{at}: {}", made.0);
        }
        assert_eq!(bench.call(&breaking, Code::OK), [rule], "{at}: {}", breaking.0);
        assert_eq!(bench.monitor.counts().violations, 1);
        seen.insert(rule);
    }
    // These three have tests of their own.
    seen.extend([Rule::OneCallPerVolume, Rule::OfferedCall, Rule::ExpandOnNode]);
    assert_eq!(seen, Rule::ALL.iter().copied().collect());
}

#[test]
fn reports_concurrent_calls_for_a_volume() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), stage("w")]);
    let (first, violations) = bench.begin(&publish("v", "/1"));
    assert_eq!(violations, []);
    bench.now += Duration::from_secs(7);
    let (second, violations) = bench.begin(&publish("v", "/2"));
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert_eq!(violations[0].rule, Rule::OneCallPerVolume);
    assert!(violations[0].found.contains("NodePublishVolume that began 7.001s before"), "{violations:?}");
    assert_eq!(bench.begin(&publish("w", "/3")).1, [], "another volume is independent");
    assert_eq!(bench.begin(&publish("v", "/1")).1, [], "the same call once more joins the first");
    bench.end(second, Code::OK);
    bench.end(first, Code::OK);
    assert_eq!(bench.call(&unstage("v"), Code::OK), [Rule::OneCallPerVolume, Rule::UnstageWhilePublished]);
}

#[test]
fn components_may_call_concurrently() {
    let named = |volume_id: &str| volume_id.to_owned();
    let snapshot =
        csi::CreateSnapshotRequest { source_volume_id: named("v"), name: named("s"), ..Default::default() };
    let capacity_range = Some(csi::CapacityRange::default());
    let grow =
        csi::ControllerExpandVolumeRequest { volume_id: named("v"), capacity_range, ..Default::default() };
    let modify = csi::ControllerModifyVolumeRequest { volume_id: named("v"), ..Default::default() };
    let at_once = [
        detach("v", NODE),
        (Method::CreateSnapshot, snapshot.encode_to_vec()),
        (Method::ControllerExpandVolume, grow.encode_to_vec()),
        publish("w", "/other"),
        delete("v"),
    ];
    let mut bench = Bench::new();
    bench.all_well(&[stage("w"), attach("v")]);
    for made in &at_once {
        assert_eq!(bench.begin(made).1, [], "{}", made.0);
    }
    let second =
        [attach("v"), (Method::ControllerModifyVolume, modify.encode_to_vec()), publish("w", "/another")];
    for made in &second {
        let violations = bench.begin(made).1;
        let rules: Vec<_> = violations.iter().map(|violation| violation.rule).collect();
        assert_eq!(rules, [Rule::OneCallPerVolume], "{}: a component knows its own calls", made.0);
    }
}

#[test]
fn state_after_concurrent_calls_is_unknown() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v")]);
    let (publishing, _) = bench.begin(&publish("v", "/t"));
    let (unpublishing, violations) = bench.begin(&unpublish("v", "/t"));
    assert_eq!(violations.len(), 1);
    bench.end(unpublishing, Code::OK);
    bench.end(publishing, Code::OK);
    // It may be published or not.
    assert_eq!(bench.call(&unstage("v"), Code::OK), []);
}

#[test]
fn reports_calls_without_capability() {
    let mut bench = Bench::new();
    bench.learn(Method::NodeGetCapabilities, &offers(&[]));
    assert_eq!(bench.call(&stage("v"), Code::UNIMPLEMENTED), [Rule::OfferedCall]);
    assert_eq!(bench.call(&publish_from("v", "", "/t", ""), Code::OK), []);
    assert_eq!(bench.call(&expand("v"), Code::UNIMPLEMENTED), [Rule::OfferedCall]);
}

#[test]
fn target_of_a_pod_may_be_published_again_after_a_failure() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), stage("w")]);
    assert_eq!(bench.call(&publish("v", OF_POD), Code::INTERNAL), []);
    // Only what was published can be in use.
    bench.all_well(&[unpublish("v", OF_POD), publish("v", OF_POD), unpublish("v", OF_POD)]);
    // Another volume at the path, and a path of no pod.
    bench.all_well(&[publish("w", OF_POD), publish("v", "/t"), unpublish("v", "/t"), publish("v", "/t")]);
    bench.all_well(&[unpublish("w", OF_POD)]);
    assert_eq!(bench.call(&publish("v", OF_POD), Code::OK), [Rule::UnpublishWhileInUse]);
    assert_eq!(bench.call(&publish("v", OF_POD), Code::OK), [], "a violation is reported once");
}

#[test]
fn expansion_on_the_node_is_expected_of_a_volume_in_use() {
    let grow = |bench: &mut Bench, node_expansion_required| {
        let volume_id = "v".to_owned();
        let capacity_range = Some(csi::CapacityRange::default());
        let request = csi::ControllerExpandVolumeRequest { volume_id, capacity_range, ..Default::default() };
        let (call, violations) = bench.begin(&(Method::ControllerExpandVolume, request.encode_to_vec()));
        assert_eq!(violations, []);
        let answer = csi::ControllerExpandVolumeResponse { node_expansion_required, ..Default::default() };
        let message = answer.encode_to_vec();
        let end = End::Answered { code: Code::OK, message: Some(&message) };
        assert_eq!(bench.monitor.handle(bench.now, Event::Ended { call, end }), []);
    };
    let late = Duration::from_secs(11 * 60);
    let mut bench = Bench::new();
    // A volume that is not in use here may be expanded elsewhere.
    bench.all_well(&[attach("v")]);
    grow(&mut bench, true);
    bench.all_well(&[stage("v")]);
    bench.now += late;
    bench.all_well(&[unstage("v"), stage("v")]);
    grow(&mut bench, false);
    bench.now += late;
    bench.all_well(&[unstage("v"), stage("v")]);
    grow(&mut bench, true);
    assert_eq!(bench.call(&expand("v"), Code::INTERNAL), [], "it was tried");
    bench.now += late;
    bench.all_well(&[unstage("v"), stage("v")]);
    grow(&mut bench, true);
    // The pod may end before kubelet knows.
    bench.all_well(&[unstage("v"), stage("v")]);
    grow(&mut bench, true);
    bench.now += late;
    assert_eq!(bench.call(&unstage("v"), Code::OK), [Rule::ExpandOnNode]);
    bench.all_well(&[stage("v"), unstage("v")]);

    bench.learn(
        Method::NodeGetCapabilities,
        &offers(&[csi::node_service_capability::rpc::Type::ExpandVolume]),
    );
    bench.all_well(&[publish_from("v", "", "/t", "")]);
    grow(&mut bench, true);
    bench.now += late;
    assert_eq!(bench.call(&unpublish("v", "/t"), Code::OK), [Rule::ExpandOnNode], "a driver without staging");
    bench.learn(Method::NodeGetCapabilities, &offers(&[]));
    bench.all_well(&[publish_from("v", "", "/t", "")]);
    grow(&mut bench, true);
    bench.now += late;
    bench.all_well(&[unpublish("v", "/t")]);
}

#[test]
fn uid_of_the_pod_is_read_from_a_target() {
    assert_eq!(pod_uid(OF_POD), Some("1c2d"));
    let block = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv-1/1c2d";
    assert_eq!(pod_uid(block), Some("1c2d"));
    for path in ["", "/", "/pods/1c2d", "/pods//volumes/x", "/volumeDevices/publish/pv/", "/a/pods/volumes"] {
        assert_eq!(pod_uid(path), None, "{path}");
    }
}

#[test]
fn failed_setup_may_be_repeated_or_undone() {
    for code in [Code::DEADLINE_EXCEEDED, Code::ABORTED, Code::INTERNAL, Code::INVALID_ARGUMENT] {
        let mut bench = Bench::new();
        bench.all_well(&[attach("v")]);
        assert_eq!(bench.call(&stage("v"), code), []);
        assert_eq!(bench.call(&stage("v"), code), []);
        assert_eq!(bench.call(&unstage("v"), Code::OK), []);
        bench.all_well(&[stage("v")]);
        assert_eq!(bench.call(&publish("v", "/t"), code), []);
        assert_eq!(bench.call(&publish("v", "/t"), code), []);
        bench.all_well(&[unpublish("v", "/t"), unstage("v"), detach("v", NODE), delete("v")]);
    }
}

#[test]
fn final_error_frees_the_arguments() {
    let mut bench = Bench::new();
    let other = stage_with("v", "/stage/v", "other");
    assert_eq!(bench.call(&stage("v"), Code::DEADLINE_EXCEEDED), []);
    assert_eq!(bench.call(&stage("v"), Code::INVALID_ARGUMENT), []);
    assert_eq!(bench.call(&other, Code::DEADLINE_EXCEEDED), []);
    assert_eq!(bench.call(&stage("v"), Code::OK), [Rule::SameArguments]);
}

#[test]
fn unpublish_of_unknown_target_leaves_it_free() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v")]);
    assert_eq!(bench.call(&unpublish("v", "/t"), Code::NOT_FOUND), []);
    bench.all_well(&[
        publish("v", "/t"),
        unpublish("v", "/t"),
        unpublish("v", "/t"),
        unstage("v"),
        unstage("v"),
    ]);
}

#[test]
fn cancelled_call_has_unknown_result() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), publish("v", "/t")]);
    let (call, _) = bench.begin(&unpublish("v", "/t"));
    bench.monitor.handle(bench.now, Event::Ended { call, end: End::Left });
    assert_eq!(bench.call(&publish("v", "/t"), Code::OK), [Rule::FinishTeardown]);
}

#[test]
fn state_before_the_first_call_is_unknown() {
    let mut bench = Bench::with(Limits::default(), InitialState::Unknown);
    bench.all_well(&[publish("v", "/t"), expand("v"), unpublish("v", "/t"), stage("w"), publish("w", "/t")]);
    bench.all_well(&[unpublish("w", "/t"), unstage("w"), detach("w", NODE), delete("w"), publish("x", "/x")]);
    assert_eq!(bench.call(&unstage("x"), Code::OK), [Rule::UnstageWhilePublished], "that was observed");
}

#[test]
fn created_volume_is_fully_known() {
    let mut bench = Bench::with(Limits::default(), InitialState::Unknown);
    let made = |id: &str| {
        let volume = csi::Volume { volume_id: id.to_owned(), ..Default::default() };
        csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec()
    };
    bench.learn(Method::CreateVolume, &made("v"));
    assert_eq!(bench.call(&publish("v", "/t"), Code::INTERNAL), [Rule::StageBeforeUse]);
    bench.all_well(&[stage("v"), publish("v", "/t")]);
    bench.learn(Method::CreateVolume, &made("v"));
    assert_eq!(bench.call(&unstage("v"), Code::OK), [Rule::UnstageWhilePublished], "it is not new again");
    bench.learn(Method::CreateVolume, &made(""));
    bench.learn(Method::CreateVolume, b"no message");
    bench.monitor.assert_consistent();
}

#[test]
fn secrets_are_not_arguments() {
    let with = |secret: &str| {
        let (method, body) = publish("v", "/t");
        let mut request = csi::NodePublishVolumeRequest::decode(&*body).unwrap();
        request.secrets.insert("password".to_owned(), secret.to_owned());
        let tokens = csi_proto::secrets::TOKENS.to_owned();
        request.volume_context.insert(tokens, secret.to_owned());
        (method, request.encode_to_vec())
    };
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), with("canary-1"), with("canary-2")]);
    assert_eq!(bench.call(&unstage("v"), Code::OK), [Rule::UnstageWhilePublished]);
    assert!(!format!("{:?}", bench.monitor).contains("canary"), "a monitor keeps no secret");
}

#[test]
fn evicted_state_is_unknown() {
    let limits = Limits { volumes: 3, bytes: 16 * 1024, open: 2 };
    let mut bench = Bench::with(limits, InitialState::Empty);
    for at in 0..100 {
        let volume = format!("v{at}");
        bench.all_well(&[stage(&volume), publish(&volume, &format!("/t/{at}"))]);
        assert!(bench.monitor.counts().volumes <= 3);
        bench.monitor.assert_consistent();
    }
    assert_eq!(bench.monitor.counts().dropped, 97);
    // It was staged, but that was evicted.
    bench.all_well(&[publish("v0", "/again")]);
    for at in 0..1000 {
        bench.all_well(&[publish("v0", &format!("/t/of/v0/{at}"))]);
    }
    assert!(bench.monitor.counts().dropped > 98, "{:?}", bench.monitor.counts());
    let calls: Vec<_> = ["a", "b", "c"].map(|volume| bench.begin(&stage(volume)).0).into();
    assert_eq!(bench.monitor.counts().open, 2);
    calls.into_iter().for_each(|call| bench.end(call, Code::OK));
    assert_eq!(bench.monitor.counts().open, 0);
}

#[test]
fn long_path_is_not_monitored() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), publish("v", "/t")]);
    bench.all_well(&[publish("v", &"/t".repeat(3000))]);
    assert_eq!(bench.monitor.counts().dropped, 1);
    bench.all_well(&[unstage("v")]);
}

#[test]
fn unused_volume_takes_no_memory() {
    let mut bench = Bench::new();
    bench.all_well(&[stage("v"), publish("v", "/t"), unpublish("v", "/t"), unstage("v")]);
    assert_eq!(bench.monitor.counts().volumes, 0);
    bench.all_well(&[attach("v"), stage("v"), unstage("v"), detach("v", NODE), delete("v")]);
    assert_eq!(bench.monitor.counts(), Counts::default());
}
