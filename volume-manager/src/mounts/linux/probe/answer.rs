//! An answer as a line.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
#[cfg(any(feature = "runtime", test))]
use std::os::unix::ffi::OsStringExt;

#[cfg(any(feature = "runtime", test))]
use super::super::super::{DeviceNumber, MountId};
use super::super::super::{Inspection, Presence, Removed, escape};

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Answer {
    Hello,
    Inspected(Inspection),
    Created,
    Removed(Removed),
    Occupied(Presence),
    Mounted,
    NotEmpty { count: usize, first: OsString },
    HasBytes(u64),
    Unfit(Presence),
    Errno(i32),
}

/// What the line of an answer begins with. Other lines are what else the program prints as it starts.
const PREFIX: &str = "mount-probe:";

impl Answer {
    /// The most bytes that a probe may print: an answer, with an escaped name of 255 bytes, and what is around it.
    #[cfg(feature = "runtime")]
    pub(in super::super) const MAX_OUTPUT: usize = 8192;

    pub(super) fn encode(&self) -> String {
        let words = match self {
            Self::Hello => "hello".to_owned(),
            Self::Inspected(Inspection { presence, mount: None }) => format!("is {}", word(*presence)),
            Self::Inspected(Inspection { presence, mount: Some(mount) }) => {
                format!("is {} {mount}", word(*presence))
            }
            Self::Created => "created".to_owned(),
            Self::Removed(Removed::Removed) => "removed".to_owned(),
            Self::Removed(Removed::WasMissing) => "was-missing".to_owned(),
            Self::Occupied(found) => format!("occupied {}", word(*found)),
            Self::Mounted => "mounted".to_owned(),
            Self::NotEmpty { count, first } => {
                format!("not-empty {count} {}", escape::encode_as_text(first.as_bytes()))
            }
            Self::HasBytes(size) => format!("has-bytes {size}"),
            Self::Unfit(found) => format!("unfit {}", word(*found)),
            Self::Errno(errno) => format!("errno {errno}"),
        };
        // On a line of its own, whatever was printed before.
        format!("\n{PREFIX} {words}\n")
    }

    /// The answer in the output of a probe, if there is a whole one.
    #[cfg(any(feature = "runtime", test))]
    pub(in super::super) fn decode(output: &[u8]) -> Option<Self> {
        let mut lines = output.split_inclusive(|&byte| byte == b'\n');
        let line = lines.find_map(|line| line.strip_suffix(b"\n")?.strip_prefix(PREFIX.as_bytes()))?;
        let mut words = std::str::from_utf8(line).ok()?.strip_prefix(' ')?.split(' ');
        let kind = words.next()?;
        let mut next = || words.next();
        let answer = match kind {
            "hello" => Self::Hello,
            "is" => {
                let presence = presence(next()?)?;
                let mount = match next() {
                    Some(mount) => Some(MountId::new(mount.parse().ok()?)),
                    None => None,
                };
                Self::Inspected(Inspection { presence, mount })
            }
            "created" => Self::Created,
            "removed" => Self::Removed(Removed::Removed),
            "was-missing" => Self::Removed(Removed::WasMissing),
            "occupied" => Self::Occupied(presence(next()?)?),
            "mounted" => Self::Mounted,
            "not-empty" => {
                let count = next()?.parse().ok()?;
                Self::NotEmpty { count, first: OsString::from_vec(escape::decode(next()?.as_bytes())?) }
            }
            "has-bytes" => Self::HasBytes(next()?.parse().ok()?),
            "unfit" => Self::Unfit(presence(next()?)?),
            "errno" => Self::Errno(next()?.parse().ok()?),
            _ => return None,
        };
        if words.next().is_some() { None } else { Some(answer) }
    }
}

fn word(presence: Presence) -> String {
    match presence {
        Presence::Missing => "missing".to_owned(),
        Presence::Directory => "directory".to_owned(),
        Presence::RegularFile { size } => format!("file:{size}"),
        Presence::BlockDevice(device) => format!("block:{device}"),
        Presence::CharacterDevice(device) => format!("character:{device}"),
        Presence::Symlink => "link".to_owned(),
        Presence::Other => "other".to_owned(),
        Presence::Dead { errno } => format!("dead:{errno}"),
        Presence::Hung => "hung".to_owned(),
    }
}

#[cfg(any(feature = "runtime", test))]
fn presence(word: &str) -> Option<Presence> {
    let device = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    };
    Some(match word.split_once(':') {
        None => match word {
            "missing" => Presence::Missing,
            "directory" => Presence::Directory,
            "link" => Presence::Symlink,
            "other" => Presence::Other,
            "hung" => Presence::Hung,
            _ => return None,
        },
        Some(("file", size)) => Presence::RegularFile { size: size.parse().ok()? },
        Some(("block", rest)) => Presence::BlockDevice(device(rest)?),
        Some(("character", rest)) => Presence::CharacterDevice(device(rest)?),
        Some(("dead", errno)) => Presence::Dead { errno: errno.parse().ok()? },
        Some(_) => return None,
    })
}
