//! Reads the kernel's mount table, and caches it while it is unchanged.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{InvalidMountTable, MountTable, TableError};

const PATH: &str = "/proc/self/mountinfo";

/// The maximum number of reads of a table that changes during each read. A read of 10,000 mounts takes some
/// milliseconds.
const MAX_READS: usize = 64;

/// Reads the mounts of this process's namespace.
///
/// # Errors
/// If the file cannot be read or is invalid, or the table changes during every read.
pub fn read_table() -> Result<MountTable, TableError> {
    let mut file = File::open(PATH).map_err(TableError::Read)?;
    Ok(MountTable::parse(&read(&mut file)?)?)
}

/// A reader that reads the table again only after a change, which it finds with one system call.
///
/// The kernel does not signal a change of a mount's propagation (`mount --make-private`).
#[derive(Debug)]
pub(super) struct TableReader {
    file: File,
    last: Option<Arc<MountTable>>,
}

impl TableReader {
    /// Opens a reader for the present mount namespace of this process.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self { file: File::open(PATH)?, last: None })
    }

    /// Returns the table, no older than the call.
    ///
    /// # Errors
    /// If the file cannot be read or is invalid, or the table changes during every read.
    pub(super) fn table(&mut self) -> Result<Arc<MountTable>, TableError> {
        let changed = has_changed(&self.file).map_err(TableError::Read)?;
        if !changed && let Some(last) = &self.last {
            return Ok(Arc::clone(last));
        }
        self.last = None;
        let table = Arc::new(MountTable::parse(&read(&mut self.file)?)?);
        self.last = Some(Arc::clone(&table));
        Ok(table)
    }
}

/// Whether the table has changed since the last call, or since the file was opened.
fn has_changed(file: &File) -> io::Result<bool> {
    let mut polled = [PollFd::new(file, PollFlags::PRI)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    loop {
        match poll(&mut polled, Some(&now)) {
            Ok(_) => return Ok(polled[0].revents().contains(PollFlags::PRI)),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn read(file: &mut File) -> Result<Vec<u8>, TableError> {
    read_until_stable(file, read_once, has_changed)
}

/// Reads until the table did not change during a read. The kernel returns the table in several parts. Before Linux 5.8 it
/// continues by position, and an unmount between two parts makes it skip an existing mount, which would appear lost.
fn read_until_stable<F>(
    file: &mut F,
    mut read: impl FnMut(&mut F) -> io::Result<Vec<u8>>,
    mut has_changed: impl FnMut(&F) -> io::Result<bool>,
) -> Result<Vec<u8>, TableError> {
    for _ in 0..MAX_READS {
        let text = read(file).map_err(TableError::Read)?;
        if text.len() > MountTable::MAX_BYTES {
            return Err(InvalidMountTable::TooLong.into());
        }
        if !has_changed(file).map_err(TableError::Read)? {
            return Ok(text);
        }
    }
    Err(TableError::Unstable { reads: MAX_READS })
}

fn read_once(file: &mut File) -> io::Result<Vec<u8>> {
    file.rewind()?;
    let mut text = Vec::with_capacity(64 * 1024);
    let limit = u64::try_from(MountTable::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// The first text is missing a mount that exists all the time.
    #[test]
    fn reads_again_after_a_change_during_the_read() {
        let reads = Cell::new(0);
        let read = |_: &mut ()| {
            reads.set(reads.get() + 1);
            Ok(if reads.get() == 1 { b"torn".to_vec() } else { b"whole".to_vec() })
        };
        let text = read_until_stable(&mut (), read, |()| Ok(reads.get() < 2)).unwrap();
        assert_eq!((text.as_slice(), reads.get()), (&b"whole"[..], 2));
        let unstable = read_until_stable(&mut (), |()| Ok(Vec::new()), |()| Ok(true));
        assert!(matches!(unstable, Err(TableError::Unstable { reads: MAX_READS })), "{unstable:?}");
    }
}
