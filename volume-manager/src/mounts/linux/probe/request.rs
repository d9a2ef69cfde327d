//! A request as the arguments of a process.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::time::Duration;

#[cfg(feature = "runtime")]
use super::super::super::Removable;
use super::super::super::{AbsolutePath, SafeRemoval, escape};

/// The one operation of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Request {
    /// To see whether the program is a probe at all.
    Hello,
    Inspect(AbsolutePath),
    CreateDirectory(AbsolutePath),
    Remove(SafeRemoval),
}

impl Request {
    /// The path that it walks.
    #[cfg(feature = "runtime")]
    pub(in super::super) fn path(&self) -> Option<&AbsolutePath> {
        match self {
            Self::Hello => None,
            Self::Inspect(path) | Self::CreateDirectory(path) => Some(path),
            Self::Remove(removal) => Some(removal.path()),
        }
    }

    /// The arguments, from the [`MARKER`](super::MARKER) on.
    #[cfg(feature = "runtime")]
    pub(in super::super) fn encode(&self, deadline: Duration) -> Vec<String> {
        let word = match self {
            Self::Hello => "hello",
            Self::Inspect(_) => "inspect",
            Self::CreateDirectory(_) => "create-directory",
            Self::Remove(removal) => match removal.what() {
                Removable::EmptyDirectory => "remove-directory",
                Removable::EmptyTarget => "remove-target",
            },
        };
        let path = self.path().map(text).unwrap_or_default();
        vec![super::MARKER.to_owned(), deadline.as_millis().to_string(), word.to_owned(), path]
    }
}

/// The deadline and the request, from the arguments after the [`MARKER`](super::MARKER).
pub(super) fn decode(arguments: &[OsString]) -> Option<(Duration, Request)> {
    let [deadline, word, path] = arguments else { return None };
    let deadline = Duration::from_millis(deadline.to_str()?.parse().ok()?);
    let request = match word.to_str()? {
        "hello" => Request::Hello,
        "inspect" => Request::Inspect(absolute(path)?),
        "create-directory" => Request::CreateDirectory(absolute(path)?),
        "remove-directory" => Request::Remove(SafeRemoval::empty_directory(absolute(path)?.as_path()).ok()?),
        "remove-target" => Request::Remove(SafeRemoval::target(absolute(path)?.as_path()).ok()?),
        _ => return None,
    };
    Some((deadline, request))
}

/// A path as an argument that any program can read as text, whatever its bytes.
#[cfg(feature = "runtime")]
fn text(path: &AbsolutePath) -> String {
    escape::encode_as_text(path.as_path().as_os_str().as_bytes())
}

fn absolute(text: &OsString) -> Option<AbsolutePath> {
    let bytes = escape::decode(text.as_bytes())?;
    AbsolutePath::new(Path::new(&OsString::from_vec(bytes))).ok()
}
