//! What is looked at of a request.

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::method::Service;
use prost::Message;

use crate::operation::Digest;

/// Longest id or path in bytes. A call that names something longer is not watched.
pub(super) const MAX_TEXT: usize = 4096;

/// A request about one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) volume: Box<str>,
    pub(super) deed: Deed,
    /// Of all but the secrets.
    pub(super) digest: Digest,
}

/// What is to be done with the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Deed {
    Attach {
        node: Box<str>,
    },
    /// From all nodes, if none is named.
    Detach {
        node: Option<Box<str>>,
    },
    Stage {
        path: Box<str>,
    },
    Unstage {
        path: Box<str>,
    },
    Publish {
        target: Box<str>,
        staging: Option<Box<str>>,
    },
    Unpublish {
        target: Box<str>,
    },
    Expand,
    Delete,
    /// Something that changes the volume and has no place in the order.
    Other,
}

/// The parts of an orchestrator that make calls about a volume, each without knowing what the others are at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Maker {
    /// On the node: kubelet, in Kubernetes.
    Node,
    /// external-attacher.
    Attachments,
    /// external-resizer.
    Sizes,
    /// external-snapshotter.
    Snapshots,
    /// external-provisioner, and all else.
    Volumes,
}

/// What a request is.
#[derive(Debug)]
pub(super) enum Read {
    /// One to watch.
    Request(Request),
    /// One that lacks a field that the method requires.
    Lacks { volume: String, field: &'static str },
    /// One that is not watched: not about one volume, or no message.
    Unwatched,
    /// One that would be watched if it were not for the bound on ids and paths. With the volume, if it is not that.
    TooLong { volume: Option<Box<str>> },
}

/// A field and whether it is set.
type Field = (&'static str, bool);

/// Reads a copy of a request.
pub(super) fn read(method: Method, body: &[u8]) -> Read {
    let Some((volume, fields, deed)) = decode(method, body) else { return Read::Unwatched };
    if let Some((field, _)) = fields.iter().find(|(_, set)| !set) {
        return Read::Lacks { volume: if volume.len() > MAX_TEXT { String::new() } else { volume }, field };
    }
    if volume.len() > MAX_TEXT {
        return Read::TooLong { volume: None };
    }
    if deed.texts().any(|text| text.len() > MAX_TEXT) {
        return Read::TooLong { volume: Some(volume.into()) };
    }
    let digest = Digest::of(method.request_shape(), body);
    Read::Request(Request { method, volume: volume.into(), deed, digest })
}

fn decode(method: Method, body: &[u8]) -> Option<(String, Vec<Field>, Deed)> {
    let id = |id: &str| ("volume_id", !id.is_empty());
    let path = |name, path: &str| (name, !path.is_empty());
    Some(match method {
        Method::ControllerPublishVolume => {
            let r = csi::ControllerPublishVolumeRequest::decode(body).ok()?;
            let capability = ("volume_capability", r.volume_capability.is_some());
            let fields = vec![id(&r.volume_id), path("node_id", &r.node_id), capability];
            (r.volume_id, fields, Deed::Attach { node: r.node_id.into() })
        }
        Method::ControllerUnpublishVolume => {
            let r = csi::ControllerUnpublishVolumeRequest::decode(body).ok()?;
            let node = (!r.node_id.is_empty()).then(|| r.node_id.into());
            let fields = vec![id(&r.volume_id)];
            (r.volume_id, fields, Deed::Detach { node })
        }
        Method::NodeStageVolume => {
            let r = csi::NodeStageVolumeRequest::decode(body).ok()?;
            let capability = ("volume_capability", r.volume_capability.is_some());
            let fields =
                vec![id(&r.volume_id), path("staging_target_path", &r.staging_target_path), capability];
            (r.volume_id, fields, Deed::Stage { path: r.staging_target_path.into() })
        }
        Method::NodeUnstageVolume => {
            let r = csi::NodeUnstageVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id), path("staging_target_path", &r.staging_target_path)];
            (r.volume_id, fields, Deed::Unstage { path: r.staging_target_path.into() })
        }
        Method::NodePublishVolume => {
            let r = csi::NodePublishVolumeRequest::decode(body).ok()?;
            let capability = ("volume_capability", r.volume_capability.is_some());
            let fields = vec![id(&r.volume_id), path("target_path", &r.target_path), capability];
            let staging = (!r.staging_target_path.is_empty()).then(|| r.staging_target_path.into());
            (r.volume_id, fields, Deed::Publish { target: r.target_path.into(), staging })
        }
        Method::NodeUnpublishVolume => {
            let r = csi::NodeUnpublishVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id), path("target_path", &r.target_path)];
            (r.volume_id, fields, Deed::Unpublish { target: r.target_path.into() })
        }
        Method::NodeExpandVolume => {
            let r = csi::NodeExpandVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id), path("volume_path", &r.volume_path)];
            (r.volume_id, fields, Deed::Expand)
        }
        Method::DeleteVolume => {
            let r = csi::DeleteVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id)];
            (r.volume_id, fields, Deed::Delete)
        }
        Method::ControllerExpandVolume => {
            let r = csi::ControllerExpandVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id), ("capacity_range", r.capacity_range.is_some())];
            (r.volume_id, fields, Deed::Other)
        }
        Method::ControllerModifyVolume => {
            let r = csi::ControllerModifyVolumeRequest::decode(body).ok()?;
            let fields = vec![id(&r.volume_id)];
            (r.volume_id, fields, Deed::Other)
        }
        Method::CreateSnapshot => {
            let r = csi::CreateSnapshotRequest::decode(body).ok()?;
            let source = ("source_volume_id", !r.source_volume_id.is_empty());
            let fields = vec![source, path("name", &r.name)];
            (r.source_volume_id, fields, Deed::Other)
        }
        _ => return None,
    })
}

