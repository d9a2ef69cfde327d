use std::path::PathBuf;

use csi_proto::{DriverName, VolumeId};
use proptest::prelude::*;

use super::*;
use crate::driver::{Access, AccessMode, Attach, MountPath, PodInfo, SecretReference, SecretReferences};
use crate::lifecycle::ExpansionPhase;

fn record() -> Record {
    let key =
        VolumeKey { driver: DriverName::new("d.example").unwrap(), id: VolumeId::new("vol/1").unwrap() };
    let access = Access::Filesystem { fs_type: "ext4".into(), mount_flags: vec!["noatime".into()] };
    let secrets = SecretReferences {
        node_stage: Some(SecretReference::new("ns", "stage").unwrap()),
        node_expand: Some(SecretReference::new("", "grow").unwrap()),
        ..SecretReferences::default()
    };
    let spec = VolumeSpec::builder(key, access, AccessMode::SingleNodeSingleWriter)
        .attach(Attach::Awaited)
        .volume_context([("pool", "fast")])
        .publish_context([("device", "/dev/sdb")])
        .secrets(secrets)
        .fs_group(7)
        .selinux_label("s0:c1")
        .build()
        .unwrap();
    let id = ConsumerId::new("pod-1").unwrap();
    let pod = PodInfo::new("web-0", "default", "9f0c", "").unwrap();
    let consumer = ConsumerSpec::new(id.clone(), MountPath::new("/pods/1/mount").unwrap())
        .read_only(true)
        .fs_group(9)
        .pod(pod);
    let device = DeviceNumber { major: 8, minor: 16 };
    let root = PathBuf::from(OsString::from_vec(b"/sub\xff".to_vec()));
    let mount = MountIdentity::new(device, root, "ext4".into(), "/dev/sdb".into());
    let call = Call { rpc: Rpc::NodePublishVolume, consumer: Some(id.clone()) };
    let target = Target { wanted: true, state: TargetState::Republish };
    Record {
        spec: Arc::new(spec),
        directory: format!("{:032x}", 7),
        consumers: [(
            id.clone(),
            RecordedConsumer {
                spec: Arc::new(consumer),
                mounted: Some(mount.clone()),
                device: Some(mount.device),
                touched: true,
            },
        )]
        .into(),
        snapshot: Snapshot {
            base: Base::VolReady,
            attached: true,
            attached_here: true,
            calling: Some(call),
            targets: [(id, target)].into(),
            granted_bytes: 5,
            capacity_bytes: 6,
            expansion: Some(Expansion { required_bytes: 8, phase: ExpansionPhase::Node }),
        },
        boot: "00000000-0000-0000-0000-000000000001".parse().unwrap(),
        staged: Some(mount),
        touched: true,
        node_id: Some("node-1".into()),
        last_error: Some(CallFailure {
            rpc: Rpc::NodeStageVolume,
            class: Failure::Uncertain,
            code: Some(14),
            message: "away".into(),
        }),
    }
}

#[test]
fn records_survive_a_round_trip() {
    let record = record();
    let read = Record::decode(&record.encode()).unwrap();
    assert_eq!(read, record);
    assert_eq!(read.spec.secrets(), record.spec.secrets());
    let mut released = record;
    released.snapshot.targets.values_mut().for_each(|target| target.wanted = false);
    assert_eq!(Record::decode(&released.encode()).unwrap(), released);
}

/// A node reads records of earlier versions, so a change of the schema or of the code must not change the bytes.
#[test]
fn encoding_of_a_record_is_stable() {
    let bytes = record().encode();
    assert_eq!((bytes.len(), crc32fast::hash(&bytes)), (357, 2_566_777_975));
}

/// The numbers on disk are positions in these lists, as documented in `record.proto`.
#[test]
fn order_of_the_stored_enums_is_stable() {
    let found = format!("{:?} {:?} {CLASSES:?}", Base::ALL, TargetState::ALL);
    let expected = "[Created, ControllerPublish, ControllerUnpublish, NodeReady, NodeStage, NodeUnstage, VolReady] \
        [Absent, NodePublish, Published, Republish, NodeUnpublish] \
        [Final, Uncertain, NeverRetry, Contradicted(Wrong), NotSent]";
    assert_eq!(found, expected);
    let calls = "[ControllerPublishVolume, ControllerUnpublishVolume, NodeStageVolume, NodeUnstageVolume, \
        NodePublishVolume, NodeUnpublishVolume, ControllerExpandVolume, NodeExpandVolume]";
    assert_eq!(format!("{:?}", Rpc::ALL), calls);
}

#[test]
fn every_state_survives_a_round_trip() {
    let mut record = record();
    for base in Base::ALL {
        for state in TargetState::ALL {
            for rpc in Rpc::ALL {
                record.snapshot.base = base;
                record.snapshot.calling = Some(Call { rpc, consumer: None });
                record.snapshot.targets.values_mut().for_each(|target| target.state = state);
                assert_eq!(Record::decode(&record.encode()).unwrap().snapshot, record.snapshot);
            }
        }
    }
}

#[test]
fn rejects_invalid_records_with_the_field() {
    let stored = stored::Record::from(&record());
    let field = |change: &dyn Fn(&mut stored::Record)| {
        let mut stored = stored.clone();
        change(&mut stored);
        Record::decode(&stored.encode_to_vec()).unwrap_err().to_string()
    };
    assert!(field(&|stored| stored.schema = 2).contains("schema 2"));
    assert!(field(&|stored| stored.schema = 0).contains("schema 0"));
    assert!(field(&|stored| stored.spec = None).contains("spec"));
    assert!(field(&|stored| stored.base = 99).contains("base"));
    assert!(field(&|stored| stored.directory = "../../etc".into()).contains("directory"));
    assert!(field(&|stored| stored.boot.clear()).contains("boot"));
    assert!(
        field(&|stored| stored.consumers[0].spec.as_mut().unwrap().target_path = "..".into())
            .contains("target_path")
    );
    assert!(field(&|stored| stored.consumers.push(stored.consumers[0].clone())).contains("duplicate"));
    assert!(matches!(Record::decode(b"\xff"), Err(RecordError::Malformed { .. })));
}

proptest! {
    #[test]
    fn decodes_any_bytes_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = Record::decode(&bytes);
    }

    #[test]
    fn decodes_flipped_bits_without_panic(at in 0usize..4000, bit in 0u8..8) {
        let mut bytes = record().encode();
        let at = at % bytes.len();
        bytes[at] ^= 1 << bit;
        if let Ok(read) = Record::decode(&bytes) {
            prop_assert!(staging::is_directory_name(&read.directory));
        }
    }
}
