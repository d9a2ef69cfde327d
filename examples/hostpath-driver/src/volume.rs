//! What the driver remembers of a volume.

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

/// The parameter that chooses a [`VolumeKind`].
pub const KIND_PARAMETER: &str = "kind";

/// Most target paths at which one volume is published at once.
pub const MAX_TARGETS: usize = 256;

/// What a volume is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VolumeKind {
    /// A directory of the host. Its size is counted, not enforced.
    Directory,
    /// A sparse file behind a loop device, with a filesystem of its own or as a raw block device.
    Loop,
}

impl VolumeKind {
    /// Its name, as in the parameter `kind`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Directory => "directory",
            Self::Loop => "loop",
        }
    }

    /// Takes a name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Directory, Self::Loop].into_iter().find(|kind| kind.name() == name)
    }

    /// Whether a volume of this kind can do what is asked.
    pub const fn provides(self, capability: &Capability) -> bool {
        match self {
            Self::Directory => matches!(capability.access, Access::Mount { fs_type: None, .. }),
            Self::Loop => true,
        }
    }
}

/// How far the making or the removal of something has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Phase {
    /// Its data is being made, and nobody has seen it yet.
    Creating,
    /// It can be used.
    Ready,
    /// Its data is being removed.
    Deleting,
}

/// Where the first content of a volume came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ContentSource {
    /// From a snapshot.
    Snapshot(ResourceId),
    /// From another volume.
    Volume(ResourceId),
}

impl ContentSource {
    /// Checks the source of a request.
    ///
    /// # Errors
    /// If it is empty, or its id can be none of ours.
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

/// What is known of the filesystem in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Not made by this driver: blank, copied, or written by the user of a block volume.
    Unknown,
    /// The making was begun, and nobody could use it since: it may be begun again.
    Started(FileSystem),
    /// Made.
    Done(FileSystem),
}

/// What a volume is attached, staged or published for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// How it is used, and by whom at once.
    pub capability: Capability,
    /// Whether for reading only.
    pub read_only: bool,
}

impl fmt::Display for Placement {
    // Without the mount flags, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}{}", self.capability.mode(), if self.read_only { " readonly" } else { "" })
    }
}

/// Everything that is remembered of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// Its id.
    pub id: ResourceId,
    /// The name under which it was asked for.
    pub name: String,
    /// How far it is.
    pub phase: Phase,
    /// What it is made of.
    pub kind: VolumeKind,
    /// Its size.
    pub capacity_bytes: u64,
    /// The parameters with which it was asked for.
    pub parameters: BTreeMap<String, String>,
    /// The parameters that ControllerModifyVolume changes.
    pub mutable_parameters: BTreeMap<String, String>,
    /// Where its first content came from.
    pub source: Option<ContentSource>,
    /// The filesystem in its image.
    pub format: Format,
    /// Whether the image has become larger than the filesystem in it.
    pub grow: bool,
    /// The attachment to this node.
    pub attachment: Option<Placement>,
    /// The staging path, and what for.
    pub staged: Option<(String, Placement)>,
    /// Target paths, and what for.
    pub published: BTreeMap<String, Placement>,
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
    /// Whether callers may know of it.
    pub fn is_ready(&self) -> bool {
        self.phase == Phase::Ready
    }

    /// The volume as the spec has it, reachable from the node with these topology segments.
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
