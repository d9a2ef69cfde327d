mod walk;

use std::collections::BTreeSet;

use csi_proto::VolumeId;
use volume_manager::advanced::message::{MAX_POLICIES, Request};
use volume_manager::driver::{Access, AccessMode, FsGroupPolicy, TokenRequest};

use super::super::in_use::unique_volume_name;
use super::*;
use edge_csi_common::kubernetes::message::object::Kind;
use edge_csi_common::kubernetes::message::{
    self as kube, Attachment, Claim, Driver, InlineVolume, NodeStatus, Object, PersistentVolume, Pod,
    PodVolume, SecretName, Update,
};

pub(super) const DRIVER: &str = "hostpath.csi.edge";

pub(super) fn metadata(kinds: impl IntoIterator<Item = Kind>) -> Metadata {
    let changed = kinds.into_iter().map(|kind| Object { object: Some(kind) }).collect();
    let update =
        Update { source: 1, revision: 1, snapshot: true, complete: true, changed, ..Update::default() };
    Metadata::default().after(update).unwrap()
}

pub(super) fn of_claim(name: &str, claim: &str) -> PodVolume {
    PodVolume { name: name.into(), claim: claim.into(), ..PodVolume::default() }
}

pub(super) fn pod(name: &str, volumes: impl IntoIterator<Item = PodVolume>) -> Pod {
    Pod {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("uid-{name}"),
        service_account: "default".into(),
        volumes: volumes.into_iter().collect(),
        ..Pod::default()
    }
}

pub(super) fn claim(name: &str, volume: &str) -> Claim {
    Claim {
        namespace: "ns".into(),
        name: name.into(),
        uid: format!("claim-{name}"),
        volume: volume.into(),
        expand_to: 0,
    }
}

pub(super) fn persistent_volume(name: &str, handle: &str, claim: &str) -> PersistentVolume {
    PersistentVolume {
        name: name.into(),
        driver: DRIVER.into(),
        volume_handle: handle.into(),
        claim_uid: format!("claim-{claim}"),
        access_modes: vec!["ReadWriteOnce".into()],
        ..PersistentVolume::default()
    }
}

pub(super) fn driver(attach_required: bool) -> Driver {
    let lifecycle_modes = vec!["Persistent".into(), "Ephemeral".into()];
    Driver { name: DRIVER.into(), attach_required, lifecycle_modes, ..Driver::default() }
}

pub(super) fn attachment(volume: &str, attached: bool) -> Attachment {
    Attachment {
        name: format!("va-{volume}"),
        attacher: DRIVER.into(),
        volume: volume.into(),
        attached,
        metadata: [("device".to_owned(), "/dev/x".to_owned())].into(),
    }
}

pub(super) fn key(handle: &str) -> VolumeKey {
    VolumeKey { driver: DriverName::new(DRIVER).unwrap(), id: VolumeId::new(handle).unwrap() }
}

pub(super) fn directory() -> KubeletDirectory {
    KubeletDirectory::new("/var/lib/kubelet")
}

/// The Node's status contains these volumes as in use.
pub(super) fn in_use<'a>(handles: impl IntoIterator<Item = &'a str>) -> InUse {
    let mut in_use = InUse::default();
    let volumes_in_use = handles.into_iter().map(|handle| unique_volume_name(&key(handle))).collect();
    let number = in_use.report(&NodeStatus { volumes_in_use, ..NodeStatus::default() });
    in_use.confirm_written(number);
    in_use
}

pub(super) fn planned(kinds: impl IntoIterator<Item = Kind>, before: &DesiredSet, mounted: &[&str]) -> Plan {
    planned_in_use(kinds, before, mounted, &in_use(["h1"]))
}

fn planned_in_use(
    kinds: impl IntoIterator<Item = Kind>,
    before: &DesiredSet,
    mounted: &[&str],
    in_use: &InUse,
) -> Plan {
    let mounted: BTreeSet<_> = mounted.iter().map(|handle| key(handle)).collect();
    let metadata = metadata(kinds);
    plan(PlanInput { metadata: &metadata, before, mounted: &mounted, in_use }, &directory())
}

fn nothing() -> DesiredSet {
    DesiredSet::new(1, Vec::new())
}

