//! The process that carries out one operation, which can be killed if it hangs.
//!
//! A program that uses `LinuxMounts` is its own probe. It begins with this, before it reads arguments or starts threads:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use volume_manager::mounts::linux::probe;
//!
//! fn main() -> ExitCode {
//!     if let Some(code) = probe::serve_if_asked() {
//!         return code;
//!     }
//!     // The program.
//!     ExitCode::SUCCESS
//! }
//! ```
//!
//! The first argument of a probe is [`MARKER`]. It does what the others say, prints one line, and ends. It ends by itself too: when
//! its deadline has passed, and when the process that started it is gone, so that no late removal of a program that
//! was killed meets the targets of the next.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::super::{DeviceNumber, Inspection, MountId, MountPath, Presence, SafeRemoval, escape};

/// The first argument of a process that is a probe.
pub const MARKER: &str = "--volume-manager-mount-probe";

/// The exit status of a probe whose deadline has passed, or that was given up.
const GIVEN_UP: i32 = 75;

/// Serves, if this process was started as a probe. The program then ends with the code.
#[must_use]
pub fn serve_if_asked() -> Option<ExitCode> {
    serve(std::env::args_os().skip(1))
}

/// As [`serve_if_asked`], for who gets the arguments of the process in another way. They are without the program's name.
#[must_use]
pub fn serve(arguments: impl IntoIterator<Item = OsString>) -> Option<ExitCode> {
    let mut arguments = arguments.into_iter();
    if arguments.next()? != MARKER {
        return None;
    }
    let arguments: Vec<OsString> = arguments.collect();
    let Some((deadline, request)) = Request::decode(&arguments) else {
        return Some(ExitCode::from(64));
    };
    // So that what is made gets the mode it is asked for. This process does nothing else.
    rustix::process::umask(rustix::fs::Mode::empty());
    end_with_parent(deadline);
    let line = super::operation::carry_out(&request).encode();
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(74) })
}

/// Ends this process when its deadline has passed, or when the other end of its standard input is closed, whichever is first.
fn end_with_parent(deadline: Duration) {
    let (closed, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(closed);
    });
    thread::spawn(move || {
        let _ = wait.recv_timeout(deadline);
        std::process::exit(GIVEN_UP);
    });
}

/// The one operation of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Inspect(MountPath),
    CreateDirectory(MountPath),
    Remove(SafeRemoval),
}

impl Request {
    /// The path that it walks.
    pub(super) fn path(&self) -> &MountPath {
        match self {
            Self::Inspect(path) | Self::CreateDirectory(path) => path,
            Self::Remove(removal) => removal.path(),
        }
    }

    /// The arguments, from the [`MARKER`] on.
    pub(super) fn encode(&self, deadline: Duration) -> [String; 4] {
        let word = match self {
            Self::Inspect(_) => "inspect",
            Self::CreateDirectory(_) => "create-directory",
            Self::Remove(_) => "remove",
        };
        [MARKER.to_owned(), deadline.as_millis().to_string(), word.to_owned(), self.path().to_string()]
    }

    /// The deadline and the request, from the arguments after the [`MARKER`].
    fn decode(arguments: &[OsString]) -> Option<(Duration, Self)> {
        let [deadline, word, path] = arguments else { return None };
        let deadline = Duration::from_millis(deadline.to_str()?.parse().ok()?);
        let request = match word.to_str()? {
            "inspect" => Self::Inspect(MountPath::new(path).ok()?),
            "create-directory" => Self::CreateDirectory(MountPath::new(path).ok()?),
            "remove" => Self::Remove(SafeRemoval::new(path).ok()?),
            _ => return None,
        };
        Some((deadline, request))
    }
}

/// How an operation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// It was done.
    Done,
    /// What is at the path, as it was asked for or since it is in the way.
    Is(Inspection),
    /// Something is mounted on what was to be removed.
    Mounted,
    /// What was to be removed has entries.
    NotEmpty {
        count: usize,
        first: OsString,
    },
    Errno(i32),
}

/// What the line of an answer begins with. Other lines are what else the program prints as it starts.
const PREFIX: &str = "mount-probe:";

impl Answer {
    /// The most bytes that a probe may print: an answer, with an escaped name of 255 bytes, and what is around it.
    pub(super) const MAX_OUTPUT: usize = 8192;

    fn encode(&self) -> String {
        let words = match self {
            Self::Done => "done".to_owned(),
            Self::Is(Inspection { presence, mount: None }) => format!("is {}", word(*presence)),
            Self::Is(Inspection { presence, mount: Some(mount) }) => {
                format!("is {} {mount}", word(*presence))
            }
            Self::Mounted => "mounted".to_owned(),
            Self::NotEmpty { count, first } => {
                format!("not-empty {count} {}", escape::encode_as_text(first.as_bytes()))
            }
            Self::Errno(errno) => format!("errno {errno}"),
        };
        // On a line of its own, whatever was printed before.
        format!("\n{PREFIX} {words}\n")
    }

    /// The answer in the output of a probe, if there is a whole one.
    pub(super) fn decode(output: &[u8]) -> Option<Self> {
        let mut lines = output.split_inclusive(|&byte| byte == b'\n');
        let line = lines.find_map(|line| line.strip_suffix(b"\n")?.strip_prefix(PREFIX.as_bytes()))?;
        let words: Vec<&str> = std::str::from_utf8(line).ok()?.strip_prefix(' ')?.split(' ').collect();
        Some(match words[..] {
            ["done"] => Self::Done,
            ["is", found] => Self::Is(Inspection::of(presence(found)?)),
            ["is", found, mount] => {
                Self::Is(Inspection::mounted(presence(found)?, MountId::new(mount.parse().ok()?)))
            }
            ["mounted"] => Self::Mounted,
            ["not-empty", count, first] => {
                let first = OsString::from_vec(escape::decode(first.as_bytes())?);
                Self::NotEmpty { count: count.parse().ok()?, first }
            }
            ["errno", errno] => Self::Errno(errno.parse().ok()?),
            _ => return None,
        })
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
