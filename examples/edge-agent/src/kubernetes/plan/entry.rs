//! What a plan says of single things.

use volume_manager::{ConsumerId, VolumeKey};

use edge_csi_common::kubernetes::message::{Pod, PodVolume, PodVolumeStatus};

/// The result for a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct PodVolumePlan {
    /// Which it is, and nothing yet of how it is.
    pub(in super::super) status: PodVolumeStatus,
    /// Where it goes.
    pub(in super::super) place: Place,
    /// Whether its files are left alone if its root is the pod's group's.
    pub(in super::super) on_root_mismatch: bool,
    /// Whether one of the volume's access modes is for one node, as policies of groups ask.
    pub(in super::super) read_write_once: bool,
}

/// Where a volume of a pod goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Place {
    /// To this consumer of this volume.
    At {
        /// The volume.
        key: VolumeKey,
        /// Under which name the pod has it.
        consumer: ConsumerId,
        /// What cannot be found now, if something cannot: then it stays as it was.
        unsure: Option<String>,
    },
    /// Nowhere, and why, for people.
    Nowhere(String),
}

impl PodVolumePlan {
    pub(super) fn new(pod: &Pod, volume: &PodVolume, place: Place) -> Self {
        let status = PodVolumeStatus {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            volume: volume.name.clone(),
            ..PodVolumeStatus::default()
        };
        Self { status, place, on_root_mismatch: pod.fs_group_on_root_mismatch, read_write_once: false }
    }
}

/// A volume that is to be larger.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Expansion {
    /// The volume.
    pub(in super::super) key: VolumeKey,
    /// The namespace of the claim that asks.
    pub(in super::super) namespace: String,
    /// The claim's name.
    pub(in super::super) name: String,
    /// The claim's UID.
    pub(in super::super) uid: String,
    /// The size, in bytes.
    pub(in super::super) bytes: u64,
}