/// A pod with one volume of a claim, and what belongs to it.
fn one(volume: PersistentVolume) -> Vec<Kind> {
    let claim = claim("data", &volume.name);
    vec![
        Kind::Pod(pod("a", [of_claim("v", "data")])),
        Kind::Claim(claim),
        Kind::PersistentVolume(volume),
        Kind::Driver(driver(false)),
    ]
}

fn plain() -> PersistentVolume {
    persistent_volume("pv-1", "h1", "data")
}

#[test]
fn paths_and_access_modes_are_those_of_kubelet() {
    let mode = |mode: &str| PersistentVolume { access_modes: vec![mode.into()], ..plain() };
    let mount = "/var/lib/kubelet/pods/uid-a/volumes/kubernetes.io~csi/pv-1/mount";
    let device = "/var/lib/kubelet/pods/uid-a/volumeDevices/kubernetes.io~csi/pv-1";
    let filesystem = Access::filesystem();
    let ext4 = Access::Filesystem { fs_type: "ext4".into(), mount_flags: vec!["noatime".into()] };
    for (volume, access, expected, read_only, place) in [
        (plain(), &filesystem, AccessMode::SingleNodeWriter, false, mount),
        (mode("ReadWriteOncePod"), &filesystem, AccessMode::SingleNodeSingleWriter, false, mount),
        (mode("ReadOnlyMany"), &filesystem, AccessMode::MultiNodeReaderOnly, true, mount),
        (mode("ReadWriteMany"), &filesystem, AccessMode::MultiNodeMultiWriter, false, mount),
        (
            PersistentVolume { access_modes: vec![], ..plain() },
            &filesystem,
            AccessMode::SingleNodeWriter,
            false,
            mount,
        ),
        (
            PersistentVolume { read_only: true, ..plain() },
            &filesystem,
            AccessMode::SingleNodeWriter,
            true,
            mount,
        ),
        (
            PersistentVolume { fs_type: "ext4".into(), mount_options: vec!["noatime".into()], ..plain() },
            &ext4,
            AccessMode::SingleNodeWriter,
            false,
            mount,
        ),
        (
            PersistentVolume { block: true, mount_options: vec!["noatime".into()], ..plain() },
            &Access::Block,
            AccessMode::SingleNodeWriter,
            false,
            device,
        ),
    ] {
        let found = planned(one(volume.clone()), &nothing(), &[]);
        let [wanted] = &found.set.volumes[..] else { panic!("{volume:?}: {found:?}") };
        assert_eq!(wanted.spec.key(), &key("h1"));
        assert_eq!((wanted.spec.access(), wanted.spec.mode()), (access, expected), "{volume:?}");
        assert_eq!(wanted.spec.is_read_only(), read_only, "{volume:?}");
        assert_eq!(wanted.spec.attach(), Attach::NotRequired);
        let [consumer] = &wanted.consumers[..] else { panic!("{wanted:?}") };
        assert_eq!((consumer.id().as_str(), consumer.target_path().as_str()), ("uid-a/v", place));
        let info = consumer.pod_info().unwrap();
        assert_eq!(
            (info.name(), info.namespace(), info.uid(), info.service_account()),
            ("a", "ns", "uid-a", "default")
        );
        assert_eq!(Request::decode(&found.set.encode()), Ok(Request::Desired(found.set)));
    }
}

#[test]
fn uses_the_widest_access_mode() {
    use AccessMode::*;
    for (modes, expected, once) in [
        (&["ReadWriteOnce", "ReadWriteMany"][..], MultiNodeMultiWriter, true),
        (&["ReadOnlyMany", "ReadWriteMany"], MultiNodeMultiWriter, false),
        (&["ReadOnlyMany", "ReadWriteOnce"], SingleNodeWriter, true),
        (&["ReadOnlyMany"], MultiNodeReaderOnly, false),
        (&["ReadWriteOncePod"], SingleNodeSingleWriter, true),
    ] {
        for order in [modes.to_vec(), modes.iter().copied().rev().collect()] {
            let access_modes = order.iter().map(|mode| (*mode).to_owned()).collect();
            let found = planned(one(PersistentVolume { access_modes, ..plain() }), &nothing(), &[]);
            let spec = &found.set.volumes[0].spec;
            assert_eq!((spec.mode(), found.pod_volumes[0].read_write_once), (expected, once), "{order:?}");
            assert_eq!(spec.is_read_only(), expected == MultiNodeReaderOnly, "{order:?}");
        }
    }
}

