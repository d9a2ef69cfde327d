//! Files that are replaced as a whole or not at all, also if the power goes.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Writes the pieces, one after the other, into a file of this name. It is its owner's alone (0600), and on the disk when this
/// returns. A draft beside it, with `.new` behind the name, may be left by a process that was killed.
///
/// # Errors
/// If the disk refuses. The file is then as it was, or as it was to be.
pub fn replace(directory: &Path, name: &str, pieces: &[&[u8]]) -> io::Result<()> {
    let draft = directory.join(format!("{name}.new"));
    let mut options = File::options();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&draft)?;
    for piece in pieces {
        file.write_all(piece)?;
    }
    file.sync_all()?;
    fs::rename(&draft, directory.join(name))?;
    File::open(directory)?.sync_all()
}
