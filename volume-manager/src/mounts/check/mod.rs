//! Compares the expected state of a path with the mount table and the path.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{DeviceNumber, Inspection, Mount, MountId, MountIdentity, MountTable, PathState};

/// A path with its expected state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Expectation {
    /// The path.
    pub path: PathBuf,
    /// The expected state.
    pub expected: Expected,
}

/// The expected state of a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expected {
    /// Nothing: the volume was unpublished or unstaged, and the entry removed.
    Nothing,
    /// A mounted file system. Fields that are `None` are not compared.
    FileSystem {
        /// The file system and the mounted part of it.
        identity: Option<MountIdentity>,
        /// The device of the file system, whatever part is mounted.
        device: Option<DeviceNumber>,
        /// Whether the mount is read-only.
        read_only: Option<bool>,
    },
    /// A block device.
    BlockDevice {
        /// The device; `None` accepts any.
        device: Option<DeviceNumber>,
    },
}

impl Expectation {
    /// Expects that the path does not exist.
    #[must_use]
    pub fn nothing(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), expected: Expected::Nothing }
    }

    /// Expects a mounted file system.
    #[must_use]
    pub fn file_system(path: impl Into<PathBuf>) -> Self {
        let expected = Expected::FileSystem { identity: None, device: None, read_only: None };
        Self { path: path.into(), expected }
    }

    /// Expects a block device.
    #[must_use]
    pub fn block_device(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), expected: Expected::BlockDevice { device: None } }
    }

    /// Also expects the file system and mounted part of an identity. Ignored unless a file system is expected.
    #[must_use]
    pub fn identity(mut self, expected: MountIdentity) -> Self {
        if let Expected::FileSystem { identity, .. } = &mut self.expected {
            *identity = Some(expected);
        }
        self
    }

    /// Also expects this device. Ignored if nothing is expected at the path.
    #[must_use]
    pub fn device(mut self, expected: DeviceNumber) -> Self {
        if let Expected::FileSystem { device, .. } | Expected::BlockDevice { device } = &mut self.expected {
            *device = Some(expected);
        }
        self
    }

    /// Also expects a read-only or a writable mount. Ignored unless a file system is expected.
    #[must_use]
    pub fn read_only(mut self, expected: bool) -> Self {
        if let Expected::FileSystem { read_only, .. } = &mut self.expected {
            *read_only = Some(expected);
        }
        self
    }
}

/// The result of a comparison of a path with its expected state. Each kind of mismatch is a variant.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MountCheck {
    /// The state is as expected.
    AsExpected,
    /// A mount is expected, and nothing is mounted on the path, whose state is given.
    NotMounted(PathState),
    /// The table has no mount at the path, and the path was not inspected, so nothing more is known. The table has
    /// paths without symbolic links, so the mount is certainly lost only if the path was in the table before.
    NotInspected,
    /// The expected mount exists, and another mount is on top of it. The expected mount is not lost, and an
    /// unmount would remove the upper mount, which is foreign.
    Overmounted {
        /// The expected mount.
        mount: MountId,
        /// The mount on top.
        by: MountId,
    },
    /// A mount is at the path, and a mount on a parent directory hides it. If a mount is expected, the hidden
    /// mount is the expected one. If nothing is expected, the hidden mount still exists, and no call for the path
    /// reaches it.
    Shadowed {
        /// The hidden mount.
        mount: MountId,
    },
    /// A mount or a device is expected, and the path does not exist.
    MissingPath,
    /// Another file system is mounted, or another device is at the path.
    WrongDevice {
        /// The expected device.
        expected: DeviceNumber,
        /// The device found.
        found: DeviceNumber,
    },
    /// Another part of the expected file system is mounted.
    WrongRoot {
        /// The expected part.
        expected: PathBuf,
        /// The part found.
        found: PathBuf,
    },
    /// A file system of another type is mounted.
    WrongFsType {
        /// The expected type.
        expected: String,
        /// The type found.
        found: String,
    },
    /// The expected file system is writable instead of read-only, or read-only instead of writable.
    OptionsDiffer {
        /// Whether the mount is read-only; the opposite is expected.
        read_only: bool,
    },
    /// The expected mount exists more than once, stacked.
    StackedMounts {
        /// The number of mounts, at least 2.
        count: usize,
    },
    /// Nothing is expected at the path, and a mount exists.
    StillMounted {
        /// The mount.
        mount: MountId,
    },
    /// Nothing is mounted, as expected, but the path still exists.
    ///
    /// Symbolic links count as stale, whatever their target: a link does not publish a block volume.
    StaleMountPoint(PathState),
    /// Nothing is expected, and a block device exists: a device node publishes a volume without a mount.
    StaleDevice(DeviceNumber),
    /// A device or a mount is expected, and a regular file found. Writes to it would land on the node's own disk
    /// (longhorn/longhorn#8009).
    RegularFileAtTarget {
        /// The size of the file in bytes.
        size: u64,
    },
    /// The path has a state that no target can have.
    InvalidTarget(PathState),
    /// Foreign bind mounts of the file system exist.
    ForeignBind {
        /// Their mount points, in the order of the table.
        mount_points: Vec<PathBuf>,
    },
    /// The mount exists and lost its server.
    DeadMount {
        /// The errno.
        errno: i32,
    },
    /// The storage does not answer; the state is unknown.
    Unreachable,
}

