//! Tests of the requests' fields.

use std::sync::Arc;

use csi_proto::csi::v1::volume_capability::MountVolume;
use csi_proto::{DriverName, VolumeId};

use super::*;
use crate::driver::{Access, AccessMode, Attach, ConsumerSpec, PodInfo, VolumeSpecBuilder};
use crate::name::{ConsumerId, VolumeKey};

fn builder(access: Access, mode: AccessMode) -> VolumeSpecBuilder {
    let key = VolumeKey { driver: DriverName::new("a").unwrap(), id: VolumeId::new("v").unwrap() };
    VolumeSpec::builder(key, access, mode).volume_context([("pool", "fast")])
}

fn ext4() -> Access {
    Access::Filesystem { fs_type: "ext4".into(), mount_flags: vec!["noatime".into()] }
}

fn facts() -> DriverFacts {
    let mut facts = DriverFacts::new(DriverName::new("a").unwrap());
    facts.node_id = Some("n".into());
    facts.capabilities.node.stage_unstage = true;
    facts.capabilities.controller.publish_unpublish = true;
    facts
}

fn path(path: &str) -> MountPath {
    MountPath::new(path).unwrap()
}

fn consumer() -> ConsumerSpec {
    ConsumerSpec::new(ConsumerId::new("c").unwrap(), path("/t"))
}

fn mount(capability: Option<VolumeCapability>) -> MountVolume {
    capability.unwrap().as_mount().unwrap().clone()
}

#[test]
fn stage_request_has_contexts_path_and_capability() {
    let volume = builder(ext4(), AccessMode::SingleNodeWriter).publish_context([("device", "/dev/sdb")]);
    let volume = volume.build().unwrap();
    let (facts, policy) = (facts(), DriverPolicy::default());
    let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
    let secrets = [("key", "hunter2")].into_iter().collect();
    let request = requests.node_stage(&path("/s"), &secrets);
    assert_eq!((request.volume_id.as_str(), request.staging_target_path.as_str()), ("v", "/s"));
    assert_eq!((&*request.volume_context["pool"], &*request.publish_context["device"]), ("fast", "/dev/sdb"));
    assert_eq!(request.secrets["key"], "hunter2");
    assert_eq!(
        mount(request.volume_capability),
        MountVolume {
            fs_type: "ext4".into(),
            mount_flags: vec!["noatime".into()],
            volume_mount_group: String::new()
        }
    );
}

#[test]
fn access_mode_depends_on_the_receiving_service() {
    let volume = builder(Access::Block, AccessMode::SingleNodeSingleWriter).build().unwrap();
    let policy = DriverPolicy::default();
    for (controller, node) in [(false, true), (true, false)] {
        let mut facts = facts();
        facts.capabilities.controller.single_node_multi_writer = controller;
        facts.capabilities.node.single_node_multi_writer = node;
        let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
        let sent =
            |able| if able { AccessMode::SingleNodeSingleWriter } else { AccessMode::SingleNodeWriter };
        let attach = requests.controller_publish(&SecretValues::default()).unwrap();
        let stage = requests.node_stage(&path("/s"), &SecretValues::default());
        let (attach, stage) = (attach.volume_capability.unwrap(), stage.volume_capability.unwrap());
        assert_eq!((attach.mode(), stage.mode()), (Some(sent(controller)), Some(sent(node))));
        assert!(attach.is_block() && stage.is_block());
    }
}

#[test]
fn volume_mode_or_consumer_makes_a_publish_read_only() {
    let policy = DriverPolicy::default();
    for (mode, of_volume, of_consumer, publish) in [
        (AccessMode::SingleNodeWriter, false, false, false),
        (AccessMode::SingleNodeWriter, true, false, true),
        (AccessMode::SingleNodeWriter, false, true, true),
        (AccessMode::MultiNodeReaderOnly, false, false, true),
    ] {
        let volume = builder(ext4(), mode).read_only(of_volume).build().unwrap();
        for able in [false, true] {
            let mut facts = facts();
            facts.capabilities.controller.publish_read_only = able;
            let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
            let consumer = consumer().read_only(of_consumer);
            let sent = requests.node_publish(&consumer, &path("/s"), None, &SecretValues::default());
            assert_eq!(sent.readonly, publish, "{mode:?} {of_volume} {of_consumer}");
            // A read-only consumer does not make the attachment read-only.
            let attach = requests.controller_publish(&SecretValues::default()).unwrap();
            assert_eq!(attach.readonly, volume.is_read_only() && able);
        }
    }
}

#[test]
fn sends_fs_group_to_capable_drivers_consumer_first() {
    let volume = builder(ext4(), AccessMode::SingleNodeWriter).fs_group(5).build().unwrap();
    let policy = DriverPolicy::default();
    for able in [false, true] {
        let mut facts = facts();
        facts.capabilities.node.volume_mount_group = able;
        let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
        let stage = requests.node_stage(&path("/s"), &SecretValues::default());
        let publish =
            requests.node_publish(&consumer().fs_group(7), &path("/s"), None, &SecretValues::default());
        let sent = (mount(stage.volume_capability), mount(publish.volume_capability));
        let groups = (sent.0.volume_mount_group.as_str(), sent.1.volume_mount_group.as_str());
        assert_eq!(groups, if able { ("5", "7") } else { ("", "") });
    }
}

