//! The mounts of Linux behind the trait.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::super::{
    AbsolutePath, CreateError, InspectError, Inspection, MountChanges, MountTable, Mounts, Presence,
    RemoveError, Removed, SafeRemoval, TableError, Trouble,
};
use super::changes::Changes;
use super::probe::{Answer, Request};
use super::process::Probes;
use super::reading::Reading;
use super::settings::{InvalidSettings, ProbeCommand, Settings};
use super::table::TableReader;

/// The mounts of the mount namespace of this process. Clones share their bounds.
///
/// Every operation but the reading of the table is a process of its own with a deadline, see [`linux`](super). It needs
/// a tokio runtime with I/O and time.
#[derive(Debug, Clone)]
pub struct LinuxMounts {
    probes: Arc<Probes>,
    tables: Arc<Reading>,
}

impl LinuxMounts {
    /// Opens the table, and tries a probe once.
    ///
    /// # Errors
    /// If a setting is out of bounds, the table cannot be read, or the program is no probe.
    pub async fn open(command: ProbeCommand, settings: Settings) -> Result<Self, OpenError> {
        settings.check()?;
        let table = TableReader::open().map_err(TableError::Read)?;
        let table = Mutex::new(table);
        // Nothing of the reader is left half done by a panic: it has no table then and reads anew.
        let read = move || table.lock().unwrap_or_else(PoisonError::into_inner).table();
        let tables = Arc::new(Reading::new(settings.deadline, read));
        let probes = Arc::new(Probes::new(command, &settings, Arc::clone(&tables)));
        let mounts = Self { probes, tables };
        mounts.table().await?;
        match mounts.probes.ask(&Request::Hello).await? {
            Answer::Hello => Ok(mounts),
            other => Err(mounts.misunderstood(&other).into()),
        }
    }

    /// How many processes were killed and hang in the kernel still.
    #[must_use]
    pub fn hung_processes(&self) -> usize {
        self.probes.hung()
    }

    fn misunderstood(&self, answer: &Answer) -> Trouble {
        self.probes.wrong(format!("it answered {answer:?}, which was not asked"))
    }

    fn trouble(&self, path: &AbsolutePath, answer: &Answer) -> Trouble {
        match answer {
            Answer::Errno(errno) => {
                let source = io::Error::from_raw_os_error(*errno);
                Trouble::Io { path: path.as_path().to_owned(), source }
            }
            other => self.misunderstood(other),
        }
    }
}

/// Why the mounts of Linux cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// A setting is out of bounds.
    #[error(transparent)]
    Settings(#[from] InvalidSettings),
    /// The table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The probe does not work.
    #[error(transparent)]
    Probe(#[from] Trouble),
}

#[async_trait]
impl Mounts for LinuxMounts {
    async fn table(&self) -> Result<Arc<MountTable>, TableError> {
        self.tables.table().await
    }

    async fn inspect(&self, path: &Path) -> Result<Inspection, InspectError> {
        let path = AbsolutePath::new(path).map_err(|error| Trouble::Io {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        match self.probes.ask(&Request::Inspect(path.clone())).await {
            Ok(Answer::Inspected(inspection)) => Ok(inspection),
            Ok(other) => Err(self.trouble(&path, &other).into()),
            Err(Trouble::Hung { .. }) => Ok(Inspection::of(Presence::Hung)),
            Err(trouble) => Err(trouble.into()),
        }
    }

    async fn create_directory(&self, path: &AbsolutePath) -> Result<(), CreateError> {
        match self.probes.ask(&Request::CreateDirectory(path.clone())).await? {
            Answer::Created => Ok(()),
            Answer::Occupied(found) => Err(CreateError::Occupied { path: path.as_path().to_owned(), found }),
            other => Err(self.trouble(path, &other).into()),
        }
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path().to_owned();
        match self.probes.ask(&Request::Remove(removal.clone())).await? {
            Answer::Removed(removed) => Ok(removed),
            Answer::Mounted => Err(RemoveError::Mounted { path }),
            Answer::NotEmpty { count, first } => Err(RemoveError::NotEmpty { path, count, first }),
            Answer::HasBytes(size) => Err(RemoveError::HasBytes { path, size }),
            Answer::Unfit(found) => Err(RemoveError::Unfit { path, found }),
            other => Err(self.trouble(removal.path(), &other).into()),
        }
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        Ok(Box::new(Changes::open()?))
    }
}