/// Compares the expected state of a path with the mount table and the inspected path.
///
/// `inspection` is not needed where the table is sufficient: a file system is expected, and is in the table.
/// Without an inspection, a dead or hanging mount is not noticed. If only an inspection could decide, the result
/// is [`MountCheck::NotInspected`].
#[must_use]
pub fn check_mount(
    expectation: &Expectation,
    table: &MountTable,
    inspection: Option<&Inspection>,
) -> MountCheck {
    let path = &expectation.path;
    let mount = mount_at(path, table, inspection);
    let state = inspection.map(|inspection| inspection.state);
    if state == Some(PathState::Hung) {
        return MountCheck::Unreachable;
    }
    // Checked before the inspected state, which belongs to the upper mount.
    if let Some(mismatch) = check_beneath(expectation, mount, table) {
        return mismatch;
    }
    if let Some(PathState::Dead { errno }) = state {
        return MountCheck::DeadMount { errno };
    }
    match &expectation.expected {
        Expected::Nothing => match (mount, state) {
            (Some(mount), _) => MountCheck::StillMounted { mount: mount.id },
            (None, None) => MountCheck::NotInspected,
            (None, Some(PathState::Missing)) => MountCheck::AsExpected,
            (None, Some(PathState::BlockDevice(device))) => MountCheck::StaleDevice(device),
            (None, Some(found)) => MountCheck::StaleMountPoint(found),
        },
        Expected::BlockDevice { device } => match state {
            None => MountCheck::NotInspected,
            Some(PathState::BlockDevice(found)) => match device {
                Some(expected) if *expected != found => {
                    MountCheck::WrongDevice { expected: *expected, found }
                }
                _ => stacked(mount, table).unwrap_or(MountCheck::AsExpected),
            },
            Some(PathState::RegularFile { size }) => MountCheck::RegularFileAtTarget { size },
            Some(PathState::Missing) => MountCheck::MissingPath,
            Some(found) => MountCheck::InvalidTarget(found),
        },
        Expected::FileSystem { .. } => match (mount, state) {
            (Some(mount), _) => compare(&expectation.expected, mount)
                .or_else(|| stacked(Some(mount), table))
                .unwrap_or(MountCheck::AsExpected),
            (None, None) => MountCheck::NotInspected,
            (None, Some(PathState::Missing)) => MountCheck::MissingPath,
            (None, Some(PathState::RegularFile { size })) => MountCheck::RegularFileAtTarget { size },
            (None, Some(PathState::Directory)) => MountCheck::NotMounted(PathState::Directory),
            (None, Some(found)) => MountCheck::InvalidTarget(found),
        },
    }
}

