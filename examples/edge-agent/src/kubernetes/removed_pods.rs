//! Removes the directories of pods that have no volume any more.

use std::fs;
use std::path::{Path, PathBuf};

use super::layout::volume_directories;

/// Removes the empty directories of a pod's volumes, from the innermost to the pod's own. A directory with entries
/// or a mount stays, since `rmdir` fails for it.
pub(super) fn remove_empty(pod: &Path) {
    for plugin in volume_directories(pod) {
        for volume in entries(&plugin) {
            let _ = fs::remove_dir(volume);
        }
        let _ = fs::remove_dir(&plugin);
        if let Some(kind) = plugin.parent() {
            let _ = fs::remove_dir(kind);
        }
    }
    let _ = fs::remove_dir(pod);
}

/// Returns the directories of all pods that had volumes of this plugin, with their UIDs.
pub(super) fn pods(directory: &Path) -> Vec<(String, PathBuf)> {
    let had_volumes = |pod: &PathBuf| volume_directories(pod).iter().any(|plugin| plugin.is_dir());
    let pods = entries(directory).into_iter().filter(had_volumes);
    let named = pods.filter_map(|pod| Some((pod.file_name()?.to_str()?.to_owned(), pod)));
    named.collect()
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removes_empty_directories_of_a_pod_only() {
        let directory = tempfile::tempdir().unwrap();
        let pod = directory.path().join("9f0c");
        let [volumes, devices] = volume_directories(&pod);
        fs::create_dir_all(volumes.join("pvc-1")).unwrap();
        fs::create_dir_all(&devices).unwrap();
        fs::create_dir_all(volumes.join("pvc-2/mount")).unwrap();
        fs::write(volumes.join("pvc-2/mount/data"), "x").unwrap();
        assert_eq!(pods(directory.path()), [("9f0c".to_owned(), pod.clone())]);
        remove_empty(&pod);
        assert!(!volumes.join("pvc-1").exists() && !devices.exists());
        assert_eq!(fs::read(volumes.join("pvc-2/mount/data")).unwrap(), b"x");
        fs::remove_dir_all(volumes.join("pvc-2")).unwrap();
        remove_empty(&pod);
        assert!(!pod.exists() && directory.path().exists());
        fs::create_dir_all(pod.join("containers")).unwrap();
        assert_eq!(pods(directory.path()), []);
    }
}
