//! The probe process, which executes one operation and can be killed if it hangs.
//!
//! A program that uses `LinuxMounts` is its own probe. Its `main` calls [`serve_if_asked`] first, before it parses
//! arguments or starts threads. The returned command is the only one for the program itself, so that none forgets the call:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use volume_manager::mounts::linux::{LinuxMounts, MountSettings, ProbeCommand, probe};
//!
//! fn main() -> ExitCode {
//!     match probe::serve_if_asked() {
//!         Ok(probe) => program(probe),
//!         Err(code) => code,
//!     }
//! }
//!
//! #[tokio::main]
//! async fn program(probe: ProbeCommand) -> ExitCode {
//!     match LinuxMounts::open(probe, MountSettings::default()).await {
//!         Ok(_mounts) => ExitCode::SUCCESS,
//!         Err(_error) => ExitCode::FAILURE,
//!     }
//! }
//! ```
//!
//! The first argument of a probe is [`MARKER`], the others are the request. The probe prints one line and exits. It also exits
//! after its deadline, and when its parent process exits, so that a late removal for a killed parent cannot affect the targets
//! of the next one.

#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::super::{DeviceNumber, Inspection, MountId, MountPath, PathState, SafeRemoval, escape};
use super::{OpenMountsError, ProbeCommand};

/// The first argument of a probe process.
pub const MARKER: &str = "--volume-manager-mount-probe";

/// The exit status of a probe whose deadline has passed, or whose parent exited.
const ABANDONED_STATUS: i32 = 75;

/// Returns the command of this program's probes. It remains valid after an upgrade has replaced the program's file.
///
/// # Errors
/// If this process was started as a probe: the request is served, and the program must exit with the code.
pub fn serve_if_asked() -> Result<ProbeCommand, ExitCode> {
    match serve(std::env::args_os().skip(1)) {
        Some(code) => Err(code),
        None => Ok(ProbeCommand::own()),
    }
}

/// Checks that a process which opens `LinuxMounts` is no probe, and that the command starts no program that would open them
/// again: each would start the next.
pub(super) fn check(command: &ProbeCommand) -> Result<(), OpenMountsError> {
    if std::env::args_os().any(|argument| argument == MARKER) {
        return Err(OpenMountsError::StartedAsProbe);
    }
    let file = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let own = file(Path::new(ProbeCommand::OWN_PROGRAM));
    // Arguments may lead to a part of the program that serves, as in a test binary.
    let is_forgotten = !command.is_served && command.arguments.is_empty();
    if is_forgotten && own.is_some() && file(&command.program) == own {
        return Err(OpenMountsError::OwnProgram { program: command.program.clone() });
    }
    Ok(())
}

/// Serves the request in `arguments`, which do not include the program's name, if they are those of a probe. For a program that
/// is only a probe; returns `None` if it was not started as one.
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
    // New directories must get exactly the requested mode. The process executes one operation only.
    rustix::process::umask(rustix::fs::Mode::empty());
    exit_with_parent(deadline);
    let line = super::operation::execute(&request).encode();
    let mut output = std::io::stdout().lock();
    let written = output.write_all(line.as_bytes()).and_then(|()| output.flush());
    Some(if written.is_ok() { ExitCode::SUCCESS } else { ExitCode::from(74) })
}

/// Exits after the deadline, or when the parent closes the other end of standard input, whichever is first.
fn exit_with_parent(deadline: Duration) {
    let (closed, wait) = mpsc::channel::<()>();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        drop(closed);
    });
    thread::spawn(move || {
        let _ = wait.recv_timeout(deadline);
        std::process::exit(ABANDONED_STATUS);
    });
}

/// The operation of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Request {
    Inspect(MountPath),
    CreateDirectory(MountPath),
    Remove(SafeRemoval),
}

impl Request {
    /// The path of the operation.
    pub(super) fn path(&self) -> &MountPath {
        match self {
            Self::Inspect(path) | Self::CreateDirectory(path) => path,
            Self::Remove(removal) => removal.path(),
        }
    }

