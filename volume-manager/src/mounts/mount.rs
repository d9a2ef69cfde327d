//! One line of a mount table.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use super::escape;

/// The kernel's id of a mount. Unique among the mounts that exist; a mount that is gone leaves its id to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MountId(u64);

impl MountId {
    /// The id with this number.
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

/// A device as the kernel numbers it. Major 0 is no device but a file system without one: a network share, FUSE, tmpfs.
#[allow(clippy::exhaustive_structs, reason = "the kernel numbers devices by these two")]
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The number of the kind of device.
    pub major: u32,
    /// The number among the devices of that kind.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A mount, as a line of `/proc/PID/mountinfo` describes it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Mount {
    /// Its id.
    pub id: MountId,
    /// The mount that it is on; not in the table if that lies outside of the process's root.
    pub parent: MountId,
    /// The device of the file system, by which binds of one file system are known.
    pub device: DeviceNumber,
    /// Which part of the file system is mounted: `/` for the whole, another path for a bind of a part.
    pub root: PathBuf,
    /// Where it is mounted.
    pub mount_point: PathBuf,
    /// What holds for this mount alone, such as `rw` and `noexec`, separated by commas.
    pub options: OsString,
    /// The group of mounts that it shares new mounts with.
    pub peer_group: Option<u64>,
    /// The group of mounts that it receives new mounts from.
    pub master_group: Option<u64>,
    /// The type of the file system, such as `ext4` or `fuse.sshfs`.
    pub fs_type: OsString,
    /// What was mounted, such as `/dev/sdb` or `server:/share`. May be empty, and says what the driver wished it to.
    pub source: OsString,
    /// What holds for the whole file system, separated by commas.
    pub fs_options: OsString,
}

impl Mount {
    /// The most bytes of a line.
    pub const MAX_LINE_BYTES: usize = 64 * 1024;

    /// Whether it cannot be written through: this mount or its whole file system is read-only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.has_option("ro") || has(&self.fs_options, "ro")
    }

    /// Whether it gets mounts that are made on a twin of it, as one in another mount namespace.
    #[must_use]
    pub fn spreads(&self) -> bool {
        self.peer_group.is_some() || self.master_group.is_some()
    }

    /// Whether a word is among [`options`](Self::options).
    #[must_use]
    pub fn has_option(&self, option: &str) -> bool {
        has(&self.options, option)
    }

    /// Reads a line without its end. The error is the field at fault.
    ///
    /// Only the paths must be escaped as the kernel does. The other words are a file system's own, and some write a
    /// backslash as it is: those are kept as they are, since one mount of somebody else must not cost the whole table.
    pub(super) fn parse(line: &[u8]) -> Result<Self, &'static str> {
        // Not on white space: the kernel leaves a field empty where a source is, and writes one blank between two.
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

    /// Where a path below the mount point lies within the file system.
    pub(super) fn within(&self, path: &Path) -> Option<PathBuf> {
        let below = path.strip_prefix(&self.mount_point).ok()?;
        Some(if below.as_os_str().is_empty() { self.root.clone() } else { self.root.join(below) })
    }
}

/// What tells one mount from another, to be kept with the record of a volume.
///
/// It holds while the file system is mounted somewhere. The number of one without a device, such as a network share or FUSE,
/// is given to another as soon as its last mount is gone; that of a device, when the device is.
///
/// `==` compares all its parts, also the source; [`is_of`](Self::is_of) does not.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct MountIdentity {
    /// The device of the file system.
    pub device: DeviceNumber,
    /// Which part of the file system.
    pub root: PathBuf,
    /// The type of the file system.
    pub fs_type: OsString,
    /// What was mounted. Told to people, and not compared with that of a mount: some drivers word it anew each time.
    pub source: OsString,
}

impl MountIdentity {
    /// From its parts, as a record has them.
    #[must_use]
    pub fn new(device: DeviceNumber, root: PathBuf, fs_type: OsString, source: OsString) -> Self {
        Self { device, root, fs_type, source }
    }

    /// That of a mount.
    #[must_use]
    pub fn of(mount: &Mount) -> Self {
        Self {
            device: mount.device,
            root: mount.root.clone(),
            fs_type: mount.fs_type.clone(),
            source: mount.source.clone(),
        }
    }

    /// Whether a mount is of the same part of the same file system.
    #[must_use]
    pub fn is_of(&self, mount: &Mount) -> bool {
        self.device == mount.device && self.root == mount.root && self.fs_type == mount.fs_type
    }
}

fn has(options: &OsStr, option: &str) -> bool {
    options.as_bytes().split(|&byte| byte == b',').any(|found| found == option.as_bytes())
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    // `parse` alone would take a plus sign.
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
