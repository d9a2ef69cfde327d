//! What every test is given.

use std::path::{Path, PathBuf};

use super::certificates::Certificates;
use super::component::Components;
use super::error::RealError;

/// The programs, the certificates, and two folders of one test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) components: &'a Components,
    pub(crate) certificates: &'a Certificates,
    /// Gone at the end; its path is short, for the sockets in it.
    pub(crate) scratch: &'a Path,
    /// Kept.
    pub(crate) logs: &'a Path,
}

impl Setup<'_> {
    /// A folder of one part, made.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, RealError> {
        let path = self.scratch.join(name);
        std::fs::create_dir_all(&path).map_err(|cause| RealError::Folder { path: path.clone(), cause })?;
        Ok(path)
    }
}

/// Folders for a part of a test, which has its own.
#[derive(Debug)]
pub(crate) struct Folders {
    scratch: PathBuf,
    logs: PathBuf,
}

impl Folders {
    /// Below those of the whole test.
    pub(crate) fn make(setup: Setup<'_>, name: &str) -> Result<Self, RealError> {
        let folders = Self { scratch: setup.scratch.join(name), logs: setup.logs.join(name) };
        for folder in [&folders.scratch, &folders.logs] {
            std::fs::create_dir_all(folder)
                .map_err(|cause| RealError::Folder { path: folder.clone(), cause })?;
        }
        Ok(folders)
    }

    /// The part of the test that has them.
    pub(crate) fn of<'a>(&'a self, setup: Setup<'a>) -> Setup<'a> {
        Setup { scratch: &self.scratch, logs: &self.logs, ..setup }
    }
}