#[test]
fn selinux_label_becomes_a_quoted_mount_option() {
    let label = "system_u:object_r:container_file_t:s0:c1,c2";
    let volume = builder(ext4(), AccessMode::SingleNodeWriter).selinux_label(label).build().unwrap();
    let facts = facts();
    for selinux_mount in [false, true] {
        let policy = DriverPolicy { selinux_mount, ..Default::default() };
        let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
        let request = requests.node_stage(&path("/s"), &SecretValues::default());
        let expected = format!("context=\"{label}\"");
        let flags = mount(request.volume_capability).mount_flags;
        assert_eq!(flags.contains(&expected), selinux_mount, "{flags:?}");
        let attach = requests.controller_publish(&SecretValues::default()).unwrap();
        assert_eq!(mount(attach.volume_capability).mount_flags, ["noatime"]);
    }
}

#[test]
fn sends_pod_info_with_kubelets_keys_on_request() {
    let pod = PodInfo::new("web-0", "default", "9f0c", "web").unwrap();
    let volume = builder(ext4(), AccessMode::SingleNodeWriter);
    let ephemeral = volume.clone().ephemeral().build().unwrap();
    let volume = volume.build().unwrap();
    let facts = facts();
    let sent = |volume: &VolumeSpec, pod_info_on_mount, consumer: &ConsumerSpec| {
        let policy = DriverPolicy { pod_info_on_mount, ephemeral: true, ..Default::default() };
        let requests = Requests { volume, facts: &facts, policy: &policy };
        requests.node_publish(consumer, &path("/s"), None, &SecretValues::default())
    };
    let of_pod = consumer().pod(pod);
    let context: Vec<_> = sent(&volume, true, &of_pod).volume_context.into_iter().collect();
    let expected = [
        ("csi.storage.k8s.io/ephemeral", "false"),
        ("csi.storage.k8s.io/pod.name", "web-0"),
        ("csi.storage.k8s.io/pod.namespace", "default"),
        ("csi.storage.k8s.io/pod.uid", "9f0c"),
        ("csi.storage.k8s.io/serviceAccount.name", "web"),
        ("pool", "fast"),
    ];
    assert_eq!(context, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(sent(&volume, false, &of_pod).volume_context.len(), 1);
    let inline = sent(&ephemeral, true, &of_pod);
    assert_eq!(inline.volume_context["csi.storage.k8s.io/ephemeral"], "true");
    assert_eq!(inline.staging_target_path, "", "an ephemeral volume is not staged");
    assert_eq!(sent(&volume, true, &consumer()).volume_context.len(), 2, "a consumer that is not a pod");
}

#[test]
fn omits_staging_path_for_drivers_that_do_not_stage() {
    let volume = builder(ext4(), AccessMode::SingleNodeWriter).build().unwrap();
    let policy = DriverPolicy::default();
    for stages in [false, true] {
        let mut facts = facts();
        facts.capabilities.node.stage_unstage = stages;
        let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
        let request = requests.node_publish(&consumer(), &path("/s"), None, &SecretValues::default());
        assert_eq!(request.staging_target_path, if stages { "/s" } else { "" });
        assert_eq!(request.target_path, "/t");
    }
}

#[test]
fn unsupported_operations_have_typed_errors() {
    let facts = facts();
    let policy = DriverPolicy { ephemeral: true, ..Default::default() };
    let other = VolumeKey { driver: DriverName::new("b").unwrap(), id: VolumeId::new("v").unwrap() };
    let other = VolumeSpec::builder(other, ext4(), AccessMode::SingleNodeWriter).build().unwrap();
    let stage = Operation::NodeStage { staging_path: path("/s") };
    let check = |volume: &VolumeSpec, policy: &DriverPolicy, operation: &Operation| {
        Requests { volume, facts: &facts, policy }.check(operation)
    };
    assert!(matches!(check(&other, &policy, &stage), Err(RequestError::Driver { .. })));
    let inline = builder(ext4(), AccessMode::SingleNodeWriter).ephemeral().build().unwrap();
    assert_eq!(check(&inline, &policy, &stage), Err(RequestError::Ephemeral));
    let publish = Operation::NodePublish { consumer: Arc::new(consumer()), staging_path: path("/s") };
    assert_eq!(check(&inline, &policy, &publish), Ok(()));
    let rejected = check(&inline, &DriverPolicy::default(), &publish);
    assert!(matches!(rejected, Err(RequestError::LifecycleMode { mode: "Ephemeral" })), "{rejected:?}");
}

#[test]
fn attach_and_detach_need_a_node_id() {
    let volume = builder(ext4(), AccessMode::SingleNodeWriter).attach(Attach::Here).build().unwrap();
    let policy = DriverPolicy::default();
    let mut facts = facts();
    facts.node_id = None;
    let requests = Requests { volume: &volume, facts: &facts, policy: &policy };
    let none = SecretValues::default();
    assert_eq!(requests.controller_publish(&none), Err(RequestError::NoNodeId));
    assert_eq!(requests.controller_unpublish(None, &none), Err(RequestError::NoNodeId));
    let old = "old".to_owned();
    assert_eq!(requests.controller_unpublish(Some(&old), &none).unwrap().node_id, "old");
}