impl Request {
    /// Whether it asks for exactly the same as another one.
    pub(super) fn repeats(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether one part of the orchestrator makes both, so that it can make them one after the other.
    pub(super) fn is_made_with(&self, other: &Self) -> bool {
        self.maker() == other.maker()
    }

    fn maker(&self) -> Maker {
        match self.method {
            method if method.service() == Service::Node => Maker::Node,
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume => Maker::Attachments,
            Method::ControllerExpandVolume | Method::ControllerModifyVolume => Maker::Sizes,
            Method::CreateSnapshot => Maker::Snapshots,
            _ => Maker::Volumes,
        }
    }

    /// Whether both are about one attachment, the staging, or one target, so that their order decides what comes of it.
    pub(super) fn meets(&self, other: &Self) -> bool {
        match (self.deed.object(), other.deed.object()) {
            (Some(one), Some(other)) => one == other,
            // A deletion, and what has no place in the order, leaves the others' objects as they are.
            _ => false,
        }
    }

    /// About how many bytes of memory it takes.
    pub(super) fn bytes(&self) -> usize {
        128 + self.volume.len() + self.deed.texts().map(str::len).sum::<usize>()
    }
}

/// A part of a volume's state that calls change.
#[derive(Debug, PartialEq, Eq)]
enum Object<'a> {
    Attachment,
    Staging,
    Target(&'a str),
}

impl Deed {
    fn object(&self) -> Option<Object<'_>> {
        match self {
            // One detach may be about all nodes.
            Self::Attach { .. } | Self::Detach { .. } => Some(Object::Attachment),
            Self::Stage { .. } | Self::Unstage { .. } => Some(Object::Staging),
            Self::Publish { target, .. } | Self::Unpublish { target } => Some(Object::Target(target)),
            Self::Expand | Self::Delete | Self::Other => None,
        }
    }

    /// The path that one volume only may have.
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Self::Stage { path } | Self::Unstage { path } => Some(path),
            Self::Publish { target, .. } | Self::Unpublish { target } => Some(target),
            Self::Attach { .. } | Self::Detach { .. } | Self::Expand | Self::Delete | Self::Other => None,
        }
    }

    fn texts(&self) -> impl Iterator<Item = &str> {
        let (one, other) = match self {
            Self::Attach { node } => (Some(node), None),
            Self::Detach { node } => (node.as_ref(), None),
            Self::Stage { path } | Self::Unstage { path } => (Some(path), None),
            Self::Publish { target, staging } => (Some(target), staging.as_ref()),
            Self::Unpublish { target } => (Some(target), None),
            Self::Expand | Self::Delete | Self::Other => (None, None),
        };
        one.into_iter().chain(other).map(|text| &**text)
    }
}
