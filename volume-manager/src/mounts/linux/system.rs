//! The Linux implementation of [`Mounts`].

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;

use super::super::{
    CreateError, Inspection, MountChanges, MountPath, MountTable, Mounts, PathState, ProbeError, RemoveError,
    Removed, SafeRemoval, TableError,
};
use super::probe::{self, Answer, Request};
use super::process::{MountSettings, ProbeCommand, Probes};
use super::reader::{Changes, SharedReader};
use super::table::TableReader;
use crate::excerpt::chain;

/// The mounts in the mount namespace of this process. Clones share their limits.
///
/// Every operation except reading the table runs in its own process with a deadline, see [`linux`](super). A tokio
/// runtime with I/O and time enabled is required.
#[derive(Debug, Clone)]
pub struct LinuxMounts {
    probes: Arc<Probes>,
    tables: Arc<SharedReader>,
}

impl LinuxMounts {
    /// Opens the table, and runs a test probe.
    ///
    /// # Errors
    /// If the table cannot be read, or the test probe fails. Without starting a process, if `main` has not called
    /// [`serve_if_asked`](super::probe::serve_if_asked).
    pub async fn open(command: ProbeCommand, settings: MountSettings) -> Result<Self, OpenMountsError> {
        probe::check(&command)?;
        let table = TableReader::open().map_err(TableError::Read)?;
        let table = Mutex::new(table);
        // After a panic the reader has no cached table, and reads again.
        let read = move || table.lock().unwrap_or_else(PoisonError::into_inner).table();
        let tables = Arc::new(SharedReader::new(settings.deadline, read));
        let probes = Arc::new(Probes::new(command, &settings, Arc::clone(&tables)));
        let mounts = Self { probes, tables };
        mounts.table().await?;
        match mounts.inspect(Path::new("/proc")).await?.state {
            PathState::Hung => {
                Err(mounts.probes.broken(io::Error::other("the process does not answer")).into())
            }
            _ => Ok(mounts),
        }
    }

    /// The number of killed processes that still hang in the kernel.
    #[must_use]
    pub fn hung_processes(&self) -> usize {
        self.probes.hung()
    }

    /// Returns the error of an answer that is an errno, or does not match the request.
    fn error(&self, path: &MountPath, answer: &Answer) -> ProbeError {
        match answer {
            Answer::Errno(errno) => {
                let source = io::Error::from_raw_os_error(*errno);
                ProbeError::Io { path: path.as_path().to_owned(), source }
            }
            other => self
                .probes
                .broken(io::Error::other(format!("the answer {other:?} does not match the request"))),
        }
    }
}

/// Why [`LinuxMounts`] could not be opened. Its `Debug`, which a `main` that returns the error prints, has the whole text.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum OpenMountsError {
    /// The mount table cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The probe failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// This process was started as a probe, and has not served it.
    #[error("this process was started as a mount probe; its main must begin with probe::serve_if_asked")]
    StartedAsProbe,
    /// The command starts the program that uses it.
    #[error(
        "the probe command {} is this program itself; let main begin with probe::serve_if_asked, and use the command that it returns",
        program.display()
    )]
    OwnProgram {
        /// The program.
        program: std::path::PathBuf,
    },
}

impl fmt::Debug for OpenMountsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let variant = match self {
            Self::Table(_) => "Table",
            Self::Probe(_) => "Probe",
            Self::StartedAsProbe => "StartedAsProbe",
            Self::OwnProgram { .. } => "OwnProgram",
        };
        f.debug_tuple(variant).field(&chain(self)).finish()
    }
}

#[async_trait]
impl Mounts for LinuxMounts {
    async fn table(&self) -> Result<Arc<MountTable>, TableError> {
        self.tables.table().await
    }

    async fn inspect(&self, path: &Path) -> Result<Inspection, ProbeError> {
        let path = MountPath::new(path).map_err(|error| ProbeError::Io {
            path: path.to_owned(),
            source: io::Error::new(io::ErrorKind::InvalidInput, error),
        })?;
        match self.probes.run(&Request::Inspect(path.clone())).await {
            Ok(Answer::State(inspection)) => Ok(inspection),
            Ok(other) => Err(self.error(&path, &other)),
            Err(ProbeError::Hung { .. }) => Ok(Inspection::of(PathState::Hung)),
            Err(error) => Err(error),
        }
    }

    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError> {
        match self.probes.run(&Request::CreateDirectory(path.clone())).await? {
            Answer::Done => Ok(()),
            Answer::State(Inspection { state: found, .. }) => {
                Err(CreateError::Occupied { path: path.as_path().to_owned(), found })
            }
            other => Err(self.error(path, &other).into()),
        }
    }

    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError> {
        let path = removal.path().as_path().to_owned();
        match self.probes.run(&Request::Remove(removal.clone())).await? {
            Answer::Done => Ok(Removed::Removed),
            Answer::State(found) => removal.reject(found.state),
            Answer::Mounted => Err(RemoveError::Mounted { path }),
            Answer::NotEmpty { count, first } => Err(RemoveError::NotEmpty { path, count, first }),
            other => Err(self.error(removal.path(), &other).into()),
        }
    }

    fn changes(&self) -> io::Result<Box<dyn MountChanges>> {
        Ok(Box::new(Changes::open()?))
    }
}
