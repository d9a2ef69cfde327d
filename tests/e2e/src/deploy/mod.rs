//! The manifests and the guide's commands, on API servers and as pods.

mod check;
mod cluster;
mod live;
mod namespaces;
mod pods;
mod policies;
mod rights;

use std::path::{Path, PathBuf};
use std::time::Instant;
use std::{fmt, fs};

use libtest_mimic::Failed;

use super::Environment;
use super::component::Part;
use super::error::E2eError;
use super::setup::Setup;
use super::table;
pub(crate) use namespaces::inside;

/// The deployment under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deployment {
    /// All manifests, checked against an API server.
    Check,
    /// The overlay `topology` on an API server.
    Topology,
    /// The overlay `sockets` on an API server.
    Sockets,
    /// The overlay `topology` as pods.
    Pods,
}

impl Deployment {
    pub(crate) const ALL: [Self; 4] = [Self::Check, Self::Topology, Self::Sockets, Self::Pods];

    pub(crate) fn run(self, environment: &Environment) -> Result<(), Failed> {
        let components = environment.components()?;
        components.build(Part::Sidecars)?;
        components.build(Part::Kubernetes)?;
        let started = Instant::now();
        let (scratch, logs) = environment.folders(&self.to_string())?;
        let setup =
            Setup { components, certificates: &environment.certificates, scratch: &scratch, logs: &logs };
        let facts = match self {
            Self::Check => {
                let definitions = [components.snapshot_definitions()?, components.certificate_definitions()?];
                check::run(setup, &environment.root, &definitions)?
            }
            Self::Topology => live::run(setup, &environment.root, "topology")?,
            Self::Sockets => live::run(setup, &environment.root, "sockets")?,
            Self::Pods => namespaces::run(setup)?,
        };
        table::found(&self.to_string(), facts, started.elapsed())
    }
}

/// Lists a folder, which must not be empty.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, E2eError> {
    let failed = |cause| E2eError::Folder { path: folder.to_owned(), cause };
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
    if found.is_empty() {
        return Err(failed(std::io::ErrorKind::NotFound.into()));
    }
    found.sort();
    Ok(found)
}

/// Lists the entries of all folders in a folder.
pub(crate) fn inner_entries(folder: &Path) -> Vec<PathBuf> {
    let paths =
        |folder: &Path| fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    paths(folder).flat_map(|folder| paths(&folder)).collect()
}

fn read(path: &Path) -> Result<String, E2eError> {
    fs::read_to_string(path).map_err(|cause| E2eError::File { path: path.to_owned(), cause })
}

fn write(path: &Path, text: &str) -> Result<(), E2eError> {
    fs::write(path, text).map_err(|cause| E2eError::File { path: path.to_owned(), cause })
}

impl fmt::Display for Deployment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Check => "deploy-check",
            Self::Topology => "deploy-topology",
            Self::Sockets => "deploy-sockets",
            Self::Pods => "deploy-pods",
        })
    }
}
