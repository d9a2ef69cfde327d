//! Who else holds the file system of a staged volume.

use std::path::Path;

use super::super::{Mount, MountIdentity};
use super::MountTable;

/// The file systems of which two mounts of one share are one file system to the kernel.
const SHARES: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "virtiofs"];

impl MountTable {
    /// Who else holds the file system of `mount`, without the mount points that are `known`: the targets of the volume, and
    /// what the records of the other volumes account for.
    ///
    /// Left out besides is what is no holder though it looks like one. The same mount, seen a second time because the
    /// directory that it is in is itself bind-mounted elsewhere, and mounts spread: such a mirror comes and goes with its
    /// original. The mount of a greater part, such as the node's own disk, of which a driver has staged a directory: it
    /// shows the volume whether that is staged or not. And a network share that was mounted once more by itself.
    pub fn holders<'a>(&'a self, mount: &Mount, known: impl Fn(&Path) -> bool) -> Vec<&'a Mount> {
        let known = |path: &Path| path == mount.mount_point || known(path);
        let mut holders = self.holders_of(&MountIdentity::of(mount), known);
        holders.retain(|other| !is_share_mounted_again(other, mount));
        holders
    }

    /// Who holds a file system of which a mount was seen that may be gone. Nothing tells then who of one share was
    /// mounted by itself, so each counts.
    pub(in super::super) fn holders_of<'a>(
        &'a self,
        identity: &MountIdentity,
        known: impl Fn(&Path) -> bool,
    ) -> Vec<&'a Mount> {
        let kin: Vec<&Mount> =
            self.of_device(identity.device).filter(|other| is_part(other, identity)).collect();
        let ours: Vec<&Mount> = kin.iter().copied().filter(|other| known(&other.mount_point)).collect();
        let foreign = kin.into_iter().filter(|other| !known(&other.mount_point));
        foreign.filter(|other| !ours.iter().any(|own| self.is_mirror(other, own))).collect()
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

/// Whether another mount of one network share, which the kernel keeps as one file system however often it is mounted, was made by
/// itself: for another volume, or by an administrator.
fn is_share_mounted_again(other: &Mount, mount: &Mount) -> bool {
    let share = SHARES.iter().any(|share| mount.fs_type == *share);
    // A bind joins the group of what it is a bind of; a mount made by itself gets a group of its own. Where one of them
    // has none, as under private propagation, nothing tells them apart, and only the caller's records do.
    share && other.spreads() && mount.spreads() && !are_kin(other, mount)
}
