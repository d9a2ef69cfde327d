//! The mount table, and the mounts that this driver makes.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{self, MountFlags, UnmountFlags};

/// Why a mount could not be made or undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The mount table cannot be read.
    #[error("cannot read /proc/self/mountinfo: {source}; mount /proc")]
    Table {
        /// Why not.
        source: io::Error,
    },
    /// The kernel refused a bind mount.
    #[error("cannot bind {} on {}: {source}{hint}", from.display(), on.display())]
    Bind {
        /// What was to be shown.
        from: PathBuf,
        /// Where.
        on: PathBuf,
        /// Why not.
        source: io::Error,
        /// What to do, or empty.
        hint: &'static str,
    },
    /// The kernel refused to unmount.
    #[error("cannot unmount {}: {source}", on.display())]
    Unmount {
        /// Where.
        on: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something uses the mount.
    #[error("{} is in use: end the processes that have files open there", on.display())]
    Busy {
        /// Where.
        on: PathBuf,
    },
    /// A mount flag that a bind mount does not have.
    #[error(
        "mount_flags holds {found:?}: a volume of kind directory takes {BIND_FLAGS:?}, a loop volume any flag of its filesystem"
    )]
    Flag {
        /// The flag.
        found: String,
    },
}

/// The flags that a bind mount can have of its own.
pub const BIND_FLAGS: &[&str] = &[
    "ro",
    "rw",
    "nosuid",
    "suid",
    "nodev",
    "dev",
    "noexec",
    "exec",
    "noatime",
    "atime",
    "nodiratime",
    "relatime",
    "bind",
];

/// One line of the mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mount {
    /// Major and minor number of the mounted device.
    pub device: (u32, u32),
    /// The directory or file within that device that is shown.
    pub root: PathBuf,
    /// Where it is mounted.
    pub on: PathBuf,
    /// Whether it is mounted read-only.
    pub read_only: bool,
}

/// The mount table of this process at one moment.
#[derive(Debug, Clone, Default)]
pub struct MountTable {
    mounts: Vec<Mount>,
}

impl MountTable {
    /// Reads the table.
    ///
    /// # Errors
    /// If `/proc` is not mounted.
    pub fn read() -> Result<Self, MountError> {
        let text = fs::read("/proc/self/mountinfo").map_err(|source| MountError::Table { source })?;
        Ok(Self::parse(&text))
    }

    /// Understands the text of `/proc/PID/mountinfo`, proc(5). A line of another form is left out.
    #[must_use]
    pub fn parse(text: &[u8]) -> Self {
        Self { mounts: text.split(|b| *b == b'\n').filter_map(parse_line).collect() }
    }

    /// What is mounted on this path, the topmost if there are several.
    #[must_use]
    pub fn on(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().rev().find(|mount| mount.on == path)
    }

    /// A mount on this path or anywhere below it.
    #[must_use]
    pub fn at_or_below(&self, path: &Path) -> Option<&Mount> {
        self.mounts.iter().find(|mount| mount.on.starts_with(path))
    }

    /// Every mount of this device.
    pub fn of_device(&self, device: (u32, u32)) -> impl Iterator<Item = &Mount> {
        self.mounts.iter().filter(move |mount| mount.device == device)
    }
}

fn parse_line(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|b| *b == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let root = unescape(fields.next()?);
    let on = unescape(fields.next()?);
    let read_only = fields.next()?.split(|b| *b == b',').any(|option| option == b"ro");
    Some(Mount { device: (major.parse().ok()?, minor.parse().ok()?), root, on, read_only })
}

/// Space, tab, newline and backslash stand as three octal digits after a backslash.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let code = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| {
            digits.iter().try_fold(0_u16, |code, digit| {
                matches!(digit, b'0'..=b'7').then(|| code * 8 + u16::from(digit - b'0'))
            })
        });
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Shows a directory or a device file at another place, with flags from [`BIND_FLAGS`].
///
/// # Errors
/// If a flag is unknown or the kernel refuses; then nothing is mounted.
pub fn bind(from: &Path, on: &Path, flags: &[String], read_only: bool) -> Result<(), MountError> {
    let own = bind_flags(flags)? | if read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let refused = |errno: Errno| MountError::Bind {
        from: from.to_owned(),
        on: on.to_owned(),
        source: errno.into(),
        hint: if errno == Errno::PERM {
            "; mounting needs root or a user namespace of one's own"
        } else {
            ""
        },
    };
    mount::mount_bind(from, on).map_err(refused)?;
    if own.is_empty() {
        return Ok(());
    }
    // What the source is mounted with stays: in a user namespace the kernel does not let go of it.
    let restricted = inherited_flags(on)
        .and_then(|inherited| mount::mount_remount(on, MountFlags::BIND | inherited | own, ""))
        .map_err(refused);
    if restricted.is_err() {
        // A mount that shows more than was asked for must not stay.
        let _ = mount::unmount(on, UnmountFlags::NOFOLLOW);
    }
    restricted
}

