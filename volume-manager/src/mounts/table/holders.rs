//! Finds the other mounts of a staged volume's file system.

use std::path::Path;

use super::super::{Mount, MountIdentity};
use super::MountTable;

/// The file system types for which the kernel uses one superblock for two mounts of the same share.
const SHARES: [&str; 8] = ["nfs", "nfs4", "cifs", "smb3", "ceph", "9p", "afs", "virtiofs"];

impl MountTable {
    /// Returns the other mounts of the file system of `mount`, except those at `known` mount points: the targets of the volume,
    /// and the mount points in the records of other volumes.
    ///
    /// Three kinds of mounts are excluded, since they do not keep the volume in use: a propagated copy of the same mount, which
    /// exists because its directory is bind-mounted elsewhere on a shared mount, and is unmounted with its original; a mount of
    /// a larger part, such as the node's own disk when a driver has staged a directory of it; and a network share that was
    /// mounted independently.
    pub fn holders<'a>(&'a self, mount: &Mount, known: impl Fn(&Path) -> bool) -> Vec<&'a Mount> {
        let known = |path: &Path| path == mount.mount_point || known(path);
        let mut holders = self.holders_of(&MountIdentity::of(mount), known);
        holders.retain(|other| !is_share_mounted_again(other, mount));
        holders
    }

    /// Returns the mounts of a file system whose recorded mount may no longer exist. Independent mounts of a share cannot be
    /// distinguished then, so all of them count.
    pub(in super::super) fn holders_of<'a>(
        &'a self,
        identity: &MountIdentity,
        known: impl Fn(&Path) -> bool,
    ) -> Vec<&'a Mount> {
        let mounts: Vec<&Mount> =
            self.of_device(identity.device).filter(|other| is_part(other, identity)).collect();
        let own: Vec<&Mount> = mounts.iter().copied().filter(|other| known(&other.mount_point)).collect();
        let foreign = mounts.into_iter().filter(|other| !known(&other.mount_point));
        foreign.filter(|other| !own.iter().any(|own| self.is_propagated_copy(other, own))).collect()
    }

    /// Whether one mount is a propagated copy of the other, on a bind mount of its directory.
    fn is_propagated_copy(&self, one: &Mount, other: &Mount) -> bool {
        let (Some(below), Some(below_other)) = (self.below(one), self.below(other)) else { return false };
        one.root == other.root
            && below.id != below_other.id
            && below.device == below_other.device
            && share_peer_group(below, below_other)
            && below
                .within(&one.mount_point)
                .is_some_and(|at| below_other.within(&other.mount_point) == Some(at))
    }
}

/// Whether a mount of the device shows the identity's part of the file system, or a part within it.
fn is_part(other: &Mount, identity: &MountIdentity) -> bool {
    // The kernel reuses the number of a file system without a device.
    other.fs_type == identity.fs_type && other.root.starts_with(&identity.root)
}

/// Whether the two mounts share a peer group, as member or as receiver.
fn share_peer_group(one: &Mount, other: &Mount) -> bool {
    let groups = |mount: &Mount| [mount.peer_group, mount.master_group];
    groups(one).iter().flatten().any(|group| groups(other).contains(&Some(*group)))
}

/// Whether another mount of the same network share was made independently: for another volume, or by an administrator.
fn is_share_mounted_again(other: &Mount, mount: &Mount) -> bool {
    let is_share = SHARES.iter().any(|share| mount.fs_type == *share);
    // A bind mount joins the peer group of its source; an independent mount gets its own. Under private propagation there is no
    // peer group, and only the caller's records can distinguish them.
    is_share
        && other.receives_propagation()
        && mount.receives_propagation()
        && !share_peer_group(other, mount)
}