/// Checks that a staged file system is unused, so that it can be unstaged.
///
/// `recorded` is the mount at the staging path according to the record. Users of the file system are searched by
/// the mount at the path, also if another mount covers or hides it, and by the recorded mount: a bind of it can
/// remain after the path itself was unmounted. Without a recorded mount and a mount at the path, the result is
/// [`MountCheck::AsExpected`].
///
/// If the file system is unused and another mount is on top of it, the result is [`MountCheck::Overmounted`] or
/// [`MountCheck::Shadowed`]: the driver would unmount the wrong mount.
///
/// `known` returns true for a target of the volume, and for a mount point in the record of another volume. The
/// latter must be included, or a share that two volumes use appears to be in foreign use
/// (kubernetes-csi/csi-driver-smb#353).
#[must_use]
pub fn check_unused(
    staging: &Path,
    recorded: Option<&MountIdentity>,
    table: &MountTable,
    known: impl Fn(&Path) -> bool,
) -> MountCheck {
    let known = |path: &Path| path == staging || known(path);
    let top = table.at(staging);
    let is_own = |mount: &&Mount| recorded.is_none_or(|identity| identity.is_of(mount));
    let own: Vec<&Mount> = table.exactly_at(staging).filter(is_own).collect();
    let mut holders: Vec<&Mount> = own.iter().flat_map(|mount| table.holders(mount, known)).collect();
    if let (true, Some(identity)) = (own.is_empty(), recorded) {
        holders.extend(table.holders_of(identity, known));
    }
    let mut mount_points = Vec::new();
    for holder in holders {
        if !mount_points.contains(&holder.mount_point) {
            mount_points.push(holder.mount_point.clone());
        }
    }
    if !mount_points.is_empty() {
        return MountCheck::ForeignBind { mount_points };
    }
    let mut expectation = Expectation::file_system(staging);
    if let Some(identity) = recorded {
        expectation = expectation.identity(identity.clone());
    }
    check_beneath(&expectation, top, table).unwrap_or(MountCheck::AsExpected)
}

/// Finds the mount at a path: by the path, or by the inspected mount id, since the table has paths without
/// symbolic links.
fn mount_at<'a>(path: &Path, table: &'a MountTable, inspection: Option<&Inspection>) -> Option<&'a Mount> {
    table.at(path).or_else(|| table.by_id(inspection?.mount?))
}

/// Checks whether the expected mount is beneath the visible one.
fn check_beneath(
    expectation: &Expectation,
    visible: Option<&Mount>,
    table: &MountTable,
) -> Option<MountCheck> {
    // A mount point has no symbolic links, which the path may have.
    let path = visible.map_or(&expectation.path, |visible| &visible.mount_point);
    let is_expected = |mount: &Mount| match &expectation.expected {
        Expected::FileSystem { .. } => !is_other_file_system(&expectation.expected, mount),
        Expected::Nothing | Expected::BlockDevice { .. } => true,
    };
    // Calls for the path reach the visible mount. It covers the expected one only if it is another mount.
    if visible.is_some_and(is_expected) {
        return None;
    }
    let mut beneath = table.exactly_at(path).filter(|mount| is_expected(mount));
    let beneath = beneath.next()?;
    let by = visible.filter(|visible| {
        table.stack(path).iter().any(|mount| mount.id == beneath.id) && visible.id != beneath.id
    });
    Some(match by {
        Some(by) => MountCheck::Overmounted { mount: beneath.id, by: by.id },
        None => MountCheck::Shadowed { mount: beneath.id },
    })
}

/// Whether a mount is not of the expected file system and part, whatever its access mode.
fn is_other_file_system(expected: &Expected, mount: &Mount) -> bool {
    !matches!(compare(expected, mount), None | Some(MountCheck::OptionsDiffer { .. }))
}

fn stacked(mount: Option<&Mount>, table: &MountTable) -> Option<MountCheck> {
    let count = table.stack(&mount?.mount_point).len();
    (count > 1).then_some(MountCheck::StackedMounts { count })
}

/// The first mismatch between a mount and the expected file system.
fn compare(expected: &Expected, mount: &Mount) -> Option<MountCheck> {
    let Expected::FileSystem { identity, device, read_only } = expected else { return None };
    let device = identity.as_ref().map(|identity| identity.device).or(*device);
    if let Some(expected) = device.filter(|device| *device != mount.device) {
        return Some(MountCheck::WrongDevice { expected, found: mount.device });
    }
    if let Some(identity) = identity.as_ref().filter(|identity| identity.root != mount.root) {
        return Some(MountCheck::WrongRoot { expected: identity.root.clone(), found: mount.root.clone() });
    }
    if let Some(identity) = identity.as_ref().filter(|identity| identity.fs_type != mount.fs_type) {
        let name = |fs_type: &OsStr| fs_type.to_string_lossy().into_owned();
        return Some(MountCheck::WrongFsType {
            expected: name(&identity.fs_type),
            found: name(&mount.fs_type),
        });
    }
    let is_read_only = mount.is_read_only();
    read_only
        .is_some_and(|expected| expected != is_read_only)
        .then_some(MountCheck::OptionsDiffer { read_only: is_read_only })
}
