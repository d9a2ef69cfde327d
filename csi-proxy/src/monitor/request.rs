//! Decodes the monitored parts of a request.

use csi_proto::Method;
use csi_proto::method::Service;

use crate::call::Digest;
use crate::call::protobuf::{self, Value};

/// The maximum length of an id or path in bytes. A call with a longer one is not monitored.
pub(super) const MAX_TEXT: usize = 4096;

/// Returns the UID of the pod in a target path of kubelet: `…/pods/UID/volumes/…`, or `…/volumeDevices/publish/PV/UID` of a
/// raw block volume. `None` for any other path.
#[must_use]
pub fn pod_uid(target: &str) -> Option<&str> {
    let words: Vec<&str> = target.split('/').collect();
    let of_mount = words.windows(3).find_map(|at| match at {
        ["pods", uid, "volumes"] => Some(*uid),
        _ => None,
    });
    let of_block = || match words[..] {
        [.., "volumeDevices", "publish", _, uid] => Some(uid),
        _ => None,
    };
    of_mount.or_else(of_block).filter(|uid| !uid.is_empty())
}

/// A request for one volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: Method,
    pub(super) volume: Box<str>,
    pub(super) operation: Operation,
    /// The digest without secrets.
    pub(super) digest: Digest,
}

/// The operation on the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Operation {
    Attach {
        node: Box<str>,
    },
    /// Detaches from all nodes if `node` is `None`.
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
    /// An operation without rules for its order.
    Other,
}

/// The components of an orchestrator that call independently of each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Component {
    /// The node component: kubelet in Kubernetes.
    Node,
    /// external-attacher.
    Attachments,
    /// external-resizer.
    Sizes,
    /// external-snapshotter.
    Snapshots,
    /// external-provisioner and all others.
    Volumes,
}

/// The result of decoding a request.
#[derive(Debug)]
pub(super) enum Decoded {
    /// A monitored request.
    Request(Request),
    /// A request without a required field.
    MissingField { volume: String, field: &'static str },
    /// A request that is not monitored: not for one volume, or not a message.
    NotMonitored,
    /// A request with an id or path longer than [`MAX_TEXT`]; `volume` is `None` if its id is too long.
    TooLong { volume: Option<Box<str>> },
}

/// The name and number of a field.
type Field = (&'static str, u32);

const VOLUME_ID: Field = ("volume_id", 1);

/// Reads a request.
pub(super) fn decode(method: Method, body: &[u8]) -> Decoded {
    decode_fields(method, body).unwrap_or(Decoded::NotMonitored)
}

/// Decodes a request; `None` if it is not monitored.
fn decode_fields(method: Method, body: &[u8]) -> Option<Decoded> {
    let fields = protobuf::fields(body)?;
    // The last value counts, as in protobuf decoding.
    let last = |number| fields.of(number).last();
    let text = |number| last(number).map_or(Some(""), Value::text).map(Box::<str>::from);
    let optional = |number| text(number).map(|text| Some(text).filter(|text| !text.is_empty()));
    let (operation, required): (_, &[Field]) = match method {
        Method::ControllerPublishVolume => {
            (Operation::Attach { node: text(2)? }, &[VOLUME_ID, ("node_id", 2), ("volume_capability", 3)])
        }
        Method::ControllerUnpublishVolume => (Operation::Detach { node: optional(2)? }, &[VOLUME_ID]),
        Method::NodeStageVolume => {
            let required = &[VOLUME_ID, ("staging_target_path", 3), ("volume_capability", 4)];
            (Operation::Stage { path: text(3)? }, required)
        }
        Method::NodeUnstageVolume => {
            (Operation::Unstage { path: text(2)? }, &[VOLUME_ID, ("staging_target_path", 2)])
        }
        Method::NodePublishVolume => {
            let required = &[VOLUME_ID, ("target_path", 4), ("volume_capability", 5)];
            (Operation::Publish { target: text(4)?, staging: optional(3)? }, required)
        }
        Method::NodeUnpublishVolume => {
            (Operation::Unpublish { target: text(2)? }, &[VOLUME_ID, ("target_path", 2)])
        }
        Method::NodeExpandVolume => (Operation::Expand, &[VOLUME_ID, ("volume_path", 2)]),
        Method::DeleteVolume => (Operation::Delete, &[VOLUME_ID]),
        Method::ControllerExpandVolume => (Operation::Other, &[VOLUME_ID, ("capacity_range", 2)]),
        Method::ControllerModifyVolume => (Operation::Other, &[VOLUME_ID]),
        Method::CreateSnapshot => (Operation::Other, &[("source_volume_id", 1), ("name", 2)]),
        _ => return None,
    };
    let volume = text(VOLUME_ID.1)?;
    let is_long = |text: &str| text.len() > MAX_TEXT;
    // A message may be empty; a text may not.
    let is_text = |name| !matches!(name, "volume_capability" | "capacity_range");
    let is_missing = |(name, number): &&Field| match last(*number) {
        Some(value) => is_text(*name) && value.bytes().is_none_or(<[u8]>::is_empty),
        None => true,
    };
    Some(if let Some((field, _)) = required.iter().find(is_missing) {
        let volume = if is_long(&volume) { String::new() } else { volume.into() };
        Decoded::MissingField { volume, field }
    } else if is_long(&volume) {
        Decoded::TooLong { volume: None }
    } else if operation.texts().any(is_long) {
        Decoded::TooLong { volume: Some(volume) }
    } else {
        Decoded::Request(Request {
            method,
            volume,
            operation,
            digest: Digest::of(method.request_shape(), body),
        })
    })
}

impl Request {
    /// The component that sends the request. A component can serialize its own calls.
    pub(super) fn component(&self) -> Component {
        match self.method {
            method if method.service() == Service::Node => Component::Node,
            Method::ControllerPublishVolume | Method::ControllerUnpublishVolume => Component::Attachments,
            Method::ControllerExpandVolume | Method::ControllerModifyVolume => Component::Sizes,
            Method::CreateSnapshot => Component::Snapshots,
            _ => Component::Volumes,
        }
    }

    /// Whether both affect one attachment, the staging, or one target, so that their order matters.
    pub(super) fn overlaps(&self, other: &Self) -> bool {
        match (self.operation.object(), other.operation.object()) {
            (Some(one), Some(other)) => one == other,
            // A deletion or other operation does not affect these objects.
            _ => false,
        }
    }

    /// The approximate memory use in bytes.
    pub(super) fn bytes(&self) -> usize {
        128 + self.volume.len() + self.operation.texts().map(str::len).sum::<usize>()
    }
}

/// The part of a volume's state that a call changes.
#[derive(Debug, PartialEq, Eq)]
enum Object<'a> {
    Attachment,
    Staging,
    Target(&'a str),
}

impl Operation {
    fn object(&self) -> Option<Object<'_>> {
        match self {
            // One detach may affect all nodes.
            Self::Attach { .. } | Self::Detach { .. } => Some(Object::Attachment),
            Self::Stage { .. } | Self::Unstage { .. } => Some(Object::Staging),
            Self::Publish { target, .. } | Self::Unpublish { target } => Some(Object::Target(target)),
            Self::Expand | Self::Delete | Self::Other => None,
        }
    }

    /// The path of the request, which only one volume may have.
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
