//! One `CreateVolume` as external-provisioner sends it for a claim, and a vendor's response to it.

use std::collections::BTreeMap;

use bytes::Bytes;
use csi_proto::csi::v1::volume_capability::access_mode::Mode;
use csi_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi_proto::csi::v1::{
    CapacityRange, ControllerPublishVolumeRequest, CreateVolumeRequest, CreateVolumeResponse, Topology,
    TopologyRequirement, Volume, VolumeCapability,
};
use prost::Message;

const GIB: i64 = 1 << 30;
const NAME: &str = "pvc-7d9a4f31-52c8-4be0-93d6-0a8be1f6c274";

/// The prefix of volume ids whose `ControllerPublishVolume` hangs at the driver.
pub const HANG_PREFIX: &str = "held-";

/// The prefix of volume ids whose `ControllerPublishVolume` releases all calls that hang at the driver.
pub const RELEASE_PREFIX: &str = "let-go-";

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
}

fn topology() -> Topology {
    Topology { segments: map([("topology.edge.example/node", "edge-node-0042")]) }
}

/// Returns a `CreateVolume` request of about 600 bytes for a volume with this name.
#[must_use]
pub fn create_volume(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 10 * GIB, limit_bytes: 20 * GIB }),
        volume_capabilities: vec![VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume {
                fs_type: "ext4".to_owned(),
                mount_flags: vec!["noatime".to_owned(), "discard".to_owned()],
                ..MountVolume::default()
            })),
        }],
        parameters: map([
            ("csi.storage.k8s.io/pv/name", NAME),
            ("csi.storage.k8s.io/pvc/name", "data-historian-0"),
            ("csi.storage.k8s.io/pvc/namespace", "assembly-line-7"),
            ("kind", "replicated-nvme"),
            ("pool", "edge-site-0042"),
            ("encrypted", "true"),
            ("clusterID", "5c1e07da-6f0b-4d5e-8a42-3e9c7f21b6d8"),
            ("imageFeatures", "layering,deep-flatten"),
        ]),
        secrets: map([
            ("userID", "provisioner"),
            ("userKey", "bm90IGEgc2VjcmV0IGF0IGFsbCwganVzdCBhcyBsb25n"),
        ]),
        accessibility_requirements: Some(TopologyRequirement {
            requisite: vec![topology()],
            preferred: vec![topology()],
        }),
        ..CreateVolumeRequest::default()
    }
}

/// Returns an encoded `CreateVolume` request.
#[must_use]
pub fn request() -> Bytes {
    create_volume(NAME).encode_to_vec().into()
}

/// Returns an encoded `ControllerPublishVolume` request for the volume with this id.
#[must_use]
pub fn publish_volume(id: &str) -> Bytes {
    let capability = create_volume(id).volume_capabilities.pop();
    let request = ControllerPublishVolumeRequest {
        volume_id: id.to_owned(),
        node_id: "edge-node-0042".to_owned(),
        volume_capability: capability,
        ..ControllerPublishVolumeRequest::default()
    };
    request.encode_to_vec().into()
}

/// Returns an encoded `ControllerPublishVolume` request whose volume id [`numbered`] can replace.
#[must_use]
pub fn publish() -> Bytes {
    publish_volume(NAME)
}

/// Returns true if the volume name or id in a request starts with `prefix`.
#[must_use]
pub fn volume_starts_with(request: &[u8], prefix: &str) -> bool {
    // The first field: a byte of key, a byte of length, the name or id.
    matches!(request, [0x0a, length, rest @ ..] if *length < 0x80 && rest.starts_with(prefix.as_bytes()))
}

/// Returns the same request for another volume: calls for the same volume would be one operation in the relay, and share a
/// response.
#[must_use]
pub fn numbered(request: &Bytes, number: u64) -> Bytes {
    let digits = format!("{number:012x}");
    let mut bytes = request.to_vec();
    // The name is the first field: a byte of key, a byte of length, the name.
    let end = 2 + NAME.len();
    bytes[end - 12..end].copy_from_slice(&digits.as_bytes()[digits.len() - 12..]);
    bytes.into()
}

/// Returns an encoded `CreateVolume` response of about 300 bytes.
#[must_use]
pub fn reply() -> Bytes {
    let volume = Volume {
        capacity_bytes: 10 * GIB,
        volume_id: format!("0001-0024-edge-site-0042-{NAME}"),
        volume_context: map([
            ("pool", "edge-site-0042"),
            ("kind", "replicated-nvme"),
            ("encrypted", "true"),
            ("imageName", NAME),
            ("storage.kubernetes.io/csiProvisionerIdentity", "1763709600000-8081-edge"),
        ]),
        accessible_topology: vec![topology()],
        ..Volume::default()
    };
    CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
}

/// Returns an encoded `CreateVolume` response of about this many bytes.
#[must_use]
pub fn reply_of(bytes: usize) -> Bytes {
    let volume = Volume {
        capacity_bytes: 10 * GIB,
        volume_id: NAME.to_owned(),
        volume_context: map([("padding", &"x".repeat(bytes.saturating_sub(100)))]),
        ..Volume::default()
    };
    CreateVolumeResponse { volume: Some(volume) }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_numbered_request_differs_only_in_its_name() {
        use prost::Message;
        let numbered = super::numbered(&super::request(), u64::MAX);
        let found = super::CreateVolumeRequest::decode(numbered).unwrap();
        assert_eq!(found, super::create_volume("pvc-7d9a4f31-52c8-4be0-93d6-ffffffffffff"));
    }

    #[test]
    fn reads_the_prefix_of_the_volume_id() {
        let held = super::publish_volume("held-7");
        assert!(
            super::volume_starts_with(&held, super::HANG_PREFIX)
                && !super::volume_starts_with(&held, super::RELEASE_PREFIX)
        );
        assert!(
            !super::volume_starts_with(&super::publish(), super::HANG_PREFIX)
                && !super::volume_starts_with(&[], super::HANG_PREFIX)
        );
    }

    #[test]
    fn the_payload_has_the_size_of_a_real_one() {
        let (request, reply) = (super::request().len(), super::reply().len());
        assert!((540..=660).contains(&request), "request of {request} bytes");
        assert!((270..=340).contains(&reply), "reply of {reply} bytes");
    }
}
