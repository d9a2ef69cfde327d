//! Messages, valid and hostile.

use std::sync::Arc;

use csi_proto::fields::fields;
use csi_proto::{DriverName, VolumeId};
use proptest::prelude::*;
use prost::Message;

use super::*;
use crate::driver::{
    Access, AccessMode, Attach, ConsumerSpec, DriverPolicy, FsGroupPolicy, MountPath, PodInfo,
    SecretReference, SecretReferences, TokenRequest, VolumeSpec,
};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::DesiredVolume;

fn key(id: &str) -> VolumeKey {
    VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new(id).unwrap() }
}

fn consumer(id: &str) -> ConsumerSpec {
    ConsumerSpec::new(ConsumerId::new(id).unwrap(), MountPath::new(format!("/pods/{id}")).unwrap())
}

/// A set in which every field of every message is set.
fn full() -> DesiredSet {
    let secret = |name: &str| Some(SecretReference::new("default", name).unwrap());
    let secrets = SecretReferences {
        controller_publish: secret("a"),
        node_stage: secret("b"),
        node_publish: secret("c"),
        controller_expand: secret("d"),
        node_expand: secret("e"),
    };
    let access = Access::Filesystem { fs_type: "ext4".into(), mount_flags: vec!["noatime".into()] };
    let filesystem = VolumeSpec::builder(key("v1"), access, AccessMode::SingleNodeMultiWriter)
        .read_only(true)
        .attach(Attach::Awaited)
        .volume_context([("pool", "fast")])
        .publish_context([("device", "/dev/sdb")])
        .secrets(secrets)
        .fs_group(0)
        .selinux_label("system_u:object_r:container_file_t:s0")
        .build()
        .unwrap();
    let pod = PodInfo::new("web-0", "default", "9f0c", "web").unwrap();
    let reader = consumer("one").read_only(true).fs_group(7).pod(pod);
    let block = VolumeSpec::builder(key("v2"), Access::Block, AccessMode::SingleNodeWriter)
        .attach(Attach::NotRequired)
        .build()
        .unwrap();
    let inline = VolumeSpec::builder(key("v3"), Access::filesystem(), AccessMode::SingleNodeWriter)
        .ephemeral()
        .build()
        .unwrap();
    let volumes =
        [(filesystem, vec![reader, consumer("two")]), (block, vec![]), (inline, vec![consumer("three")])];
    let mut set = DesiredSet::new(
        7,
        volumes
            .map(|(spec, consumers)| DesiredVolume {
                spec: Arc::new(spec),
                consumers: consumers.into_iter().map(Arc::new).collect(),
            })
            .to_vec(),
    );
    set.attached.insert(key("v1"));
    let policy = DriverPolicy {
        attach_required: false,
        pod_info_on_mount: true,
        persistent: false,
        ephemeral: true,
        fs_group_policy: FsGroupPolicy::None,
        requires_republish: true,
        selinux_mount: true,
        token_requests: vec![TokenRequest { audience: "vault".into(), expiration_seconds: Some(600) }],
        token_in_secrets: true,
    };
    set.policies.insert(key("v").driver, policy);
    set.policies.insert(DriverName::new("plain").unwrap(), DriverPolicy::default());
    set
}

fn rejected(desired: wire::DesiredVolumes) -> InvalidMessage {
    let request = wire::Request { request: Some(wire::request::Request::Desired(desired)) };
    Request::decode(&request.encode_to_vec()).unwrap_err()
}

fn wired(set: &DesiredSet) -> wire::DesiredVolumes {
    match wire::Request::decode(&set.encode()[..]).unwrap().request {
        Some(wire::request::Request::Desired(desired)) => desired,
        other => panic!("{other:?}"),
    }
}

#[test]
fn sets_survive_a_round_trip() {
    let set = full();
    assert_eq!(Request::decode(&set.encode()), Ok(Request::Desired(set)));
    assert_eq!(Request::decode(&query()), Ok(Request::Query));
    let empty = DesiredSet::new(1, vec![]);
    assert_eq!(Request::decode(&empty.encode()), Ok(Request::Desired(empty)));
}

