//! Why a file cannot be used.

use std::path::PathBuf;

use super::MAX_FILE;
use crate::name::PeerId;

/// Why a file cannot be used. Of the content, the error has names only, never a token.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The system call failed.
    #[error("cannot read {kind} {}: {source}", path.display())]
    Io {
        /// Kind of the file, for example `private key`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// The cause.
        source: std::io::Error,
    },
    /// The file is too large.
    #[error("{kind} {} has more than {MAX_FILE} bytes", path.display())]
    TooLarge {
        /// Kind of the file, for example `private key`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The file has too many lines.
    #[error("{kind} {} has more than {max} lines", path.display())]
    TooManyLines {
        /// Kind of the file, for example `deny list`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// Maximum number of lines.
        max: usize,
    },
    /// A line is not an entry of such a file.
    #[error("{kind} {}, line {line}: {cause}", path.display())]
    Line {
        /// Kind of the file, for example `deny list`.
        kind: &'static str,
        /// The file.
        path: PathBuf,
        /// Line number, from 1.
        line: usize,
        /// What is wrong, and what is expected.
        cause: String,
    },
    /// A deny list denies the hub itself, whose own services would end.
    #[error(
        "deny list {} has {name:?}, which is the name of the hub itself, and its services: remove that line", path.display()
    )]
    DeniesHub {
        /// The file.
        path: PathBuf,
        /// The entry.
        name: PeerId,
    },
}