/// Checks flags for a bind mount before anything is done.
///
/// # Errors
/// [`MountError::Flag`] for one that a bind mount does not have.
pub fn bind_flags(flags: &[String]) -> Result<MountFlags, MountError> {
    flags.iter().flat_map(|flag| flag.split(',')).try_fold(MountFlags::empty(), |all, flag| {
        Ok(all
            | match flag {
                "ro" => MountFlags::RDONLY,
                "nosuid" => MountFlags::NOSUID,
                "nodev" => MountFlags::NODEV,
                "noexec" => MountFlags::NOEXEC,
                "noatime" => MountFlags::NOATIME,
                "nodiratime" => MountFlags::NODIRATIME,
                "relatime" => MountFlags::RELATIME,
                known if BIND_FLAGS.contains(&known) => MountFlags::empty(),
                _ => return Err(MountError::Flag { found: flag.to_owned() }),
            })
    })
}

fn inherited_flags(on: &Path) -> rustix::io::Result<MountFlags> {
    let shown = statvfs(on)?.f_flag;
    let pairs = [
        (StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (StatVfsMountFlags::NOATIME, MountFlags::NOATIME),
        (StatVfsMountFlags::NODIRATIME, MountFlags::NODIRATIME),
        (StatVfsMountFlags::RELATIME, MountFlags::RELATIME),
    ];
    Ok(pairs
        .iter()
        .filter(|(there, _)| shown.contains(*there))
        .fold(MountFlags::empty(), |all, (_, flag)| all | *flag))
}

/// Undoes the topmost mount on a path.
///
/// # Errors
/// [`MountError::Busy`] while files are open there.
pub fn unmount(on: &Path) -> Result<(), MountError> {
    mount::unmount(on, UnmountFlags::NOFOLLOW).map_err(|errno| match errno {
        Errno::BUSY => MountError::Busy { on: on.to_owned() },
        _ => MountError::Unmount { on: on.to_owned(), source: errno.into() },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &[u8] = b"22 27 0:20 / /proc rw,nosuid shared:5 - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw
42 27 7:0 / /var/my\\040vol/a\\134b rw,relatime shared:1 master:2 - ext4 /dev/loop0 rw
43 42 254:0 /data/x /var/my\\040vol/a\\134b ro,relatime - ext4 /dev/vda rw
garbage
44 27 x:y / /bad rw - ext4 /dev/vda rw
";

    #[test]
    fn paths_are_unescaped_and_the_topmost_mount_counts() {
        let table = MountTable::parse(TABLE);
        let mount = table.on(Path::new("/var/my vol/a\\b")).unwrap();
        assert_eq!(
            (mount.device, mount.root.as_path(), mount.read_only),
            ((254, 0), Path::new("/data/x"), true)
        );
        assert_eq!(table.on(Path::new("/bad")), None);
        assert_eq!(table.of_device((7, 0)).count(), 1);
    }

    #[test]
    fn below_is_a_matter_of_whole_names() {
        let table = MountTable::parse(TABLE);
        assert!(table.at_or_below(Path::new("/var/my vol")).is_some());
        assert!(table.at_or_below(Path::new("/var/my")).is_none());
        assert!(table.at_or_below(Path::new("/proc")).is_some());
    }

    #[test]
    fn a_broken_escape_stays_as_it_is() {
        assert_eq!(unescape(b"a\\04"), Path::new("a\\04"));
        assert_eq!(unescape(b"a\\999b\\"), Path::new("a\\999b\\"));
        assert_eq!(unescape(b"\\777"), Path::new("\\777"));
    }

    #[test]
    fn unknown_flags_of_a_bind_mount_are_named() {
        assert!(bind_flags(&["noatime,nodev".into(), "ro".into()]).unwrap().contains(MountFlags::RDONLY));
        assert!(
            matches!(bind_flags(&["discard".into()]), Err(MountError::Flag { found }) if found == "discard")
        );
    }
}
