//! Who else holds the file system of a staged volume.

use std::path::Path;

use super::super::Mount;
use super::MountTable;

/// What another mount of a file system has to do with the one asked about.
#[allow(clippy::exhaustive_enums, reason = "a share used twice is the one case that can be told apart")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kinship {
    /// It keeps the file system in use: a bind of it, or another mount of the same device.
    Bind,
    /// It is of the same network share, which the kernel keeps as one file system however often it is mounted. It may
    /// have been mounted by itself, for another volume or by an administrator, and then holds nothing of this one.
    SameShare,
}

/// A mount that shows what the one asked about shows, or a part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder<'a> {
    /// The mount.
    pub mount: &'a Mount,
    /// What it has to do with the one asked about.
    pub kinship: Kinship,
}

/// The file systems of which two mounts of one share are one file system to the kernel.
const SHARES: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "virtiofs"];

impl MountTable {
    /// Who else holds the file system of `mount`, without the mount points that are `known`: the targets of the volume, and
    /// what the records of the other volumes account for.
    ///
    /// Left out besides is what is no holder though it looks like one: what shows more of the file system, such as the host's
    /// own disk of which a driver has bound a directory; and the same mount, seen a second time because the
    /// directory that it is in is itself bind-mounted elsewhere, and mounts spread. Such a mirror comes and goes with its
    /// original.
    pub fn holders<'a>(&'a self, mount: &'a Mount, known: impl Fn(&Path) -> bool) -> Vec<Holder<'a>> {
        let kin: Vec<&Mount> =
            self.of_device(mount.device).filter(|other| other.root.starts_with(&mount.root)).collect();
        let accounted = |other: &Mount| other.mount_point == mount.mount_point || known(&other.mount_point);
        let ours: Vec<&Mount> = kin.iter().copied().filter(|other| accounted(other)).collect();
        let foreign = kin.into_iter().filter(|other| !accounted(other));
        let foreign = foreign.filter(|other| !ours.iter().any(|own| self.is_mirror(other, own)));
        foreign.map(|other| Holder { mount: other, kinship: kinship(other, mount) }).collect()
    }

    /// Whether two mounts are one, which was spread from one directory to another that is a bind of it.
    fn is_mirror(&self, one: &Mount, other: &Mount) -> bool {
        let (Some(below), Some(below_other)) = (self.below(one), self.below(other)) else { return false };
        one.root == other.root
            && below.id != below_other.id
            && below.device == below_other.device
            && are_kin(below, below_other)
            && below
                .within(&one.mount_point)
                .is_some_and(|at| below_other.within(&other.mount_point) == Some(at))
    }
}

/// Whether mounts spread from the one to the other.
fn are_kin(one: &Mount, other: &Mount) -> bool {
    let groups = |mount: &Mount| [mount.peer_group, mount.master_group];
    groups(one).iter().flatten().any(|group| groups(other).contains(&Some(*group)))
}

fn kinship(other: &Mount, mount: &Mount) -> Kinship {
    let share = SHARES.iter().any(|share| mount.fs_type == *share);
    // A bind joins the group of what it is a bind of; a mount made by itself gets a group of its own. Without groups
    // nothing tells them apart, and only the caller's records do.
    if share && other.root == mount.root && !are_kin(other, mount) {
        Kinship::SameShare
    } else {
        Kinship::Bind
    }
}