/// The bytes are exchanged between versions, so a change of the schema or of the code must not change them.
#[test]
fn encoding_of_a_set_is_stable() {
    let bytes = full().encode();
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (387, 1_655_193_938));
}

#[test]
fn sizes_of_the_parts_bound_the_size_of_the_set() {
    let set = full();
    let parts = set.volumes.iter().map(|volume| {
        let consumers = volume.consumers.iter().map(|consumer| consumer_bytes(consumer));
        volume_bytes(&volume.spec) + consumers.sum::<usize>()
    });
    let policies = set.policies.iter().map(|(driver, policy)| policy_bytes(driver, policy));
    let (sum, found) = (parts.chain(policies).sum::<usize>(), set.encode().len());
    assert!((found..2 * found).contains(&sum), "{sum}, {found}");
}

#[test]
fn absent_policies_have_the_defaults_of_kubernetes() {
    let set = DesiredSet::new(1, vec![]);
    assert_eq!(set.policy(&key("v").driver), DriverPolicy::default());
    let drivers = vec![wire::DriverPolicy { driver: "d.example".into(), ..Default::default() }];
    let desired = wire::DesiredVolumes { revision: 1, volumes: vec![], drivers };
    let request = wire::Request { request: Some(wire::request::Request::Desired(desired)) };
    let Ok(Request::Desired(read)) = Request::decode(&request.encode_to_vec()) else { panic!() };
    assert_eq!(read.policies[&key("v").driver], DriverPolicy::default());
}

#[test]
fn one_invalid_volume_rejects_the_set_with_its_field() {
    type Corrupt = fn(&mut wire::DesiredVolume);
    let cases: [(&str, Corrupt); 12] = [
        ("driver is not valid: the driver name is empty", |volume| volume.driver.clear()),
        ("volume_id", |volume| volume.volume_id.clear()),
        ("expected filesystem or block", |volume| volume.access = None),
        ("unknown value 8 of access_mode", |volume| volume.access_mode = 8),
        ("UNKNOWN", |volume| volume.access_mode = 0),
        ("unknown value -1 of attach", |volume| volume.attach = -1),
        ("attached is set", |volume| {
            volume.attach = 0;
            volume.publish_context.clear();
        }),
        ("volume_context has 65537 bytes; at most 65536", |volume| {
            volume.volume_context = [("k".to_owned(), "v".repeat(65_536))].into();
        }),
        ("secrets.node_stage is not valid: the secret has no name", |volume| {
            volume.secrets = Some(wire::SecretReferences {
                node_stage: Some(wire::SecretReference::default()),
                ..Default::default()
            });
        }),
        ("consumers[1].id one is a duplicate", |volume| volume.consumers[1].id = "one".into()),
        ("consumers[0] is not valid: target_path is not valid: the path \"x\" is not absolute", |volume| {
            volume.consumers[0].target_path = "x".into();
        }),
        ("consumers has 257 elements; at most 256", |volume| {
            volume.consumers = vec![wire::Consumer::default(); 257];
        }),
    ];
    for (expected, corrupt) in cases {
        let mut desired = wired(&full());
        corrupt(&mut desired.volumes[0]);
        let error = rejected(desired);
        assert!(matches!(error, InvalidMessage::Volume { index: 0, .. }), "{error:?}");
        let text = crate::excerpt::chain(&error);
        assert!(text.starts_with("volumes[0] (") && text.contains(expected), "{expected}: {text}");
    }
}

#[test]
fn rejects_missing_revisions_and_duplicates() {
    let desired = wired(&full());
    assert_eq!(rejected(wire::DesiredVolumes { revision: 0, ..desired.clone() }), InvalidMessage::NoRevision);
    let mut twice = desired.clone();
    twice.volumes.push(twice.volumes[1].clone());
    assert_eq!(rejected(twice), InvalidMessage::VolumeTwice { key: key("v2") });
    let mut twice = desired.clone();
    twice.drivers.push(twice.drivers[0].clone());
    let source = InvalidDesired::DriverTwice { name: "d.example".into() };
    assert_eq!(rejected(twice), InvalidMessage::Driver { index: 2, source });
    let drivers = vec![wire::DriverPolicy::default(); MAX_POLICIES + 1];
    let (field, found, bound) = ("drivers", MAX_POLICIES + 1, MAX_POLICIES);
    assert_eq!(
        rejected(wire::DesiredVolumes { drivers, ..desired }),
        InvalidMessage::TooMany { field, found, bound }
    );
}