#[test]
fn inline_volume_has_kubelets_handle_and_its_pods_lifetime() {
    let inline = InlineVolume {
        driver: DRIVER.into(),
        fs_type: "xfs".into(),
        volume_attributes: [("size".to_owned(), "1Gi".to_owned())].into(),
        node_publish_secret: Some(SecretName { namespace: "ns".into(), name: "s".into() }),
    };
    let volume =
        PodVolume { name: "scratch".into(), inline: Some(inline), read_only: true, ..PodVolume::default() };
    let found = planned([Kind::Pod(pod("a", [volume])), Kind::Driver(driver(true))], &nothing(), &[]);
    let [wanted] = &found.set.volumes[..] else { panic!("{found:?}") };
    assert!(wanted.spec.is_ephemeral() && wanted.spec.volume_context()["size"] == "1Gi");
    assert_eq!(wanted.spec.key().id, super::super::layout::inline_volume_id("uid-a", "scratch").unwrap());
    assert_eq!(wanted.spec.secrets().node_publish.as_ref().unwrap().to_string(), "ns/s");
    let consumer = &wanted.consumers[0];
    assert!(consumer.is_read_only());
    let place = "/var/lib/kubelet/pods/uid-a/volumes/kubernetes.io~csi/scratch/mount";
    assert_eq!(consumer.target_path().as_str(), place);
    assert!(found.set.policies[&DriverName::new(DRIVER).unwrap()].ephemeral);
}

#[test]
fn pods_of_one_claim_share_a_volume_until_they_end() {
    let mut kinds = one(plain());
    let read_only = PodVolume { read_only: true, ..of_claim("w", "data") };
    let second = Pod { deleting: true, fs_group: Some(5), ..pod("b", [read_only]) };
    kinds.push(Kind::Pod(second));
    kinds.push(Kind::Pod(Pod { ended: true, ..pod("c", [of_claim("v", "data")]) }));
    let found = planned(kinds, &nothing(), &[]);
    let [wanted] = &found.set.volumes[..] else { panic!("{found:?}") };
    let consumers: Vec<_> = wanted
        .consumers
        .iter()
        .map(|consumer| (consumer.id().as_str(), consumer.is_read_only(), consumer.own_fs_group()))
        .collect();
    assert_eq!(consumers, [("uid-a/v", false, None), ("uid-b/w", true, Some(5))]);
    assert_eq!(found.pod_volumes.len(), 2);
}

#[test]
fn keeps_the_group_of_the_first_pod() {
    let group = |name: &str, group| Kind::Pod(Pod { fs_group: group, ..pod(name, [of_claim("v", "data")]) });
    let mut kinds = one(plain());
    kinds[0] = group("a", Some(5));
    let first = planned(kinds.clone(), &nothing(), &[]).set;
    assert_eq!(first.volumes[0].spec.fs_group(), Some(5));
    kinds[0] = group("b", Some(7));
    let second = planned(kinds.clone(), &first, &["h1"]).set;
    assert_eq!(second.volumes[0].spec.fs_group(), Some(5));
    assert_eq!(second.volumes[0].consumers[0].own_fs_group(), Some(7));
    kinds[2] = Kind::PersistentVolume(PersistentVolume { block: true, ..plain() });
    let block = planned(kinds, &nothing(), &[]).set;
    assert_eq!(
        (block.volumes[0].spec.fs_group(), block.volumes[0].consumers[0].own_fs_group()),
        (None, None)
    );
}

