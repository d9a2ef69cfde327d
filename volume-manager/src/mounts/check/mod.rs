//! What a record says of a path, held against the mount table and what is at the path.

#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::{DeviceNumber, Inspection, Mount, MountId, MountIdentity, MountTable, Presence};

/// What a record says should be at a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Expectation {
    /// The path.
    pub path: PathBuf,
    /// What should be there.
    pub expected: Expected,
}

/// What should be at a path.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Expected {
    /// Nothing: it was unpublished or unstaged, and removed.
    Nothing,
    /// A mounted file system. What is `None` is not compared.
    FileSystem {
        /// The part of which file system.
        identity: Option<MountIdentity>,
        /// The file system, whichever part of it.
        device: Option<DeviceNumber>,
        /// Whether it can be only read.
        read_only: Option<bool>,
    },
    /// A block device.
    BlockDevice {
        /// Which; `None` takes any.
        device: Option<DeviceNumber>,
    },
}

impl Expectation {
    /// Nothing is at the path.
    #[must_use]
    pub fn nothing(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), expected: Expected::Nothing }
    }

    /// A file system is mounted at the path, whichever.
    #[must_use]
    pub fn file_system(path: impl Into<PathBuf>) -> Self {
        let expected = Expected::FileSystem { identity: None, device: None, read_only: None };
        Self { path: path.into(), expected }
    }

    /// A block device is at the path.
    #[must_use]
    pub fn block_device(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), expected: Expected::BlockDevice { device: None } }
    }

    /// And it is this part of this file system, as was seen before. Of no meaning to other than file systems.
    #[must_use]
    pub fn identity(mut self, expected: MountIdentity) -> Self {
        if let Expected::FileSystem { identity, .. } = &mut self.expected {
            *identity = Some(expected);
        }
        self
    }

    /// And it is on, or is, this device. Of no meaning where nothing is expected.
    #[must_use]
    pub fn device(mut self, expected: DeviceNumber) -> Self {
        if let Expected::FileSystem { device, .. } | Expected::BlockDevice { device } = &mut self.expected {
            *device = Some(expected);
        }
        self
    }

    /// And it can, or cannot, be written to. Of no meaning to other than file systems.
    #[must_use]
    pub fn read_only(mut self, expected: bool) -> Self {
        if let Expected::FileSystem { read_only, .. } = &mut self.expected {
            *read_only = Some(expected);
        }
        self
    }
}

/// How a path is, held against what its record says. Each disagreement has a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// All agree.
    AsExpected,
    /// A mount should be there and none is, over what is given.
    NothingMounted(Presence),
    /// The table has no mount there, and nobody looked at the path, without which nothing more can be said. The table
    /// has paths without symbolic links: only of a path that was found in it before is this the loss of a mount.
    NotLookedAt,
    /// The right mount is there as it should be, and another one lies on it. It is not lost: to undo it would take away
    /// what lies above, which is not ours.
    Covered {
        /// The right one.
        mount: MountId,
        /// The one that lies on top.
        by: MountId,
    },
    /// A mount is at the path, and one of a directory above hides it. If something should be mounted there, it is that;
    /// if nothing should, it is still mounted, and no call for the path reaches it.
    Hidden {
        /// The one that is hidden.
        mount: MountId,
    },
    /// A mount should be there, and the path itself is missing.
    MissingPath,
    /// Another file system is mounted there, or another part of it, or another device is there.
    AnotherDevice {
        /// What should be.
        expected: DeviceNumber,
        /// What is.
        found: DeviceNumber,
    },
    /// Another part of the right file system is mounted there.
    AnotherRoot {
        /// The part that should be.
        expected: PathBuf,
        /// The part that is.
        found: PathBuf,
    },
    /// A file system of another type is mounted there.
    AnotherType {
        /// The type that should be.
        expected: String,
        /// The type that is.
        found: String,
    },
    /// The right file system is there, and can be written where it should be only read, or the other way round.
    OptionsDiffer {
        /// Whether it is read-only; it should be the opposite.
        read_only: bool,
    },
    /// The right mount is there more than once, one on the other.
    StackedMounts {
        /// How many there are, at least 2.
        count: usize,
    },
    /// A mount is there that should be gone.
    StillMounted {
        /// It.
        mount: MountId,
    },
    /// Nothing is mounted, as it should be, and an empty place or leftover is still there.
    ///
    /// A symbolic link is one too, whatever it points to: no block volume counts as published by a link, so a link
    /// holds none.
    Leftover(Presence),
    /// A block device is there that should be gone: a volume is published by such a node without any mount.
    DeviceLeft(DeviceNumber),
    /// A file is where a device should be. What is written to it lands on the node's own disk (longhorn/longhorn#8009).
    RegularFileAtTarget {
        /// How many bytes it has.
        size: u64,
    },
    /// Something else is there that cannot be a target.
    UnfitTarget(Presence),
    /// Somebody else binds the file system, at these mount points.
    ForeignBind {
        /// Where, in the order of the table.
        mount_points: Vec<PathBuf>,
    },
    /// The mount is there and its server is gone.
    DeadMount {
        /// The number of the system's error.
        errno: i32,
    },
    /// The storage does not answer; nothing can be said.
    Unreachable,
}

