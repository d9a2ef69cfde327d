//! The settings of a cluster.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{ClusterError, DRIVER, TestCluster};
use crate::certificates::ClusterCertificates;
use crate::link::{HubLink, LinkKind};
use crate::{binaries, port};

/// The longest path of a unix socket on Linux, in bytes.
const SOCKET_PATH: usize = 107;

pub(super) const DRIVER_SOCKET: &str = "driver.sock";
pub(super) const PROXY_SOCKET: &str = "csi.sock";

/// The programs that a cluster runs.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_structs, reason = "tests list them")]
pub struct Programs {
    /// edge-hub.
    pub hub: PathBuf,
    /// edge-agent.
    pub agent: PathBuf,
    /// edge-csi-driver.
    pub proxy: PathBuf,
    /// hostpath-driver.
    pub driver: PathBuf,
}

impl Programs {
    /// Returns the binaries of this build.
    fn of_this_build() -> Self {
        Self {
            hub: binaries::path("edge-hub"),
            agent: binaries::path("edge-agent"),
            proxy: binaries::path("edge-csi-driver"),
            driver: binaries::path("hostpath-driver"),
        }
    }
}

/// The cable between a hub and its peers.
#[derive(Debug, Clone)]
pub struct LinkFault {
    pub(super) program: PathBuf,
    pub(super) options: &'static [&'static str],
    pub(super) forward: &'static str,
    pub(super) ends: String,
}

/// The settings of a [`TestCluster`].
#[derive(Debug)]
pub struct ClusterBuilder {
    kind: LinkKind,
    host: &'static str,
    fault: Option<(PathBuf, &'static [&'static str])>,
    driver_name: String,
    programs: Option<Programs>,
    certificates: Option<Arc<ClusterCertificates>>,
    hub_options: Vec<String>,
    folders: Option<(PathBuf, PathBuf)>,
}

impl ClusterBuilder {
    pub(super) fn new(kind: LinkKind) -> Self {
        Self {
            kind,
            host: "127.0.0.1",
            fault: None,
            driver_name: DRIVER.to_owned(),
            programs: None,
            certificates: None,
            hub_options: Vec::new(),
            folders: None,
        }
    }

    /// Makes agents and proxies dial the hub by this name of the loopback interface, instead of its address.
    #[must_use]
    pub const fn host(mut self, host: &'static str) -> Self {
        self.host = host;
        self
    }

    /// Injects link faults: runs the program `cable` with these options between the hub and its peers.
    #[must_use]
    pub fn fault(mut self, cable: &Path, options: &'static [&'static str]) -> Self {
        self.fault = Some((cable.to_owned(), options));
        self
    }

    /// Sets the CSI name of the driver.
    #[must_use]
    pub fn driver_name(mut self, name: &str) -> Self {
        name.clone_into(&mut self.driver_name);
        self
    }

    /// Runs these programs instead of the binaries of this build.
    #[must_use]
    pub fn programs(mut self, programs: Programs) -> Self {
        self.programs = Some(programs);
        self
    }

    /// Uses these certificates instead of new ones.
    #[must_use]
    pub fn certificates(mut self, certificates: Arc<ClusterCertificates>) -> Self {
        self.certificates = Some(certificates);
        self
    }

    /// Adds options to the hub.
    #[must_use]
    pub fn hub_options(mut self, options: &[&str]) -> Self {
        self.hub_options = options.iter().map(ToString::to_string).collect();
        self
    }

    /// Puts sockets and state into `directory` and logs into `logs` instead of a temporary directory. The caller removes both
    /// and searches the logs for panics.
    #[must_use]
    pub fn folders(mut self, directory: &Path, logs: &Path) -> Self {
        self.folders = Some((directory.to_owned(), logs.to_owned()));
        self
    }

    /// Builds a cluster in which no process runs.
    ///
    /// # Errors
    /// If the directory cannot be created or a socket's path is too long.
    ///
    /// # Panics
    /// If the binaries of this build cannot be built, or the certificates cannot be written.
    pub fn build(self) -> Result<TestCluster, ClusterError> {
        let (temporary, (directory, logs)) = match self.folders {
            Some(folders) => (None, folders),
            None => {
                // Unix socket paths are short: the system's own directory, not one below the target directory.
                let temporary = tempfile::Builder::new().prefix("edge-csi-").tempdir_in("/tmp");
                let temporary = temporary.map_err(|cause| ClusterError::Directory { cause })?;
                let path = temporary.path().to_owned();
                (Some(temporary), (path.clone(), path))
            }
        };
        let sockets = [DRIVER_SOCKET, PROXY_SOCKET, "hub.sock"].map(|name| directory.join(name));
        if let Some(path) = sockets.into_iter().find(|path| path.as_os_str().len() > SOCKET_PATH) {
            return Err(ClusterError::PathTooLong { path });
        }
        let link = HubLink::new(self.kind, self.host, &directory);
        let (link, fault) = match self.fault {
            None => (link, None),
            Some((program, options)) => {
                let dialled = port::free();
                let ends = format!("127.0.0.1:{dialled}={}", link.address());
                let forward = self.kind.cable_option();
                (link.through(dialled), Some(LinkFault { program, options, forward, ends }))
            }
        };
        let certificates =
            self.certificates.unwrap_or_else(|| Arc::new(ClusterCertificates::new(&directory)));
        Ok(TestCluster {
            driver: None,
            agent: None,
            hub: None,
            proxy: None,
            cable: None,
            link,
            fault,
            driver_name: self.driver_name,
            programs: self.programs.unwrap_or_else(Programs::of_this_build),
            certificates,
            hub_options: self.hub_options,
            http: BTreeMap::new(),
            directory,
            logs,
            temporary,
        })
    }
}