#[test]
fn keeps_the_access_mode_while_mounted_or_used() {
    let with = |name: &str, modes: &[&str]| {
        let access_modes = modes.iter().map(|mode| (*mode).to_owned()).collect();
        let mut kinds = one(PersistentVolume { access_modes, fs_type: "ext4".into(), ..plain() });
        kinds[0] = Kind::Pod(pod(name, [of_claim("v", "data")]));
        kinds
    };
    let mode = |plan: &Plan| (plan.set.volumes[0].spec.mode(), plan.set.volumes[0].spec.is_read_only());
    let (reader, writer) =
        ((AccessMode::MultiNodeReaderOnly, true), (AccessMode::MultiNodeMultiWriter, false));
    let both = ["ReadOnlyMany", "ReadWriteMany"];
    for (old, old_mode, new, new_mode) in
        [(&both[..1], reader, &both[..], writer), (&both[..], writer, &both[..1], reader)]
    {
        let before = planned(with("a", old), &nothing(), &[]).set;
        assert_eq!(planned(with("a", new), &before, &["h1"]).set, before);
        assert_eq!(planned(with("a", new), &before, &[]).set, before);
        assert_eq!(mode(&planned(with("b", new), &before, &["h1"])), old_mode);
        assert_eq!(mode(&planned(with("b", new), &before, &[])), new_mode);
        assert_eq!(mode(&planned(with("a", new), &nothing(), &["h1"])), new_mode);
    }
}

#[test]
fn volume_under_two_names_is_published_once() {
    let mut kinds = one(plain());
    kinds[0] = Kind::Pod(pod("a", [of_claim("v", "data"), of_claim("w", "data")]));
    let found = planned(kinds.clone(), &nothing(), &[]);
    assert_eq!(found.set.volumes[0].consumers.len(), 1);
    let places: BTreeSet<_> =
        found.pod_volumes.iter().map(|volume| format!("{:?}", volume.assignment)).collect();
    assert_eq!((found.pod_volumes.len(), places.len()), (2, 1));
    let inline = InlineVolume { driver: DRIVER.into(), ..InlineVolume::default() };
    let same = PodVolume { name: "pv-1".into(), inline: Some(inline), ..PodVolume::default() };
    kinds[0] = Kind::Pod(pod("a", [of_claim("v", "data"), same]));
    let found = planned(kinds, &nothing(), &[]);
    assert_eq!(found.set.volumes.len(), 1);
    assert!(
        matches!(&found.pod_volumes[1].assignment, Assignment::Unassigned(why) if why.contains("same path"))
    );
}

#[test]
fn what_cannot_be_found_yet_says_what_it_waits_for() {
    let other = PersistentVolume { claim_uid: "other".into(), ..plain() };
    let spelt = PersistentVolume { driver: "-".into(), ..plain() };
    let mode = PersistentVolume { access_modes: vec!["ReadWriteMany".into(), "Sometimes".into()], ..plain() };
    let secret = SecretName { namespace: "ns".into(), name: String::new() };
    let secret = PersistentVolume { node_stage_secret: Some(secret), ..plain() };
    let astray = PersistentVolume { name: "../../etc".into(), ..plain() };
    let mut unbound = one(plain());
    unbound[1] = Kind::Claim(claim("data", ""));
    for (kinds, expected) in [
        (one(plain())[..1].to_vec(), "claim data is not known"),
        (unbound, "claim data is not bound"),
        (one(plain())[..2].to_vec(), "PersistentVolume pv-1 is not known"),
        (one(other), "bound to claim UID other"),
        (one(spelt), "invalid driver"),
        (one(mode), "access mode \"Sometimes\""),
        (one(secret), "invalid secret"),
        (one(astray), "expected the name of one directory"),
    ] {
        let found = planned(kinds, &nothing(), &[]);
        assert_eq!(found.set.volumes, []);
        let Assignment::Unassigned(why) = &found.pod_volumes[0].assignment else { panic!("{found:?}") };
        assert!(why.contains(expected), "{expected}: {why}");
        assert_eq!(found.unknown, [ConsumerId::new("uid-a/v").unwrap()]);
    }
}