/// Holds the record, the mount table and the path against each other.
///
/// `inspection` is not needed where the table alone decides, and then costs nothing: a file system that is expected and
/// in the table as expected. Without it, a dead or hanging mount is not noticed; where it would decide, the answer
/// is [`Verdict::NotLookedAt`].
#[must_use]
pub fn verdict(expectation: &Expectation, table: &MountTable, inspection: Option<&Inspection>) -> Verdict {
    let path = &expectation.path;
    let mount = mount_at(path, table, inspection);
    let presence = inspection.map(|inspection| inspection.presence);
    if presence == Some(Presence::Hung) {
        return Verdict::Unreachable;
    }
    // Before all that is said of what is seen there, since that is another mount then.
    if let Some(beneath) = beneath(expectation, mount, table) {
        return beneath;
    }
    if let Some(Presence::Dead { errno }) = presence {
        return Verdict::DeadMount { errno };
    }
    match &expectation.expected {
        Expected::Nothing => match (mount, presence) {
            (Some(mount), _) => Verdict::StillMounted { mount: mount.id },
            (None, None) => Verdict::NotLookedAt,
            (None, Some(Presence::Missing)) => Verdict::AsExpected,
            (None, Some(Presence::BlockDevice(device))) => Verdict::DeviceLeft(device),
            (None, Some(found)) => Verdict::Leftover(found),
        },
        Expected::BlockDevice { device } => match presence {
            None => Verdict::NotLookedAt,
            Some(Presence::BlockDevice(found)) => match device {
                Some(expected) if *expected != found => Verdict::AnotherDevice { expected: *expected, found },
                _ => stacked(mount, table).unwrap_or(Verdict::AsExpected),
            },
            Some(Presence::RegularFile { size }) => Verdict::RegularFileAtTarget { size },
            Some(Presence::Missing) => Verdict::MissingPath,
            Some(found) => Verdict::UnfitTarget(found),
        },
        Expected::FileSystem { .. } => match (mount, presence) {
            (Some(mount), _) => compare(&expectation.expected, mount)
                .or_else(|| stacked(Some(mount), table))
                .unwrap_or(Verdict::AsExpected),
            (None, None) => Verdict::NotLookedAt,
            (None, Some(Presence::Missing)) => Verdict::MissingPath,
            (None, Some(Presence::RegularFile { size })) => Verdict::RegularFileAtTarget { size },
            (None, Some(Presence::Directory)) => Verdict::NothingMounted(Presence::Directory),
            (None, Some(found)) => Verdict::UnfitTarget(found),
        },
    }
}

