//! The paths at which kubelet publishes the volumes of pods, and the ids of inline volumes.

use std::path::{Path, PathBuf};

use csi_proto::VolumeId;
use csi_proto::name::InvalidVolumeId;
use sha2::{Digest, Sha256};
use volume_manager::driver::{InvalidMountPath, MountPath};

use edge_csi_common::excerpt::excerpt;

/// The directory name of kubelet's CSI plugin.
const PLUGIN: &str = "kubernetes.io~csi";

/// The root directory of kubelet, such as `/var/lib/kubelet`.
#[derive(Debug, Clone)]
pub(super) struct KubeletDirectory(PathBuf);

/// Why a pod's volume has no valid path.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum InvalidPath {
    /// A name is not the name of one directory.
    #[error("invalid {field} {found:?}; expected the name of one directory")]
    Name {
        /// What has the name.
        field: &'static str,
        /// The beginning of the name.
        found: String,
    },
    /// The path is invalid as a target path of CSI.
    #[error(transparent)]
    Path(#[from] InvalidMountPath),
}

impl KubeletDirectory {
    /// Creates the layout below a path, which has no symbolic links, like the paths in the mount table.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Returns the directory that contains the directories of all pods, each named by the pod's UID.
    pub(super) fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Returns the target path of a pod's filesystem volume. `name` is that of the PersistentVolume, or of the
    /// inline volume.
    pub(super) fn mount(&self, uid: &str, name: &str) -> Result<MountPath, InvalidPath> {
        Ok(MountPath::new(self.volume("volumes", uid, name)?.join("mount"))?)
    }

    /// Returns the target path of a pod's raw block volume.
    pub(super) fn device(&self, uid: &str, name: &str) -> Result<MountPath, InvalidPath> {
        Ok(MountPath::new(self.volume("volumeDevices", uid, name)?)?)
    }

    fn volume(&self, kind: &str, uid: &str, name: &str) -> Result<PathBuf, InvalidPath> {
        let uid = directory_name("pod UID", uid)?;
        Ok(self.pods().join(uid).join(kind).join(PLUGIN).join(directory_name("volume name", name)?))
    }
}

fn directory_name<'a>(field: &'static str, name: &'a str) -> Result<&'a str, InvalidPath> {
    if matches!(name, "" | "." | "..") || name.contains('/') {
        return Err(InvalidPath::Name { field, found: excerpt(name, 64).to_owned() });
    }
    Ok(name)
}

/// Returns the directories of a pod that contain its volumes.
pub(super) fn volume_directories(pod: &Path) -> [PathBuf; 2] {
    ["volumes", "volumeDevices"].map(|kind| pod.join(kind).join(PLUGIN))
}

/// Returns the id of an inline volume: `csi-` and the SHA-256 of the pod's UID and the volume's name in the pod,
/// in hexadecimal.
pub(super) fn inline_volume_id(uid: &str, name: &str) -> Result<VolumeId, InvalidVolumeId> {
    let mut digest = Sha256::new();
    digest.update(uid.as_bytes());
    digest.update(name.as_bytes());
    let hexadecimal: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    VolumeId::new(format!("csi-{hexadecimal}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_those_of_kubelet() {
        let directory = KubeletDirectory::new("/var/lib/kubelet");
        let mount = directory.mount("9f0c", "pvc-1").unwrap();
        assert_eq!(mount.as_str(), "/var/lib/kubelet/pods/9f0c/volumes/kubernetes.io~csi/pvc-1/mount");
        let device = directory.device("9f0c", "pvc-1").unwrap();
        assert_eq!(device.as_str(), "/var/lib/kubelet/pods/9f0c/volumeDevices/kubernetes.io~csi/pvc-1");
    }

    #[test]
    fn rejects_names_that_leave_their_directory() {
        let directory = KubeletDirectory::new("/var/lib/kubelet");
        for bad in ["", ".", "..", "../../etc", "a/b", "/etc"] {
            assert!(matches!(directory.mount(bad, "pvc-1"), Err(InvalidPath::Name { .. })), "{bad}");
            assert!(matches!(directory.device("9f0c", bad), Err(InvalidPath::Name { .. })), "{bad}");
        }
        assert!(matches!(directory.mount("9f0c", "a\nb"), Err(InvalidPath::Path(_))));
    }

    #[test]
    fn inline_volume_id_is_kubelets() {
        // printf %s%s 9f0c scratch | sha256sum
        let id = inline_volume_id("9f0c", "scratch").unwrap();
        assert_eq!(id.as_str(), "csi-7e2d7252d6303bffb882a258a67e5b674e95d46320247ee911d00571f97debc8");
    }
}
