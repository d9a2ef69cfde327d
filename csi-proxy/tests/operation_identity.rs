//! Identities of operations over the whole table of methods.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use csi_proto::method::VolumeKey;
use csi_proto::secrets::SECRET_FIELDS;
use csi_proto::{DriverName, Method};
use csi_proxy::advanced::call::{MAX_SUBJECT, MAX_SUBJECTS, Subject};
use csi_proxy::advanced::operation::Identity;

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn text(number: u32, text: &str) -> Vec<u8> {
    let mut field = Vec::new();
    prost::encoding::encode_varint(u64::from(number << 3 | 2), &mut field);
    prost::encoding::encode_varint(text.len() as u64, &mut field);
    field.extend_from_slice(text.as_bytes());
    field
}

#[test]
fn only_mutating_methods_have_an_identity() {
    for &method in Method::ALL {
        let request = method.volume_field().map(|field| text(field.number, "x")).unwrap_or_default();
        let identity = Identity::of(&driver(), method, &request).unwrap();
        assert_eq!(identity.is_some(), method.is_mutating() && !method.is_server_streaming(), "{method}");
        let Some(identity) = identity else { continue };
        let expected = match method.volume_key().unwrap() {
            VolumeKey::Name => Subject::VolumeName("x".into()),
            VolumeKey::SnapshotId => Subject::Snapshot("x".into()),
            VolumeKey::GroupSnapshotId => Subject::GroupSnapshot("x".into()),
            _ => Subject::Volume("x".into()),
        };
        assert_eq!(identity.keys()[0].subject(), &expected, "{method}");
    }
}

/// A driver may read its subjects all the same: it must not run beside another operation on them.
#[test]
fn request_without_readable_subjects_is_refused() {
    let message = "the request is not a protobuf message without groups";
    let (id, name) = ("volume_id is malformed, or has more than 4096 bytes", "name");
    let too_long = text(1, &"x".repeat(MAX_SUBJECT + 1));
    for (request, expected) in [
        (&b"\xff"[..], message),
        (b"\x0a\x01v\x0b\x0c", message),
        (b"\x0a\x02\xff\xff", id),
        (b"\x0a\x01v\x08\x01", id),
        (&too_long, id),
    ] {
        let refused = Identity::of(&driver(), Method::DeleteVolume, request).unwrap_err();
        assert_eq!(refused.to_string(), expected, "{request:?}");
    }
    let many = |number, count| [text(1, name), text(number, "v").repeat(count)].concat();
    for (method, count, expected) in [
        (Method::CreateVolumeGroupSnapshot, MAX_SUBJECTS, "source_volume_ids has more than 1024 entries"),
        (Method::DeleteVolumeGroupSnapshot, MAX_SUBJECTS - 1, "snapshot_ids has more than 1024 entries"),
    ] {
        assert!(Identity::of(&driver(), method, &many(2, count)).is_ok(), "{method}");
        let refused = Identity::of(&driver(), method, &many(2, count + 1)).unwrap_err();
        assert_eq!(refused.to_string(), expected);
        let refused = [text(1, name), b"\x12\x01\xff".to_vec()].concat();
        assert!(Identity::of(&driver(), method, &refused).is_err(), "{method}");
    }
}

/// It can be sent again after a lost link, and is still executed once.
#[test]
fn request_without_subject_has_the_empty_id() {
    let of = |request: &[u8]| Identity::of(&driver(), Method::DeleteVolume, request).unwrap().unwrap();
    for request in [&[][..], &text(1, ""), &text(2, "x")] {
        assert_eq!(of(request).keys()[0].subject(), &Subject::Volume("".into()), "{request:?}");
    }
    assert_ne!(of(&[]), of(&text(9, "x")));
}

#[test]
fn group_has_each_of_its_volumes_once() {
    let request = [text(1, "group"), text(2, "vol-1"), text(2, "vol-2"), text(2, "vol-1")].concat();
    let identity = Identity::of(&driver(), Method::CreateVolumeGroupSnapshot, &request).unwrap().unwrap();
    let about: Vec<_> = identity.keys().iter().map(|key| key.subject().clone()).collect();
    assert_eq!(about, [Subject::Volume("vol-1".into()), Subject::Volume("vol-2".into())]);
    let request = [text(1, "group-1"), text(2, "snap-1"), text(2, "snap-2")].concat();
    let identity = Identity::of(&driver(), Method::DeleteVolumeGroupSnapshot, &request).unwrap().unwrap();
    let about: Vec<_> = identity.keys().iter().map(|key| key.subject().clone()).collect();
    let snapshot = |id: &str| Subject::Snapshot(id.into());
    assert_eq!(about, [Subject::GroupSnapshot("group-1".into()), snapshot("snap-1"), snapshot("snap-2")]);
}

/// Answers are kept and returned to equal calls, which is safe only without secrets.
#[test]
fn no_response_has_a_field_for_a_secret() {
    for field in SECRET_FIELDS {
        assert!(field.message.ends_with("Request"), "{field:?}");
    }
}

#[test]
fn debug_of_identity_prints_only_subjects() {
    let request = [text(1, "vol-1"), text(4, "canary"), text(5, "canary")].concat();
    for &method in Method::ALL.iter().filter(|method| method.volume_key() == Some(VolumeKey::VolumeId)) {
        let printed = format!("{:?}", Identity::of(&driver(), method, &request));
        assert!(!printed.contains("canary"), "{printed}");
    }
}
