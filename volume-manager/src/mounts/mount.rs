//! A mount: one line of the mount table.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::escape;

/// The kernel's id of a mount. Unique among the existing mounts; the kernel reuses the id of an unmounted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountId(u64);

impl MountId {
    /// Creates an id from its number.
    #[must_use]
    pub const fn new(id: u64) -> Self {
        Self(id)
    }

    /// The number.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl fmt::Display for MountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A device number (`st_dev`). Major 0 is a file system without a device: a network share, FUSE, tmpfs.
#[allow(clippy::exhaustive_structs, reason = "the kernel numbers devices by these two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The major number.
    pub major: u32,
    /// The minor number.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A mount, as described by a line of `/proc/PID/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Mount {
    /// The mount's id.
    pub id: MountId,
    /// The parent mount; not in the table if it is outside of the process's root.
    pub parent: MountId,
    /// The device of the file system; the same for all bind mounts of it.
    pub device: DeviceNumber,
    /// The part of the file system that is mounted: `/` for the whole, another path for a bind of a part.
    pub root: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// The per-mount options, such as `rw` and `noexec`, separated by commas.
    pub options: OsString,
    /// The peer group with which the mount shares mount events (`shared:N`).
    pub peer_group: Option<u64>,
    /// The peer group from which the mount receives mount events (`master:N`).
    pub master_group: Option<u64>,
    /// The file system type, such as `ext4` or `fuse.sshfs`.
    pub fs_type: OsString,
    /// The mount source, such as `/dev/sdb` or `server:/share`. May be empty; the driver chooses it freely.
    pub source: OsString,
    /// The per-superblock options, separated by commas.
    pub fs_options: OsString,
}

impl Mount {
    /// The maximum size of a line in bytes.
    pub const MAX_LINE_BYTES: usize = 64 * 1024;

    /// Whether the mount or its whole file system is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro") || has(&self.fs_options, "ro")
    }

    /// Whether the mount receives mount events of a peer group, such as from another mount namespace.
    #[must_use]
    pub fn receives_propagation(&self) -> bool {
        self.peer_group.is_some() || self.master_group.is_some()
    }

    /// Whether [`options`](Self::options) contains an option.
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        has(&self.options, option)
    }

    /// Parses a line without its newline. The error is the name of the invalid field.
    ///
    /// Only the paths must be escaped by the kernel's rules. The other fields are up to the file system, and some contain plain
    /// backslashes: these are left unchanged, since one foreign mount must not make the whole table unreadable.
    pub(super) fn parse(line: &[u8]) -> Result<Self, &'static str> {
        // Split at single spaces, not at white space: the source may be empty.
        let mut fields = line.split(|&byte| byte == b' ');
        let mut next = |name| fields.next().ok_or(name);
        let id = MountId(number(next("mount id")?).ok_or("mount id")?);
        let parent = MountId(number(next("parent id")?).ok_or("parent id")?);
        let device = device(next("device")?).ok_or("device")?;
        let root = text(next("root")?).map(PathBuf::from).ok_or("root")?;
        let mount_point = text(next("mount point")?).map(PathBuf::from).ok_or("mount point")?;
        if !mount_point.is_absolute() {
            return Err("mount point");
        }
        let options = lenient(next("options")?);
        let (mut peer_group, mut master_group) = (None, None);
        loop {
            let field = next("separator")?;
            if field == b"-" {
                break;
            }
            if let Some(group) = field.strip_prefix(b"shared:") {
                peer_group = Some(number(group).ok_or("shared")?);
            } else if let Some(group) = field.strip_prefix(b"master:") {
                master_group = Some(number(group).ok_or("master")?);
            }
        }
        let fs_type = lenient(next("file system type")?);
        let source = lenient(next("source")?);
        let fs_options = lenient(next("file system options")?);
        Ok(Self {
            id,
            parent,
            device,
            root,
            mount_point,
            options,
            peer_group,
            master_group,
            fs_type,
            source,
            fs_options,
        })
    }

    /// Translates a path at or below the mount point to a path within the file system.
    pub(super) fn within(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.mount_point).ok()?;
        Some(if below.as_os_str().is_empty() { self.root.clone() } else { self.root.join(below) })
    }
}

/// The identity of a mounted file system, stored in the record of a volume.
///
/// It is valid while the file system is mounted somewhere. The kernel reuses the device number of a file system without a
/// device, such as a network share or FUSE, after its last unmount, and that of a device after the device was removed.
///
/// `==` compares all fields; [`is_of`](Self::is_of) ignores the source.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MountIdentity {
    /// The device of the file system.
    pub device: DeviceNumber,
    /// The mounted part of the file system.
    pub root: PathBuf,
    /// The file system type.
    pub fs_type: OsString,
    /// The mount source. Informational only: some drivers change it with each mount.
    pub source: OsString,
}

impl MountIdentity {
    /// Creates an identity from the fields of a record.
    #[must_use]
    pub fn new(device: DeviceNumber, root: PathBuf, fs_type: OsString, source: OsString) -> Self {
        Self { device, root, fs_type, source }
    }

    /// The identity of a mount.
    #[must_use]
    pub fn of(mount: &Mount) -> Self {
        Self {
            device: mount.device,
            root: mount.root.clone(),
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
        }
    }

    /// Whether a mount shows the same part of the same file system.
    #[must_use]
    pub fn is_of(&self, mount: &Mount) -> bool {
        self.device == mount.device && self.root == mount.root && self.fs_type == mount.fs_type
    }
}

fn has(options: &OsStr, option: &str) -> bool {
    options.as_bytes().split(|&byte| byte == b',').any(|found| found == option.as_bytes())
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    // `parse` alone would accept a plus sign.
    if field.first().is_none_or(|first| !first.is_ascii_digit()) {
        return None;
    }
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<DeviceNumber> {
    let colon = field.iter().position(|&byte| byte == b':')?;
    Some(DeviceNumber { major: number(&field[..colon])?, minor: number(&field[colon + 1..])? })
}

fn text(field: &[u8]) -> Option<OsString> {
    escape::decode(field).map(OsString::from_vec)
}

fn lenient(field: &[u8]) -> OsString {
    text(field).unwrap_or_else(|| OsStr::from_bytes(field).to_owned())
}