/// Whether somebody else holds what is staged, so that it must not be unstaged.
///
/// `seen` is the mount that the record has for the staging path, if one was seen there. Who holds it is searched for by what
/// is mounted at the path, also where another mount covers or hides it, and by that recorded mount, of which a bind can
/// live on after the path itself was unmounted. Of a volume with nothing recorded and nothing at the path there is
/// nothing to search by, and the answer is [`Verdict::AsExpected`].
///
/// If nobody holds it and another mount lies on it, the answer is [`Verdict::Covered`] or [`Verdict::Hidden`]: the driver's
/// unmount would meet that one.
///
/// `known` says which mount points are accounted for: the targets of the volume, and what other volumes' records have. They must
/// be among them, or one share used by two volumes looks like one that is held (kubernetes-csi/csi-driver-smb#353).
#[must_use]
pub fn held(
    staging: &Path,
    seen: Option<&MountIdentity>,
    table: &MountTable,
    known: impl Fn(&Path) -> bool,
) -> Verdict {
    let known = |path: &Path| path == staging || known(path);
    let top = table.at(staging);
    let is_ours = |mount: &&Mount| seen.is_none_or(|identity| identity.is_of(mount));
    let ours: Vec<&Mount> = table.exactly_at(staging).filter(is_ours).collect();
    let mut holders: Vec<&Mount> = ours.iter().flat_map(|mount| table.holders(mount, known)).collect();
    if let (true, Some(identity)) = (ours.is_empty(), seen) {
        holders.extend(table.holders_of(identity, known));
    }
    let mut mount_points = Vec::new();
    for holder in holders {
        if !mount_points.contains(&holder.mount_point) {
            mount_points.push(holder.mount_point.clone());
        }
    }
    if !mount_points.is_empty() {
        return Verdict::ForeignBind { mount_points };
    }
    let mut expectation = Expectation::file_system(staging);
    if let Some(identity) = seen {
        expectation = expectation.identity(identity.clone());
    }
    beneath(&expectation, top, table).unwrap_or(Verdict::AsExpected)
}

/// The mount at a path: by the path, or else, since a link on the way hides it from the table, by the id that was seen.
fn mount_at<'a>(path: &Path, table: &'a MountTable, inspection: Option<&Inspection>) -> Option<&'a Mount> {
    table.at(path).or_else(|| table.by_id(inspection?.mount?))
}

/// The mount that a record speaks of, if it is at the path and is not the one that is seen there.
fn beneath(expectation: &Expectation, seen: Option<&Mount>, table: &MountTable) -> Option<Verdict> {
    // The table's own spelling, if a link led there.
    let path = seen.map_or(&expectation.path, |seen| &seen.mount_point);
    let is_meant = |mount: &Mount| match &expectation.expected {
        Expected::FileSystem { .. } => !is_another(&expectation.expected, mount),
        Expected::Nothing | Expected::BlockDevice { .. } => true,
    };
    // One that is seen is what calls for the path are about. Only if it is not the one that is meant, it lies over that.
    if seen.is_some_and(is_meant) {
        return None;
    }
    let mut meant = table.exactly_at(path).filter(|mount| is_meant(mount));
    let meant = meant.next()?;
    let by =
        seen.filter(|seen| table.stack(path).iter().any(|mount| mount.id == meant.id) && seen.id != meant.id);
    Some(match by {
        Some(by) => Verdict::Covered { mount: meant.id, by: by.id },
        None => Verdict::Hidden { mount: meant.id },
    })
}

/// Whether a mount is not the part of the file system that is expected, whatever can be done with it.
fn is_another(expected: &Expected, mount: &Mount) -> bool {
    !matches!(compare(expected, mount), None | Some(Verdict::OptionsDiffer { .. }))
}

fn stacked(mount: Option<&Mount>, table: &MountTable) -> Option<Verdict> {
    let count = table.stack(&mount?.mount_point).len();
    (count > 1).then_some(Verdict::StackedMounts { count })
}

/// The first thing in which a mount is not as expected.
fn compare(expected: &Expected, mount: &Mount) -> Option<Verdict> {
    let Expected::FileSystem { identity, device, read_only } = expected else { return None };
    let device = identity.as_ref().map(|identity| identity.device).or(*device);
    if let Some(expected) = device.filter(|device| *device != mount.device) {
        return Some(Verdict::AnotherDevice { expected, found: mount.device });
    }
    if let Some(identity) = identity.as_ref().filter(|identity| identity.root != mount.root) {
        return Some(Verdict::AnotherRoot { expected: identity.root.clone(), found: mount.root.clone() });
    }
    if let Some(identity) = identity.as_ref().filter(|identity| identity.fs_type != mount.fs_type) {
        let name = |fs_type: &OsStr| fs_type.to_string_lossy().into_owned();
        return Some(Verdict::AnotherType { expected: name(&identity.fs_type), found: name(&mount.fs_type) });
    }
    let is_read_only = mount.is_read_only();
    read_only
        .is_some_and(|expected| expected != is_read_only)
        .then_some(Verdict::OptionsDiffer { read_only: is_read_only })
}
