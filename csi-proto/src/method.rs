//! Properties of each RPC from the schema and the spec.
//!
//! A relay that forwards requests as opaque bytes needs no message types: [`Method::from_path`] returns the properties of a
//! call from its path. Properties that name a request field include its number, so that the field can be read from the encoded
//! request. An unknown path is a method of a later version of the spec, not an error.

use std::fmt;

include!("generated/method_table.rs");

/// The services of package `csi.v1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Service {
    /// Identifies the plugin; served on every plugin socket.
    Identity,
    /// Manages volumes and snapshots, independent of the node that uses them.
    Controller,
    /// Manages consistent snapshots of several volumes.
    GroupController,
    /// Lists allocated and changed blocks of snapshots. Alpha.
    SnapshotMetadata,
    /// Manages mounts on the node that uses the volume: its paths are valid only on that host.
    Node,
}

impl Service {
    /// The full name on the wire, like `csi.v1.Controller`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Identity => "csi.v1.Identity",
            Self::Controller => "csi.v1.Controller",
            Self::GroupController => "csi.v1.GroupController",
            Self::SnapshotMetadata => "csi.v1.SnapshotMetadata",
            Self::Node => "csi.v1.Node",
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How a request identifies its volume or snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum VolumeKey {
    /// By the name of the volume to create, which has no id yet.
    Name,
    /// By the volume's id.
    VolumeId,
    /// By the volume's id, as the source of a snapshot.
    SourceVolumeId,
    /// By a list of volume ids, each the source of a snapshot.
    SourceVolumeIds,
    /// By the id of a snapshot.
    SnapshotId,
    /// By the id of the later of two snapshots of one volume.
    TargetSnapshotId,
    /// By the id of a snapshot of a group of volumes.
    GroupSnapshotId,
}

/// A field at the top level of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RequestField {
    /// The field's name in the schema.
    pub name: &'static str,
    /// The field's number on the wire.
    pub number: u32,
}

/// The properties of one RPC: a row of the generated table.
struct Facts {
    path: &'static str,
    service: Service,
    server_streaming: bool,
    mutating: bool,
    alpha: bool,
    volume_key: Option<(VolumeKey, RequestField)>,
    identity: &'static [RequestField],
    secrets: Option<RequestField>,
}

impl Method {
    /// The path of the RPC's HTTP/2 request, like `/csi.v1.Controller/CreateVolume`.
    #[must_use]
    pub const fn path(self) -> &'static str {
        self.facts().path
    }

    /// The service that the RPC belongs to.
    #[must_use]
    pub const fn service(self) -> Service {
        self.facts().service
    }

    /// The RPC's name, like `CreateVolume`; no two services of the spec share one.
    #[must_use]
    pub fn name(self) -> &'static str {
        let path = self.path();
        path.rsplit_once('/').map_or(path, |(_, name)| name)
    }

    /// Whether the response is a stream of messages.
    #[must_use]
    pub const fn is_server_streaming(self) -> bool {
        self.facts().server_streaming
    }

    /// Whether the RPC may change a volume, a snapshot or a mount.
    #[must_use]
    pub const fn is_mutating(self) -> bool {
        self.facts().mutating
    }

    /// Whether the RPC or its service is alpha: a minor release of the spec may change or remove it.
    #[must_use]
    pub const fn is_alpha(self) -> bool {
        self.facts().alpha
    }

    /// How the request identifies its volume; `None` if it concerns no particular volume.
    #[must_use]
    pub fn volume_key(self) -> Option<VolumeKey> {
        self.facts().volume_key.map(|(key, _)| key)
    }

    /// The request field that contains the [`Self::volume_key`].
    #[must_use]
    pub fn volume_field(self) -> Option<RequestField> {
        self.facts().volume_key.map(|(_, field)| field)
    }

    /// The fields that identify an operation: two requests with equal values are the same operation, and other arguments with
    /// the same values are a conflict. Empty for methods that are not mutating.
    #[must_use]
    pub const fn identity(self) -> &'static [RequestField] {
        self.facts().identity
    }

    /// The request field with the secrets, which must not be part of any digest, log or journal.
    #[must_use]
    pub const fn secrets_field(self) -> Option<RequestField> {
        self.facts().secrets
    }
}