#[test]
fn counts_list_elements_before_decoding_them() {
    // Two bytes each: a list of two million would be a gigabyte once decoded.
    let body: Vec<u8> = [0x12, 0x00].repeat(MAX_VOLUMES + 1);
    let mut request = vec![0x0a];
    prost::encode_length_delimiter(body.len(), &mut request).unwrap();
    request.extend(body);
    let (field, found, bound) = ("volumes", MAX_VOLUMES + 1, MAX_VOLUMES);
    assert_eq!(Request::decode(&request), Err(InvalidMessage::TooMany { field, found, bound }));
    let (found, bound) = (MAX_REQUEST_BYTES + 1, MAX_REQUEST_BYTES);
    assert_eq!(Request::decode(&vec![0; found]), Err(InvalidMessage::TooLarge { found, bound }));
}

#[test]
fn ignores_unknown_fields_but_requires_one_request() {
    assert_eq!(Request::decode(&[]), Err(InvalidMessage::NoRequest));
    assert_eq!(Request::decode(&[0x1a, 0x00]), Err(InvalidMessage::NoRequest));
    let mut request = query();
    request.extend([0x1a, 0x01, 0x07]);
    assert_eq!(Request::decode(&request), Ok(Request::Query));
    assert_eq!(Request::decode(&[query(), query()].concat()), Err(InvalidMessage::SeveralRequests));
}

/// The schema repeats the access modes of csi.v1, so that a reader needs no other schema.
#[test]
fn access_modes_match_those_of_csi() {
    let schema =
        (0..).map_while(|number| wire::AccessMode::try_from(number).ok()).map(|mode| mode.as_str_name());
    let csi = (0..).map_while(|number| AccessMode::try_from(number).ok()).map(|mode| mode.as_str_name());
    assert_eq!(schema.collect::<Vec<_>>(), csi.collect::<Vec<_>>());
}

#[test]
fn debug_output_omits_mount_flags() {
    let printed = format!("{:?} {:?}", wired(&full()), full());
    assert!(!printed.contains("noatime") && printed.contains("ext4"), "{printed}");
}

#[test]
fn splits_reports_in_order() {
    let report = |at: usize| VolumeReport {
        volume_id: format!("{at:04}"),
        explanation: "x".repeat(4096),
        ..Default::default()
    };
    let all: Vec<_> = (0..200).map(report).collect();
    let lost = Quarantined { record: "r".into(), reason: "bad".into() };
    let reports =
        VolumeReports { revision: 3, volumes: all.clone(), refused: vec![], quarantined: vec![lost] };
    let mut seen = Vec::new();
    let parts = reports.parts();
    assert_eq!(parts.len(), 4);
    for (at, part) in parts.iter().enumerate() {
        let read = Answer::read(&part.encode_to_vec()).unwrap();
        let Some(answer::Kind::Reports(reports)) = read.answer else { panic!("{read:?}") };
        assert_eq!((reports.revision, reports.quarantined.len()), (3, usize::from(at == 0)));
        assert!(reports.encoded_len() < 300 << 10);
        seen.extend(reports.volumes);
    }
    assert_eq!(seen, all);
    assert_eq!(VolumeReports::default().parts().len(), 1);
}

proptest! {
    #[test]
    fn decodes_any_bytes_without_panic_and_round_trips(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
        change in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let _ = Request::decode(&bytes);
        bytes = full().encode();
        let index = at.index(bytes.len());
        bytes[index] = change;
        bytes.truncate(cut.index(bytes.len() + 1).max(bytes.len() / 2));
        if let Ok(Request::Desired(set)) = Request::decode(&bytes) {
            prop_assert_eq!(Request::decode(&set.encode()), Ok(Request::Desired(set)));
        }
        prop_assert!(fields(&bytes).take(bytes.len() + 1).count() <= bytes.len());
    }
}
