//! Where kubelet has the volumes of pods, and what it calls those that have no name of their own.

use std::path::{Path, PathBuf};

use csi_proto::VolumeId;
use csi_proto::name::InvalidVolumeId;
use sha2::{Digest, Sha256};
use volume_manager::driver::{InvalidMountPath, MountPath};

use edge_csi_common::excerpt::excerpt;

/// The plugin's name as a directory has it.
const PLUGIN: &str = "kubernetes.io~csi";

/// The directory of kubelet, or of its replacement.
#[derive(Debug, Clone)]
pub(super) struct KubeletDirectory(PathBuf);

/// Why a pod's volume has no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoPlace {
    /// A name that is more, or less, than the name of a directory.
    #[error("{field} {found:?} is not the name of one directory")]
    Name {
        /// Which name.
        field: &'static str,
        /// Its beginning.
        found: String,
    },
    /// The path is not valid for a driver.
    #[error(transparent)]
    Path(#[from] InvalidMountPath),
}

impl KubeletDirectory {
    /// The directory at a path without symbolic links, as the mount table has it.
    pub(super) fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where all pods have their directories, each under its UID.
    pub(super) fn pods(&self) -> PathBuf {
        self.0.join("pods")
    }

    /// Where a pod has a volume with a file system. `name` is that of the PersistentVolume, or of the inline volume.
    pub(super) fn mount(&self, uid: &str, name: &str) -> Result<MountPath, NoPlace> {
        Ok(MountPath::new(self.volume("volumes", uid, name)?.join("mount"))?)
    }

    /// Where a pod has a raw block device.
    pub(super) fn device(&self, uid: &str, name: &str) -> Result<MountPath, NoPlace> {
        Ok(MountPath::new(self.volume("volumeDevices", uid, name)?)?)
    }

    fn volume(&self, kind: &str, uid: &str, name: &str) -> Result<PathBuf, NoPlace> {
        let uid = one_name("the pod's UID", uid)?;
        Ok(self.pods().join(uid).join(kind).join(PLUGIN).join(one_name("the volume", name)?))
    }
}

fn one_name<'a>(field: &'static str, name: &'a str) -> Result<&'a str, NoPlace> {
    if matches!(name, "" | "." | "..") || name.contains('/') {
        return Err(NoPlace::Name { field, found: excerpt(name, 64).to_owned() });
    }
    Ok(name)
}

/// The directories of a pod that volumes were in, each before the one that it is in.
pub(super) fn directories_of_volumes(pod: &Path) -> [PathBuf; 2] {
    ["volumes", "volumeDevices"].map(|kind| pod.join(kind).join(PLUGIN))
}

/// The id of an inline volume: `csi-` and the SHA-256 of the pod's UID and the volume's name in the pod, in hexadecimal.
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
    fn places_are_those_of_kubelet() {
        let directory = KubeletDirectory::new("/var/lib/kubelet");
        let mount = directory.mount("9f0c", "pvc-1").unwrap();
        assert_eq!(mount.as_str(), "/var/lib/kubelet/pods/9f0c/volumes/kubernetes.io~csi/pvc-1/mount");
        let device = directory.device("9f0c", "pvc-1").unwrap();
        assert_eq!(device.as_str(), "/var/lib/kubelet/pods/9f0c/volumeDevices/kubernetes.io~csi/pvc-1");
    }

    #[test]
    fn a_name_that_leads_elsewhere_has_no_place() {
        let directory = KubeletDirectory::new("/var/lib/kubelet");
        for bad in ["", ".", "..", "../../etc", "a/b", "/etc"] {
            assert!(matches!(directory.mount(bad, "pvc-1"), Err(NoPlace::Name { .. })), "{bad}");
            assert!(matches!(directory.device("9f0c", bad), Err(NoPlace::Name { .. })), "{bad}");
        }
        assert!(matches!(directory.mount("9f0c", "a\nb"), Err(NoPlace::Path(_))));
    }

    #[test]
    fn inline_volume_id_is_kubelets() {
        // printf %s%s 9f0c scratch | sha256sum
        let id = inline_volume_id("9f0c", "scratch").unwrap();
        assert_eq!(id.as_str(), "csi-7e2d7252d6303bffb882a258a67e5b674e95d46320247ee911d00571f97debc8");
    }
}