#[test]
fn keeps_mounts_while_objects_are_missing() {
    let before = planned(one(plain()), &nothing(), &[]).set;
    for kept in 1..4 {
        let after = planned(one(plain())[..kept].to_vec(), &before, &["h1"]);
        assert_eq!(after.set, before, "{kept}");
        assert_eq!(after.unknown, []);
        if kept < 3 {
            let Assignment::Assigned { missing: Some(why), .. } = &after.pod_volumes[0].assignment else {
                panic!("{kept}")
            };
            assert!(why.contains("not known"), "{why}");
        }
    }
    let removed = planned(one(plain())[1..].to_vec(), &before, &["h1"]).set;
    assert_eq!(removed.volumes, []);
    let ended = Kind::Pod(Pod { ended: true, ..pod("a", [of_claim("v", "data")]) });
    assert_eq!(planned([ended], &before, &["h1"]).set.volumes, []);
}

#[test]
fn follows_the_attachment_and_stays_attached_while_mounted() {
    let with = |extra: Option<Attachment>| {
        let mut kinds = one(plain());
        kinds[3] = Kind::Driver(driver(true));
        kinds.extend(extra.map(Kind::Attachment));
        kinds
    };
    let waits = planned(with(None), &nothing(), &[]).set;
    assert_eq!((waits.volumes[0].spec.attach(), waits.attached.len()), (Attach::Awaited, 0));
    assert_eq!(planned(with(Some(attachment("pv-1", false))), &waits, &[]).set, waits);
    let other = Attachment { attacher: "other".into(), ..attachment("pv-1", true) };
    for another in [other, attachment("pv-2", true)] {
        assert_eq!(planned(with(Some(another)), &waits, &[]).set, waits);
    }
    let attached = planned(with(Some(attachment("pv-1", true))), &waits, &[]).set;
    assert!(attached.attached.contains(&key("h1")));
    assert_eq!(attached.volumes[0].spec.publish_context()["device"], "/dev/x");
    // It goes: what is mounted stays, what is not waits for another one.
    for going in [None, Some(attachment("pv-1", false))] {
        assert_eq!(planned(with(going.clone()), &attached, &["h1"]).set, attached);
        assert_eq!(planned(with(going), &attached, &[]).set, waits);
    }
    // The same if the driver's object changes to attachRequired: false, or is deleted, meanwhile.
    let mut other = with(None);
    other[3] = Kind::Driver(driver(false));
    let changed = planned(other, &attached, &["h1"]).set;
    assert_eq!((&changed.volumes, &changed.attached), (&attached.volumes, &attached.attached));
    assert_eq!(planned(with(None)[..3].to_vec(), &attached, &["h1"]).set, attached);
}

#[test]
fn driver_without_an_object_requires_attachments() {
    let found = planned(one(plain())[..3].to_vec(), &nothing(), &[]).set;
    assert_eq!(found.volumes[0].spec.attach(), Attach::Awaited);
    let name = DriverName::new(DRIVER).unwrap();
    assert_eq!(found.policies[&name], DriverPolicy::default());
    let mut kinds = one(plain());
    kinds[3] = Kind::Driver(Driver {
        pod_info_on_mount: true,
        fs_group_policy: "File".into(),
        requires_republish: true,
        token_requests: vec![kube::TokenRequest { audience: "vault".into(), expiration_seconds: Some(600) }],
        token_in_secrets: true,
        lifecycle_modes: vec!["Ephemeral".into()],
        ..driver(false)
    });
    let policy = planned(kinds, &nothing(), &[]).set.policies.remove(&name).unwrap();
    assert!(!policy.attach_required && policy.pod_info_on_mount && policy.requires_republish);
    assert!(policy.ephemeral && !policy.persistent && policy.token_in_secrets);
    assert_eq!(policy.fs_group_policy, FsGroupPolicy::File);
    let request = TokenRequest { audience: "vault".into(), expiration_seconds: Some(600) };
    assert_eq!(policy.token_requests, [request]);
}

#[test]
fn includes_policies_with_used_drivers_first() {
    let named = |number: usize| Kind::Driver(Driver { name: format!("a{number}.csi"), ..driver(false) });
    let mut kinds: Vec<_> = (0..2 * MAX_POLICIES).map(named).collect();
    let before = planned(kinds.clone(), &nothing(), &[]).set;
    assert_eq!((before.volumes.len(), before.policies.len()), (0, MAX_POLICIES));
    kinds.extend(one(plain()));
    let after = planned(kinds, &before, &[]).set;
    assert_eq!(after.policies.len(), MAX_POLICIES);
    assert!(!after.policies[&DriverName::new(DRIVER).unwrap()].attach_required);
}

