//! The inputs of every test.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use edge_csi_tests::certificates::ClusterCertificates;

use super::component::Components;
use super::error::E2eError;

/// The programs, the certificates, and two folders of one test.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup<'a> {
    pub(crate) components: &'a Components,
    pub(crate) certificates: &'a Arc<ClusterCertificates>,
    /// Removed at the end. The path is short, since socket paths have a length limit.
    pub(crate) scratch: &'a Path,
    /// Kept after the run.
    pub(crate) logs: &'a Path,
}

impl Setup<'_> {
    /// Creates a folder for one part of the test.
    pub(crate) fn folder(&self, name: &str) -> Result<PathBuf, E2eError> {
        let path = self.scratch.join(name);
        std::fs::create_dir_all(&path).map_err(|cause| E2eError::Folder { path: path.clone(), cause })?;
        Ok(path)
    }

    /// Returns how often a text is in the log with this name.
    pub(crate) fn logged(&self, log: &str, words: &str) -> usize {
        let log = self.logs.join(format!("{log}.log"));
        std::fs::read_to_string(log).unwrap_or_default().matches(words).count()
    }
}

/// Separate folders for a part of a test.
#[derive(Debug)]
pub(crate) struct Folders {
    scratch: PathBuf,
    logs: PathBuf,
}

impl Folders {
    /// Creates the folders below those of the whole test.
    pub(crate) fn make(setup: Setup<'_>, name: &str) -> Result<Self, E2eError> {
        let folders = Self { scratch: setup.scratch.join(name), logs: setup.logs.join(name) };
        for folder in [&folders.scratch, &folders.logs] {
            std::fs::create_dir_all(folder)
                .map_err(|cause| E2eError::Folder { path: folder.clone(), cause })?;
        }
        Ok(folders)
    }

    /// Returns the setup of the part of the test with these folders.
    pub(crate) fn of<'a>(&'a self, setup: Setup<'a>) -> Setup<'a> {
        Setup { scratch: &self.scratch, logs: &self.logs, ..setup }
    }
}
