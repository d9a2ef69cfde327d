//! The parts of a `CreateVolume` request that node selection uses.

use std::collections::BTreeMap;

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::volume_content_source::Type as Source;
use prost::Message as _;

use crate::call::{BadRequest, Digest, MAX_SUBJECT, Subject};

/// The number of the field `accessibility_requirements`.
const REQUIREMENTS: u32 = 7;

/// The parts of a `CreateVolume` request that determine the node. Contains no secret.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct VolumeRequest {
    /// The requested name of the volume.
    pub(crate) name: Box<str>,
    /// The digest of the request without its secrets and its topology: provisioners may change the order of topologies
    /// in a retry.
    pub(crate) fingerprint: Digest,
    /// The allowed topologies in order of preference: the preferred ones, then the other requisite ones. Empty without
    /// a requirement.
    pub(crate) topologies: Vec<csi::Topology>,
    /// The minimum size in bytes; 0 if unspecified.
    pub(crate) required_bytes: u64,
    /// The content source: a snapshot or volume.
    pub(crate) source: Option<Subject>,
    /// The parameters of the storage class.
    pub(crate) parameters: BTreeMap<String, String>,
}

impl VolumeRequest {
    /// Decodes a request.
    ///
    /// # Errors
    /// If the bytes are not such a request, or the name is missing or longer than [`MAX_SUBJECT`] bytes.
    pub(crate) fn read(body: &[u8]) -> Result<Self, BadRequest> {
        let request = csi::CreateVolumeRequest::decode(body).map_err(|_| BadRequest::NotAMessage)?;
        if request.name.is_empty() {
            return Err(BadRequest::Missing { field: "name" });
        }
        if request.name.len() > MAX_SUBJECT {
            return Err(BadRequest::Unreadable { field: "name" });
        }
        let fingerprint =
            crate::call::protobuf::remove_field(body, REQUIREMENTS).ok_or(BadRequest::NotAMessage)?;
        let requirements = request.accessibility_requirements.unwrap_or_default();
        let required = request.capacity_range.map_or(0, |range| range.required_bytes);
        let source = request.volume_content_source.and_then(|source| source.r#type).and_then(|source| {
            let (id, subject): (_, fn(Box<str>) -> Subject) = match source {
                Source::Snapshot(source) => (source.snapshot_id, Subject::Snapshot),
                Source::Volume(source) => (source.volume_id, Subject::Volume),
            };
            (!id.is_empty()).then(|| subject(id.into()))
        });
        Ok(Self {
            name: request.name.into(),
            fingerprint: Digest::of(Method::CreateVolume.request_shape(), &fingerprint),
            topologies: requirements.candidates().cloned().collect(),
            required_bytes: u64::try_from(required).unwrap_or_default(),
            source,
            parameters: request.parameters,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> csi::Topology {
        csi::Topology::from_iter([("zone", name)])
    }

    fn request(zones: &[&str]) -> csi::CreateVolumeRequest {
        let zones: Vec<_> = zones.iter().map(|name| zone(name)).collect();
        let requirement = csi::TopologyRequirement { preferred: zones.clone(), requisite: zones };
        csi::CreateVolumeRequest {
            name: "pvc-1".to_owned(),
            secrets: [("password".to_owned(), "canary".to_owned())].into(),
            accessibility_requirements: Some(requirement),
            ..Default::default()
        }
    }

    fn read(request: &csi::CreateVolumeRequest) -> VolumeRequest {
        VolumeRequest::read(&request.encode_to_vec()).unwrap()
    }

    #[test]
    fn fingerprint_ignores_topology_order_and_secrets() {
        let first = read(&request(&["a", "b"]));
        let mut again = request(&["b", "a"]);
        again.secrets.clear();
        assert_eq!(read(&again).fingerprint, first.fingerprint);
        assert_eq!(read(&again).topologies, [zone("b"), zone("a")]);
        again.capacity_range = Some(csi::CapacityRange { required_bytes: 9, limit_bytes: 0 });
        assert_ne!(read(&again).fingerprint, first.fingerprint);
        assert!(!format!("{first:?}").contains("canary"));
    }

    #[test]
    fn rejects_request_without_a_name() {
        let refused = VolumeRequest::read(&csi::CreateVolumeRequest::default().encode_to_vec());
        assert_eq!(refused, Err(BadRequest::Missing { field: "name" }));
        assert_eq!(VolumeRequest::read(b"\x0a\x05"), Err(BadRequest::NotAMessage));
    }
}
