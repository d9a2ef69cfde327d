//! What an election needs to know of a `CreateVolume`.

use std::collections::BTreeMap;

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::volume_content_source::Type as Source;
use prost::Message as _;

use crate::dispatcher::operation::{BadRequest, Digest, MAX_SUBJECT, Subject};

/// The field `accessibility_requirements`.
const REQUIREMENTS: u32 = 7;

/// What a `CreateVolume` asks for, as far as it decides on the node. Holds no secret.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct VolumeRequest {
    /// The name that the volume is to get.
    pub name: Box<str>,
    /// A digest of the request without its secrets and without its topology: provisioners put the same topologies in another
    /// order when they ask again.
    pub fingerprint: Digest,
    /// Where the volume may be, in the order in which that is to be tried: the preferred topologies, then the other requisite
    /// ones. Empty if it may be anywhere.
    pub topologies: Vec<csi::Topology>,
    /// The least size in bytes; 0 if it was left open.
    pub required_bytes: u64,
    /// The snapshot or volume that it is to be a copy of.
    pub source: Option<Subject>,
    /// The parameters of its class.
    pub parameters: BTreeMap<String, String>,
}

impl VolumeRequest {
    /// Reads an encoded request.
    ///
    /// # Errors
    /// If it is no such request, or has no name, or one of more than [`MAX_SUBJECT`] bytes.
    pub fn read(body: &[u8]) -> Result<Self, BadRequest> {
        let unreadable = || BadRequest::Unreadable { field: "the request" };
        let request = csi::CreateVolumeRequest::decode(body).map_err(|_| unreadable())?;
        if request.name.is_empty() {
            return Err(BadRequest::Missing { field: "name" });
        }
        if request.name.len() > MAX_SUBJECT {
            return Err(BadRequest::Unreadable { field: "name" });
        }
        let fingerprint = crate::call::protobuf::without(body, REQUIREMENTS).ok_or_else(unreadable)?;
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
    fn another_order_of_topologies_and_other_secrets_are_the_same_request_and_another_size_is_not() {
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
    fn a_request_without_a_name_is_refused() {
        let refused = VolumeRequest::read(&csi::CreateVolumeRequest::default().encode_to_vec());
        assert_eq!(refused, Err(BadRequest::Missing { field: "name" }));
        assert_eq!(VolumeRequest::read(b"\x0a\x05"), Err(BadRequest::Unreadable { field: "the request" }));
    }
}
