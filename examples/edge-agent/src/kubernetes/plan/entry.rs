//! The entries of a plan.

use volume_manager::{ConsumerId, VolumeKey};

use edge_csi_common::kubernetes::message::{Pod, PodVolume, PodVolumeStatus};

/// The result for a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct PodVolumePlan {
    /// The names of the pod and the volume; the result is added later.
    pub(in super::super) status: PodVolumeStatus,
    /// The consumer of the volume, or why there is none.
    pub(in super::super) assignment: Assignment,
    /// Whether the files stay unchanged if the root already has the pod's group.
    pub(in super::super) on_root_mismatch: bool,
    /// Whether one of the volume's access modes is for one node; some fsGroup policies require that.
    pub(in super::super) read_write_once: bool,
}

/// The consumer that a volume of a pod is assigned to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Assignment {
    /// The pod uses the volume as this consumer.
    Assigned {
        key: VolumeKey,
        /// The pod's UID and its name for the volume.
        consumer: ConsumerId,
        /// Why an object is missing, if one is: the consumer then stays unchanged.
        missing: Option<String>,
    },
    /// The pod gets no volume. The text is the reason, for users.
    Unassigned(String),
}

impl PodVolumePlan {
    pub(super) fn new(pod: &Pod, volume: &PodVolume, assignment: Assignment) -> Self {
        let status = PodVolumeStatus {
            namespace: pod.namespace.clone(),
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            volume: volume.name.clone(),
            ..PodVolumeStatus::default()
        };
        Self { status, assignment, on_root_mismatch: pod.fs_group_on_root_mismatch, read_write_once: false }
    }
}

/// A claim's request to expand its volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Expansion {
    pub(in super::super) key: VolumeKey,
    /// The claim's namespace.
    pub(in super::super) namespace: String,
    /// The claim's name.
    pub(in super::super) name: String,
    /// The claim's UID.
    pub(in super::super) uid: String,
    /// The requested size in bytes.
    pub(in super::super) bytes: u64,
}