/// The path, which is also the `method_name` label of the sidecars' metrics.
impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.path())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{Method, Service, VolumeKey};
    use crate::secrets::SECRET_FIELDS;

    #[test]
    fn lists_every_rpc_once() {
        let paths: BTreeSet<_> = Method::ALL.iter().map(|method| method.path()).collect();
        assert_eq!((Method::ALL.len(), paths.len()), (36, 36));
    }

    #[test]
    fn path_and_method_round_trip() {
        for &method in Method::ALL {
            assert_eq!(Method::from_path(method.path()), Some(method));
            assert_eq!(method.path(), format!("/{}/{}", method.service(), method.name()));
            assert_eq!(method.to_string(), method.path());
        }
        for unknown in
            ["", "/", "CreateVolume", "/csi.v1.Controller/createvolume", "/csi.v1.Node/CreateVolume"]
        {
            assert_eq!(Method::from_path(unknown), None, "{unknown}");
        }
    }

    #[test]
    fn only_snapshot_metadata_streams() {
        for &method in Method::ALL {
            assert_eq!(
                method.is_server_streaming(),
                method.service() == Service::SnapshotMetadata,
                "{method}"
            );
        }
    }

    #[test]
    fn mutating_methods_have_an_identity() {
        for &method in Method::ALL {
            assert_eq!(method.is_mutating(), !method.identity().is_empty(), "{method}");
            assert!(!method.is_mutating() || method.volume_key().is_some(), "{method}");
        }
    }

    #[test]
    fn the_alpha_methods_are_those_of_1_13() {
        let alpha: Vec<_> = Method::ALL.iter().filter(|method| method.is_alpha()).map(|m| m.name()).collect();
        assert_eq!(
            alpha,
            [
                "ControllerListVolumeHealth",
                "ControllerGetVolumeHealth",
                "GetSnapshot",
                "ControllerGetVolume",
                "GetMetadataAllocated",
                "GetMetadataDelta",
                "NodeGetVolumeHealth",
                "NodeGetStorageHealth",
            ]
        );
    }

    #[test]
    fn properties_match_the_spec() {
        for (method, key, identity, secrets) in [
            (Method::CreateVolume, Some(VolumeKey::Name), &[("name", 1)][..], Some(5)),
            (
                Method::ControllerPublishVolume,
                Some(VolumeKey::VolumeId),
                &[("volume_id", 1), ("node_id", 2)],
                Some(5),
            ),
            (Method::CreateSnapshot, Some(VolumeKey::SourceVolumeId), &[("name", 2)], Some(3)),
            (
                Method::NodePublishVolume,
                Some(VolumeKey::VolumeId),
                &[("volume_id", 1), ("target_path", 4)],
                Some(7),
            ),
            (
                Method::NodeUnpublishVolume,
                Some(VolumeKey::VolumeId),
                &[("volume_id", 1), ("target_path", 2)],
                None,
            ),
            (Method::GetCapacity, None, &[], None),
        ] {
            let fields: Vec<_> = method.identity().iter().map(|field| (field.name, field.number)).collect();
            assert_eq!(method.volume_key(), key, "{method}");
            assert_eq!(fields, identity, "{method}");
            assert_eq!(method.secrets_field().map(|field| field.number), secrets, "{method}");
        }
    }

    #[test]
    fn secret_fields_belong_to_one_request() {
        let with_secrets = Method::ALL.iter().filter(|method| method.secrets_field().is_some()).count();
        assert_eq!(with_secrets, SECRET_FIELDS.len());
    }
}
