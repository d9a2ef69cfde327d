//! Reading the table of the kernel, and not reading it again while it is the same.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{InvalidMountTable, MountTable, TableError};

const PATH: &str = "/proc/self/mountinfo";

/// How often a table that changes while it is read is read. One of 10,000 mounts takes some milliseconds.
const MAX_READS: usize = 64;

/// The mounts of this process's namespace, now.
///
/// # Errors
/// If the file cannot be read or is none, or the table never stays the same while it is read.
pub fn read_table() -> Result<MountTable, TableError> {
    let mut file = File::open(PATH).map_err(TableError::Read)?;
    Ok(MountTable::parse(&read(&mut file)?)?)
}

/// Reads the table again only if the kernel says that it has changed, which costs one system call.
///
/// The kernel does not count a change of the propagation of a mount (`mount --make-private`) as a change.
#[derive(Debug)]
pub struct TableReader {
    file: File,
    last: Option<Arc<MountTable>>,
}

impl TableReader {
    /// A reader for the mount namespace that this process is in now.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn open() -> io::Result<Self> {
        Ok(Self { file: File::open(PATH)?, last: None })
    }

    /// The table, at least as new as the call.
    ///
    /// # Errors
    /// If it cannot be read or is none, or it never stays the same while it is read.
    pub fn table(&mut self) -> Result<Arc<MountTable>, TableError> {
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

/// Whether the table has changed since this was asked the last time, or the file opened.
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
    read_until_quiet(file, read_once, has_changed)
}

/// The kernel hands the table out in pieces. Before Linux 5.8 it goes on by counting, and an unmount between two pieces makes
/// it leave out a mount that is there, which then looks lost. So only what was read without a change counts.
fn read_until_quiet<F>(
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
    Err(TableError::Restless { reads: MAX_READS })
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

    /// The first text lacks a mount that is there all the time.
    #[test]
    fn what_was_read_while_the_table_changed_is_read_again() {
        let reads = Cell::new(0);
        let read = |_: &mut ()| {
            reads.set(reads.get() + 1);
            Ok(if reads.get() == 1 { b"torn".to_vec() } else { b"whole".to_vec() })
        };
        let text = read_until_quiet(&mut (), read, |()| Ok(reads.get() < 2)).unwrap();
        assert_eq!((text.as_slice(), reads.get()), (&b"whole"[..], 2));
        let restless = read_until_quiet(&mut (), |()| Ok(Vec::new()), |()| Ok(true));
        assert!(matches!(restless, Err(TableError::Restless { reads: MAX_READS })), "{restless:?}");
    }
}
