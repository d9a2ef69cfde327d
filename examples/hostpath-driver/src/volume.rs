//! The record of a volume.

use std::collections::BTreeMap;
use std::fmt;

use csi::volume_content_source::{SnapshotSource, Type as ProtoSource, VolumeSource};
use csi_proto::csi::v1 as csi;
use serde::{Deserialize, Serialize};

use super::capability::{Access, Capability};
use super::error::CallError;
use super::filesystem::FileSystem;
use super::identifier::ResourceId;
use super::store::Record;

/// The parameter that selects a [`VolumeKind`].
pub const KIND_PARAMETER: &str = "kind";

/// Maximum number of target paths of one volume.
pub const MAX_TARGETS: usize = 256;

/// The storage of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// A directory of the host. Its size is counted, not enforced.
    Directory,
    /// A sparse file behind a loop device, with a filesystem or as a raw block device.
    Loop,
}

impl VolumeKind {
    /// Returns the name, as in the parameter `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Loop => "loop",
        }
    }

    /// Parses a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Directory, Self::Loop].into_iter().find(|kind| kind.name() == name)
    }

    /// Returns true if a volume of this kind provides the capability.
    pub const fn provides(self, capability: &Capability) -> bool {
        match self {
            Self::Directory => matches!(capability.access, Access::Mount { fs_type: None, .. }),
            Self::Loop => true,
        }
    }
}

/// The progress of a resource's creation or removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// The data is being created; no caller has received the resource yet.
    Creating,
    /// The resource can be used.
    Ready,
    /// The data is being removed.
    Deleting,
}

/// The source of a volume's initial content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentSource {
    /// A snapshot.
    Snapshot(ResourceId),
    /// Another volume.
    Volume(ResourceId),
}

impl ContentSource {
    /// Checks the source of a request.
    ///
    /// # Errors
    /// Returns an error if the source is empty, or if its id is not an id of this driver.
    pub fn parse(source: &csi::VolumeContentSource) -> Result<Self, CallError> {
        let missing =
            || CallError::Missing { field: "volume_content_source", expected: "a snapshot or a volume" };
        match source.r#type.as_ref().ok_or_else(missing)? {
            ProtoSource::Snapshot(SnapshotSource { snapshot_id }) => ResourceId::parse(snapshot_id)
                .map(Self::Snapshot)
                .ok_or_else(|| CallError::no_snapshot(snapshot_id)),
            ProtoSource::Volume(VolumeSource { volume_id }) => {
                ResourceId::parse(volume_id).map(Self::Volume).ok_or_else(|| CallError::no_volume(volume_id))
            }
        }
    }
}

impl From<&ContentSource> for csi::VolumeContentSource {
    fn from(source: &ContentSource) -> Self {
        let source = match source {
            ContentSource::Snapshot(id) => {
                ProtoSource::Snapshot(SnapshotSource { snapshot_id: id.to_string() })
            }
            ContentSource::Volume(id) => ProtoSource::Volume(VolumeSource { volume_id: id.to_string() }),
        };
        Self { r#type: Some(source) }
    }
}

/// The state of the filesystem in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Not created by this driver: blank, copied, or written by the user of a block volume.
    Unknown,
    /// The creation was interrupted before any use, and may be restarted.
    Started(FileSystem),
    /// The filesystem has been created.
    Done(FileSystem),
}

/// The capability and mode with which a volume is attached, staged or published.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedAccess {
    /// Access type and access mode.
    pub capability: Capability,
    /// True for read-only use.
    pub read_only: bool,
}

impl fmt::Display for GrantedAccess {
    // Without the mount flags, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.capability.mode(), if self.read_only { " readonly" } else { "" })
    }
}

/// The record of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The id.
    pub id: ResourceId,
    /// The name in the create request.
    pub name: String,
    /// The progress of its creation or removal.
    pub phase: Phase,
    /// The storage of the volume.
    pub kind: VolumeKind,
    /// The size in bytes.
    pub capacity_bytes: u64,
    /// The parameters of the create request.
    pub parameters: BTreeMap<String, String>,
    /// The parameters that ControllerModifyVolume changes.
    pub mutable_parameters: BTreeMap<String, String>,
    /// The source of the initial content.
    pub source: Option<ContentSource>,
    /// The state of the filesystem in the image.
    pub format: Format,
    /// True if the image is larger than its filesystem.
    pub grow: bool,
    /// The attachment to this node.
    pub attachment: Option<GrantedAccess>,
    /// The staging path and its use.
    pub staged: Option<(String, GrantedAccess)>,
    /// The target paths and their uses.
    pub published: BTreeMap<String, GrantedAccess>,
}

impl Record for VolumeRecord {
    const FOLDER: &'static str = "volumes";

    fn id(&self) -> &ResourceId {
        &self.id
    }

    fn name(&self) -> &str {
        &self.name
    }
}

impl VolumeRecord {
    /// Returns true if callers may see the volume.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// Converts the record to the spec's message, accessible from the node with these topology segments.
    pub fn to_csi(&self, topology: csi::Topology) -> csi::Volume {
        csi::Volume {
            capacity_bytes: i64::try_from(self.capacity_bytes).unwrap_or(i64::MAX),
            volume_id: self.id.to_string(),
            volume_context: BTreeMap::from([(KIND_PARAMETER.to_owned(), self.kind.name().to_owned())]),
            content_source: self.source.as_ref().map(Into::into),
            accessible_topology: vec![topology],
        }
    }
}
