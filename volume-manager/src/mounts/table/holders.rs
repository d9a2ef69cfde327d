//! Who else holds the file system of a staged volume.

use std::path::Path;

use super::super::{Mount, MountIdentity};
use super::MountTable;

/// What another mount of a file system has to do with the one asked about.
#[allow(clippy::exhaustive_enums, reason = "a share used twice is the one case that can be told apart")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kinship {
    /// It keeps the file system in use: a bind of it, or another mount of the same device.
    Bind,
    /// It is of the same network share, which the kernel keeps as one file system however often it is mounted. It may
    /// have been mounted by itself, for another volume or by an administrator, and then holds nothing of this one. Told only
    /// where both are in groups of mounts, and in different ones.
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
    /// Left out besides is what is no holder though it looks like one. The same mount, seen a second time because the
    /// directory that it is in is itself bind-mounted elsewhere, and mounts spread: such a mirror comes and goes with its
    /// original. And the mount of a greater part, such as the node's own disk, of which a driver has staged a directory:
    /// it shows the volume whether that is staged or not.
    pub fn holders<'a>(&'a self, mount: &Mount, known: impl Fn(&Path) -> bool) -> Vec<Holder<'a>> {
        let known = |path: &Path| path == mount.mount_point || known(path);
        let identity = MountIdentity::of(mount);
        self.foreign(&identity, known, |other| kinship(other, mount))
    }

    /// Who holds a file system of which a mount was seen that may be gone. Nothing tells then who of one share was
    /// mounted by itself, so each counts as a [`Kinship::Bind`].
    pub(in super::super) fn holders_of<'a>(
        &'a self,
        identity: &MountIdentity,
        known: impl Fn(&Path) -> bool,
    ) -> Vec<Holder<'a>> {
        self.foreign(identity, known, |_| Kinship::Bind)
    }

    fn foreign<'a>(
        &'a self,
        identity: &MountIdentity,
        known: impl Fn(&Path) -> bool,
        kinship: impl Fn(&Mount) -> Kinship,
    ) -> Vec<Holder<'a>> {
        let kin: Vec<&Mount> =
            self.of_device(identity.device).filter(|other| is_part(other, identity)).collect();
        let ours: Vec<&Mount> = kin.iter().copied().filter(|other| known(&other.mount_point)).collect();
        let foreign = kin.into_iter().filter(|other| !known(&other.mount_point));
        let foreign = foreign.filter(|other| !ours.iter().any(|own| self.is_mirror(other, own)));
        foreign.map(|mount| Holder { mount, kinship: kinship(mount) }).collect()
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

/// Whether a mount of the device shows what another showed, or a part of it.
fn is_part(other: &Mount, identity: &MountIdentity) -> bool {
    // The number of a file system without a device goes to the next when it is gone.
    other.fs_type == identity.fs_type && other.root.starts_with(&identity.root)
}

/// Whether mounts spread from the one to the other.
fn are_kin(one: &Mount, other: &Mount) -> bool {
    let groups = |mount: &Mount| [mount.peer_group, mount.master_group];
    groups(one).iter().flatten().any(|group| groups(other).contains(&Some(*group)))
}

fn kinship(other: &Mount, mount: &Mount) -> Kinship {
    let share = SHARES.iter().any(|share| mount.fs_type == *share);
    // A bind joins the group of what it is a bind of; a mount made by itself gets a group of its own. Where one of them
    // has none, as under private propagation, nothing tells them apart, and only the caller's records do.
    let told_apart = other.spreads() && mount.spreads() && !are_kin(other, mount);
    if share && told_apart { Kinship::SameShare } else { Kinship::Bind }
}