    /// Encodes the arguments, beginning with the [`MARKER`].
    pub(super) fn encode(&self, deadline: Duration) -> [String; 4] {
        let word = match self {
            Self::Inspect(_) => "inspect",
            Self::CreateDirectory(_) => "create-directory",
            Self::Remove(_) => "remove",
        };
        [MARKER.to_owned(), deadline.as_millis().to_string(), word.to_owned(), self.path().to_string()]
    }

    /// Decodes the deadline and the request from the arguments after the [`MARKER`].
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

/// The result of an operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// The operation succeeded.
    Done,
    /// The result of an inspection, or the state that prevents the operation.
    State(Inspection),
    /// The entry to be removed is a mount point.
    Mounted,
    /// The directory to be removed has entries.
    NotEmpty {
        count: usize,
        first: OsString,
    },
    Errno(i32),
}

/// The prefix of the answer's line. Other lines are the program's own output.
const PREFIX: &str = "mount-probe:";

impl Answer {
    /// The maximum number of bytes that a probe may print: an answer with an escaped name of 255 bytes, and the
    /// program's own output.
    pub(super) const MAX_OUTPUT: usize = 8192;

    fn encode(&self) -> String {
        let words = match self {
            Self::Done => "done".to_owned(),
            Self::State(Inspection { state, mount: None }) => format!("is {}", encode_state(*state)),
            Self::State(Inspection { state, mount: Some(mount) }) => {
                format!("is {} {mount}", encode_state(*state))
            }
            Self::Mounted => "mounted".to_owned(),
            Self::NotEmpty { count, first } => {
                format!("not-empty {count} {}", escape::encode_as_text(first.as_bytes()))
            }
            Self::Errno(errno) => format!("errno {errno}"),
        };
        // The answer begins on a new line, whatever the program has printed before.
        format!("\n{PREFIX} {words}\n")
    }

    /// Decodes the answer from the output of a probe; `None` without a complete one.
    pub(super) fn decode(output: &[u8]) -> Option<Self> {
        let mut lines = output.split_inclusive(|&byte| byte == b'\n');
        let line = lines.find_map(|line| line.strip_suffix(b"\n")?.strip_prefix(PREFIX.as_bytes()))?;
        let words: Vec<&str> = std::str::from_utf8(line).ok()?.strip_prefix(' ')?.split(' ').collect();
        Some(match words[..] {
            ["done"] => Self::Done,
            ["is", found] => Self::State(Inspection::of(decode_state(found)?)),
            ["is", found, mount] => {
                Self::State(Inspection::mounted(decode_state(found)?, MountId::new(mount.parse().ok()?)))
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

fn encode_state(state: PathState) -> String {
    match state {
        PathState::Missing => "missing".to_owned(),
        PathState::Directory => "directory".to_owned(),
        PathState::RegularFile { size } => format!("file:{size}"),
        PathState::BlockDevice(device) => format!("block:{device}"),
        PathState::CharacterDevice(device) => format!("character:{device}"),
        PathState::Symlink => "link".to_owned(),
        PathState::Other => "other".to_owned(),
        PathState::Dead { errno } => format!("dead:{errno}"),
        PathState::Hung => "hung".to_owned(),
    }
}

fn decode_state(word: &str) -> Option<PathState> {
    let device = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        Some(DeviceNumber { major: major.parse().ok()?, minor: minor.parse().ok()? })
    };
    Some(match word.split_once(':') {
        None => match word {
            "missing" => PathState::Missing,
            "directory" => PathState::Directory,
            "link" => PathState::Symlink,
            "other" => PathState::Other,
            "hung" => PathState::Hung,
            _ => return None,
        },
        Some(("file", size)) => PathState::RegularFile { size: size.parse().ok()? },
        Some(("block", rest)) => PathState::BlockDevice(device(rest)?),
        Some(("character", rest)) => PathState::CharacterDevice(device(rest)?),
        Some(("dead", errno)) => PathState::Dead { errno: errno.parse().ok()? },
        Some(_) => return None,
    })
}
