//! Reading the table of the kernel, and not reading it again while it is the same.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{InvalidMountTable, MountTable, TableError};

const PATH: &str = "/proc/self/mountinfo";

/// The mounts of this process's namespace, now.
///
/// # Errors
/// If the file cannot be read or is none.
pub fn read_table() -> Result<MountTable, TableError> {
    read(&mut File::open(PATH).map_err(TableError::Read)?)
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
    /// If it cannot be read or is none.
    pub fn table(&mut self) -> Result<Arc<MountTable>, TableError> {
        // Asked before reading: what changes in between is then told the next time.
        let changed = self.has_changed().map_err(TableError::Read)?;
        if !changed && let Some(last) = &self.last {
            return Ok(Arc::clone(last));
        }
        self.last = None;
        self.file.rewind().map_err(TableError::Read)?;
        let table = Arc::new(read(&mut self.file)?);
        self.last = Some(Arc::clone(&table));
        Ok(table)
    }

    fn has_changed(&self) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.file, PollFlags::PRI)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        loop {
            match poll(&mut polled, Some(&now)) {
                Ok(_) => return Ok(polled[0].revents().contains(PollFlags::PRI)),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

fn read(file: &mut File) -> Result<MountTable, TableError> {
    let mut text = Vec::with_capacity(64 * 1024);
    let limit = u64::try_from(MountTable::MAX_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    file.take(limit).read_to_end(&mut text).map_err(TableError::Read)?;
    if text.len() > MountTable::MAX_BYTES {
        return Err(InvalidMountTable::TooLong.into());
    }
    Ok(MountTable::parse(&text)?)
}