#[test]
fn one_expansion_for_a_claim_of_many_pods() {
    let mut kinds = one(plain());
    kinds[1] = Kind::Claim(Claim { expand_to: 7 << 30, ..claim("data", "pv-1") });
    kinds.push(Kind::Pod(pod("b", [of_claim("v", "data")])));
    let found = planned(kinds, &nothing(), &[]);
    let [expansion] = &found.expansions[..] else { panic!("{found:?}") };
    assert_eq!(
        (&expansion.key, expansion.bytes, expansion.uid.as_str()),
        (&key("h1"), 7 << 30, "claim-data")
    );
}

#[test]
fn first_volume_keeps_a_duplicate_handle() {
    let second = |attributes: &str| PersistentVolume {
        volume_attributes: [("share".to_owned(), attributes.to_owned())].into(),
        ..persistent_volume("pv-2", "h1", "other")
    };
    let mut kinds = vec![
        Kind::Pod(pod("b", [of_claim("v", "other")])),
        Kind::Claim(claim("other", "pv-2")),
        Kind::PersistentVolume(second("x")),
    ];
    kinds.push(Kind::Driver(driver(false)));
    let before = planned(kinds.clone(), &nothing(), &[]).set;
    kinds.extend(one(plain()));
    let after = planned(kinds, &before, &["h1"]).set;
    let [wanted] = &after.volumes[..] else { panic!("{after:?}") };
    assert_eq!((wanted.spec.volume_context()["share"].as_str(), wanted.consumers.len()), ("x", 2));
    assert!(wanted.consumers[0].target_path().as_str().contains("/pv-1/"));
}

#[test]
fn existing_consumers_stay_when_the_set_is_full() {
    let mut kinds = one(plain());
    let named = |number: usize| pod(&format!("p{number:03}"), [of_claim("v", "data")]);
    kinds.extend((0..MAX_CONSUMERS).map(|number| Kind::Pod(named(number))));
    // "a" is first in order, and is the one that came last.
    let without: Vec<_> = kinds[1..].to_vec();
    let before = planned(without, &nothing(), &[]).set;
    assert_eq!(before.volumes[0].consumers.len(), MAX_CONSUMERS);
    let after = planned(kinds, &before, &["h1"]);
    assert_eq!(after.set, before);
    assert!(
        matches!(&after.pod_volumes[0].assignment, Assignment::Unassigned(why) if why.contains("which is the maximum"))
    );
}

#[test]
fn waits_for_volumes_in_use_unless_known_before() {
    let mut kinds = one(plain());
    kinds[3] = Kind::Driver(driver(true));
    kinds.push(Kind::Attachment(attachment("pv-1", true)));
    let nothing_reported = InUse::default();
    let waits = planned_in_use(kinds.clone(), &nothing(), &[], &nothing_reported);
    assert_eq!((&waits.unmarked, &waits.set.attached), (&[key("h1")].into(), &BTreeSet::new()));
    assert!(
        waits.set.volumes[0].spec.publish_context().is_empty() && waits.set.volumes[0].consumers.len() == 1
    );
    // Written: it is mounted. From then on, and after a reboot without the hub, the set says so.
    let marked = planned_in_use(kinds.clone(), &waits.set, &[], &in_use(["h1"]));
    assert_eq!((marked.unmarked.len(), &marked.set.attached), (0, &[key("h1")].into()));
    let rebooted = planned_in_use(kinds.clone(), &marked.set, &[], &nothing_reported);
    assert_eq!((rebooted.unmarked.len(), &rebooted.set), (0, &marked.set));
    // What is mounted was in use before, whatever became of the set.
    let lost = planned_in_use(kinds.clone(), &nothing(), &["h1"], &nothing_reported);
    assert_eq!((lost.unmarked.len(), &lost.set.attached), (0, &[key("h1")].into()));
    // A driver without attachments does not wait.
    kinds[3] = Kind::Driver(driver(false));
    let plain = planned_in_use(kinds, &nothing(), &[], &nothing_reported);
    assert_eq!((plain.unmarked.len(), plain.set.volumes[0].spec.attach()), (0, Attach::NotRequired));
}
