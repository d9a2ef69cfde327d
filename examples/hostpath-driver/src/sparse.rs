//! Copies of image files that stay as sparse as their source, and share its blocks where the filesystem can.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{SeekFrom, copy_file_range, ioctl_ficlone, seek};
use rustix::io::Errno;

// Maximum number of bytes in one request to the kernel.
const CHUNK: u64 = 64 << 20;

/// Creates a file of this size without allocating any of it.
///
/// # Errors
/// Returns the errors of the filesystem; `AlreadyExists` if the file exists.
pub fn create(path: &Path, bytes: u64) -> io::Result<()> {
    let file = new_file(path)?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// Copies an image to a new file of at least `bytes`, and makes it durable.
///
/// # Errors
/// Returns the errors of the filesystem; `AlreadyExists` if the target exists.
pub fn copy(from: &Path, to: &Path, bytes: u64) -> io::Result<()> {
    let source = File::open(from)?;
    let target = new_file(to)?;
    if ioctl_ficlone(&target, &source).is_err() {
        let mut from = 0;
        while let Some(extent) = next_extent(&source, from)? {
            from = extent.end;
            copy_extent(&source, &target, extent)?;
        }
    }
    target.set_len(bytes.max(source.metadata()?.len()))?;
    target.sync_all()
}

/// Returns true if an image was never written.
///
/// # Errors
/// Returns the errors of the filesystem.
pub fn is_blank(path: &Path) -> io::Result<bool> {
    Ok(next_extent(&File::open(path)?, 0)?.is_none())
}

/// Returns the first run of written bytes that ends after `from`.
///
/// # Errors
/// Returns the errors of the filesystem.
fn next_extent(file: &File, from: u64) -> io::Result<Option<Range<u64>>> {
    match seek(file, SeekFrom::Data(from)) {
        Ok(start) => Ok(Some(start..seek(file, SeekFrom::Hole(start))?)),
        Err(Errno::NXIO) => Ok(None),
        Err(other) => Err(other.into()),
    }
}

fn copy_extent(source: &File, target: &File, extent: Range<u64>) -> io::Result<()> {
    let (mut read_at, mut write_at) = (extent.start, extent.start);
    while read_at < extent.end {
        let wanted = usize::try_from((extent.end - read_at).min(CHUNK)).unwrap_or(usize::MAX);
        if copy_file_range(source, Some(&mut read_at), target, Some(&mut write_at), wanted)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

fn new_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    #[test]
    fn a_copy_has_the_same_bytes_and_the_same_holes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        create(&from, 64 << 20).unwrap();
        assert!(is_blank(&from).unwrap());
        let file = OpenOptions::new().write(true).open(&from).unwrap();
        file.write_all_at(b"first", 0).unwrap();
        file.write_all_at(b"second", 40 << 20).unwrap();
        copy(&from, &to, 80 << 20).unwrap();

        assert!(!is_blank(&to).unwrap());
        let copied = fs::read(&to).unwrap();
        assert_eq!(
            (copied.len(), &copied[..5], &copied[40 << 20..(40 << 20) + 6]),
            (80 << 20, &b"first"[..], &b"second"[..])
        );
        assert!(copied.iter().filter(|b| **b != 0).count() == 11);
        let allocated = fs::metadata(&to).unwrap().blocks() * 512;
        assert!(allocated < 4 << 20, "{allocated} bytes are allocated for 11");
    }

    #[test]
    fn an_image_is_never_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, "data").unwrap();
        assert_eq!(create(&path, 10).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(copy(&path, &path, 10).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"data");
    }
}
