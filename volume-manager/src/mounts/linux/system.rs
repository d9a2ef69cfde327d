//! The mounts of Linux behind the trait.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::super::{
    CreateError, Inspection, MountChanges, MountPath, MountTable, Mounts, Presence, RemoveError, Removed,
    SafeRemoval, TableError, Trouble,
};
use super::probe::{Answer, Request};
use super::process::{ProbeCommand, Probes, Settings};
use super::reading::{Changes, Reading};
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
    /// If the table cannot be read, or the program is no probe.
    pub async fn open(command: ProbeCommand, settings: Settings) -> Result<Self, OpenError> {
        let table = TableReader::open().map_err(TableError::Read)?;
        let table = Mutex::new(table);
        // Nothing of the reader is left half done by a panic: it has no table then and reads anew.
        let read = move || table.lock().unwrap_or_else(PoisonError::into_inner).table();
        let tables = Arc::new(Reading::new(settings.deadline, read));
        let probes = Arc::new(Probes::new(command, &settings, Arc::clone(&tables)));
        let mounts = Self { probes, tables };
        mounts.table().await?;
        match mounts.inspect(Path::new("/proc")).await?.presence {
            Presence::Hung => Err(mounts.probes.wrong(io::Error::other("it does not answer")).into()),
            _ => Ok(mounts),
        }
    }

    /// How many processes were killed and hang in the kernel still.
    #[must_use]
    pub fn hung_processes(&self) -> usize {
        self.probes.hung()
    }

    /// What a probe says that it could not do, or what it says though it was not asked.
    fn trouble(&self, path: &MountPath, answer: &Answer) -> Trouble {
        match answer {
            Answer::Errno(errno) => {
                let source = io::Error::from_raw_os_error(*errno);
                Trouble::Io { path: path.as_path().to_owned(), source }
            }
            other => {
                self.probes.wrong(io::Error::other(format!("it answered {other:?}, which was not asked")))
            }
        }
    }
}

/// Why the mounts of Linux cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
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

    async fn inspect(&self, path: &Path) -> Result<Inspection, Trouble> {
        let path = MountPath::new(path).map_err(|error| Trouble::Io {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        match self.probes.ask(&Request::Inspect(path.clone())).await {
            Ok(Answer::Is(inspection)) => Ok(inspection),
            Ok(other) => Err(self.trouble(&path, &other)),
            Err(Trouble::Hung { .. }) => Ok(Inspection::of(Presence::Hung)),
            Err(trouble) => Err(trouble),
        }
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        match self.probes.ask(&Request::CreateDirectory(path.clone())).await? {
            Answer::Done => Ok(()),
            Answer::Is(Inspection { presence: found, .. }) => {
                Err(CreateError::Occupied { path: path.as_path().to_owned(), found })
            }
            other => Err(self.trouble(path, &other).into()),
        }
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path().to_owned();
        match self.probes.ask(&Request::Remove(removal.clone())).await? {
            Answer::Done => Ok(Removed::Removed),
            Answer::Is(found) => removal.refused(found.presence),
            Answer::Mounted => Err(RemoveError::Mounted { path }),
            Answer::NotEmpty { count, first } => Err(RemoveError::NotEmpty { path, count, first }),
            other => Err(self.trouble(removal.path(), &other).into()),
        }
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        Ok(Box::new(Changes::open()?))
    }
}
