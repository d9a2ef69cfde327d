//! Reading the directory of the registration sockets.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::Path;

use super::core::{Generation, SocketFile, SocketName};

/// The most entries that are read. More than this is no directory of registration sockets.
pub(super) const MAX_ENTRIES: usize = 4096;

/// Why the sockets of a directory are not known.
#[derive(Debug, thiserror::Error)]
pub(super) enum ListError {
    /// The system refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Sockets may be among the entries that were not read, so nothing can be said of any.
    #[error("more than {MAX_ENTRIES} entries; use a directory that holds nothing but registration sockets")]
    TooLarge,
}

/// Makes the directory, open to its owner and readable to the group as kubelet makes it, unless it is there.
pub(super) fn create(directory: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o750).create(directory)
}

/// Every socket directly in the directory. A directory that is gone has none.
pub(super) fn list(directory: &Path) -> Result<Vec<SocketFile>, ListError> {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.into()),
    };
    let mut sockets = Vec::new();
    for (index, entry) in entries.enumerate() {
        if index == MAX_ENTRIES {
            return Err(ListError::TooLarge);
        }
        let entry = entry?;
        let Some(name) = SocketName::new(entry.file_name()) else { continue };
        // A link to a socket is no socket: its target could change without a trace here.
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error.into()),
        };
        if metadata.file_type().is_socket() {
            let modified_nanos =
                i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
            sockets
                .push(SocketFile { name, generation: Generation { inode: metadata.ino(), modified_nanos } });
        }
    }
    Ok(sockets)
}
