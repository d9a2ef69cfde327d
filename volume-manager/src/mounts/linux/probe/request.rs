//! A request as the arguments of a process.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "runtime")]
use super::super::super::Removable;
use super::super::super::{
    AbsolutePath, Bind, Creation, CreationKind, MountId, SafeRemoval, Unmount, UnmountMode, escape,
};

/// The one operation of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Request {
    /// To see whether the program is a probe at all.
    Hello,
    Inspect(AbsolutePath),
    Create(Creation),
    Bind(Bind),
    Unmount(Unmount),
    Remove(SafeRemoval),
}

impl Request {
    /// The paths that it walks.
    #[cfg(feature = "runtime")]
    pub(in super::super) fn paths(&self) -> Vec<&Path> {
        match self {
            Self::Hello => vec![],
            Self::Inspect(path) => vec![path.as_path()],
            Self::Create(creation) => vec![creation.path.as_path()],
            Self::Bind(bind) => vec![bind.target.as_path(), bind.source.as_path()],
            Self::Unmount(unmount) => vec![unmount.path.as_path()],
            Self::Remove(removal) => vec![removal.path().as_path()],
        }
    }

    /// The arguments, from the [`MARKER`](super::MARKER) on.
    #[cfg(feature = "runtime")]
    pub(in super::super) fn encode(&self, deadline: Duration) -> Vec<String> {
        let words: [String; 4] = match self {
            Self::Hello => ["hello", "", "", ""].map(str::to_owned),
            Self::Inspect(path) => ["inspect".to_owned(), String::new(), String::new(), text(path)],
            Self::Create(creation) => {
                let kind = match (creation.kind, creation.parents) {
                    (CreationKind::Directory, true) => "directories",
                    (CreationKind::Directory, false) => "directory",
                    (CreationKind::Placeholder, true) => "deep-placeholder",
                    (CreationKind::Placeholder, false) => "placeholder",
                };
                ["create".to_owned(), kind.to_owned(), creation.mode.to_string(), text(&creation.path)]
            }
            Self::Bind(bind) => {
                let kind = if bind.read_only { "ro" } else { "rw" };
                ["bind".to_owned(), kind.to_owned(), text(&bind.source), text(&bind.target)]
            }
            Self::Unmount(unmount) => {
                let mode = match unmount.mode {
                    UnmountMode::Normal => "normal",
                    UnmountMode::Force => "force",
                    UnmountMode::Lazy => "lazy",
                };
                let only = unmount.only.map(|only| only.to_string()).unwrap_or_default();
                ["unmount".to_owned(), mode.to_owned(), only, text(&unmount.path)]
            }
            Self::Remove(removal) => {
                let what = match removal.what() {
                    Removable::EmptyDirectory => "directory",
                    Removable::Placeholder => "placeholder",
                    Removable::Either => "either",
                };
                ["remove".to_owned(), what.to_owned(), String::new(), text(removal.path())]
            }
        };
        let mut arguments = vec![super::MARKER.to_owned(), deadline.as_millis().to_string()];
        arguments.extend(words);
        arguments
    }
}

/// The deadline and the request, from the arguments after the [`MARKER`](super::MARKER).
pub(super) fn decode(arguments: &[OsString]) -> Option<(Duration, Request)> {
    let [deadline, operation, first, second, last] = arguments else { return None };
    let deadline = Duration::from_millis(deadline.to_str()?.parse().ok()?);
    let first = first.to_str()?;
    let request = match operation.to_str()? {
        "hello" => Request::Hello,
        "inspect" => Request::Inspect(path(last)?),
        "create" => {
            let (kind, parents) = match first {
                "directories" => (CreationKind::Directory, true),
                "directory" => (CreationKind::Directory, false),
                "deep-placeholder" => (CreationKind::Placeholder, true),
                "placeholder" => (CreationKind::Placeholder, false),
                _ => return None,
            };
            let mode = second.to_str()?.parse().ok().filter(|mode| *mode <= 0o7777)?;
            Request::Create(Creation { path: path(last)?, kind, mode, parents })
        }
        "bind" => {
            let read_only = match first {
                "ro" => true,
                "rw" => false,
                _ => return None,
            };
            Request::Bind(Bind { source: path(second)?, target: path(last)?, read_only })
        }
        "unmount" => {
            let mode = match first {
                "lazy" => UnmountMode::Lazy,
                "normal" => UnmountMode::Normal,
                "force" => UnmountMode::Force,
                _ => return None,
            };
            let only = match second.to_str()? {
                "" => None,
                id => Some(MountId::new(id.parse().ok()?)),
            };
            Request::Unmount(Unmount { path: path(last)?, mode, only })
        }
        "remove" => {
            let path = path(last)?;
            Request::Remove(match first {
                "directory" => SafeRemoval::empty_directory(path.as_path()).ok()?,
                "placeholder" => SafeRemoval::placeholder(path.as_path()).ok()?,
                "either" => SafeRemoval::target(path.as_path()).ok()?,
                _ => return None,
            })
        }
        _ => return None,
    };
    Some((deadline, request))
}

/// A path as an argument that any program can read as text, whatever its bytes.
#[cfg(feature = "runtime")]
fn text(path: &AbsolutePath) -> String {
    escape::encode_as_text(path.as_path().as_os_str().as_bytes())
}

fn path(text: &OsString) -> Option<AbsolutePath> {
    let bytes = escape::decode(text.as_bytes())?;
    AbsolutePath::new(Path::new(&OsString::from_vec(bytes))).ok()
}
