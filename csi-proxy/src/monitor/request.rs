//! What is looked at of a request.

use csi_proto::Method;
use csi_proto::method::Service;

use crate::call::protobuf::{self, Value};
use crate::dispatcher::operation::Digest;

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
pub(super) enum Maker {
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

/// The name and number of a field.
type Field = (&'static str, u32);

const VOLUME_ID: Field = ("volume_id", 1);

/// Reads a request.
pub(super) fn read(method: Method, body: &[u8]) -> Read {
    read_fields(method, body).unwrap_or(Read::Unwatched)
}

/// The same; `None` for one that is not watched.
fn read_fields(method: Method, body: &[u8]) -> Option<Read> {
    let fields = protobuf::fields(body)?;
    // The last one counts, as when it is decoded.
    let last = |number| fields.iter().rfind(|field| field.number == number).map(|field| field.value);
    let text = |number| last(number).map_or(Some(""), Value::text).map(Box::<str>::from);
    let optional = |number| text(number).map(|text| Some(text).filter(|text| !text.is_empty()));
    let (deed, required): (_, &[Field]) = match method {
        Method::ControllerPublishVolume => {
            (Deed::Attach { node: text(2)? }, &[VOLUME_ID, ("node_id", 2), ("volume_capability", 3)])
        }
        Method::ControllerUnpublishVolume => (Deed::Detach { node: optional(2)? }, &[VOLUME_ID]),
        Method::NodeStageVolume => {
            let required = &[VOLUME_ID, ("staging_target_path", 3), ("volume_capability", 4)];
            (Deed::Stage { path: text(3)? }, required)
        }
        Method::NodeUnstageVolume => {
            (Deed::Unstage { path: text(2)? }, &[VOLUME_ID, ("staging_target_path", 2)])
        }
        Method::NodePublishVolume => {
            let required = &[VOLUME_ID, ("target_path", 4), ("volume_capability", 5)];
            (Deed::Publish { target: text(4)?, staging: optional(3)? }, required)
        }
        Method::NodeUnpublishVolume => {
            (Deed::Unpublish { target: text(2)? }, &[VOLUME_ID, ("target_path", 2)])
        }
        Method::NodeExpandVolume => (Deed::Expand, &[VOLUME_ID, ("volume_path", 2)]),
        Method::DeleteVolume => (Deed::Delete, &[VOLUME_ID]),
        Method::ControllerExpandVolume => (Deed::Other, &[VOLUME_ID, ("capacity_range", 2)]),
        Method::ControllerModifyVolume => (Deed::Other, &[VOLUME_ID]),
        Method::CreateSnapshot => (Deed::Other, &[("source_volume_id", 1), ("name", 2)]),
        _ => return None,
    };
    let volume = text(VOLUME_ID.1)?;
    let is_long = |text: &str| text.len() > MAX_TEXT;
    // A message is set, and may be empty; a text is not.
    let is_text = |name| !matches!(name, "volume_capability" | "capacity_range");
    let lacks = |(name, number): &&Field| match last(*number) {
        Some(value) => is_text(*name) && value.bytes().is_none_or(<[u8]>::is_empty),
        None => true,
    };
    Some(if let Some((field, _)) = required.iter().find(lacks) {
        let volume = if is_long(&volume) { String::new() } else { volume.into() };
        Read::Lacks { volume, field }
    } else if is_long(&volume) {
        Read::TooLong { volume: None }
    } else if deed.texts().any(is_long) {
        Read::TooLong { volume: Some(volume) }
    } else {
        Read::Request(Request { method, volume, deed, digest: Digest::of(method.request_shape(), body) })
    })
}

impl Request {
    /// The part of the orchestrator that makes it. One part can make its calls one after the other.
    pub(super) fn maker(&self) -> Maker {
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
