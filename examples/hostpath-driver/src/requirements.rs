//! The missing permissions and tools of this process, reported once at the start instead of at the first mount.

use std::fs;
use std::path::Path;

use rustix::thread::CapabilitySet;

/// Returns true if this process has an effective capability of capabilities(7).
pub(super) fn has_capability(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

// Tools, each with the volumes that need it.
const TOOLS: &[(&str, &str)] = &[
    ("losetup", "loop volumes"),
    ("mount", "loop volumes"),
    ("blkid", "loop volumes"),
    ("mkfs.ext4", "ext4"),
    ("mkfs.xfs", "xfs"),
    ("cp", "snapshots of directories"),
    ("rm", "deleting volumes"),
];

/// Returns one line about unavailable node features, or `None` if all are available.
pub fn missing() -> Option<String> {
    let mut missing = Vec::new();
    if !has_capability(CapabilitySet::SYS_ADMIN) {
        missing.push("no right to mount (CAP_SYS_ADMIN): staging and publishing will fail".to_owned());
    } else if !Path::new("/dev/loop-control").exists() || !is_first_user_namespace() {
        missing.push("no loop devices: only volumes of kind directory can be staged".to_owned());
    } else if !has_capability(CapabilitySet::SYS_RESOURCE) {
        missing
            .push("no CAP_SYS_RESOURCE: ext4 grows when it is staged and not while it is mounted".to_owned());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_installed = |tool: &str| std::env::split_paths(&path).any(|folder| folder.join(tool).is_file());
    missing.extend(
        TOOLS
            .iter()
            .filter(|(tool, _)| !is_installed(tool))
            .map(|(tool, volumes)| format!("no {tool} in PATH, for {volumes}")),
    );
    (!missing.is_empty()).then(|| missing.join("; "))
}

/// Returns true outside of nested user namespaces, in which the kernel refuses mounts of block devices.
fn is_first_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let fields: Vec<_> = map.split_whitespace().collect();
    fields == ["0", "0", "4294967295"]
}
