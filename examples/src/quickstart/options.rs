//! The command line of `quickstart`.

use std::path::PathBuf;

use clap::Parser;
use tempfile::TempDir;

use crate::process::Fatal;

/// Leads a volume through its life, from CreateVolume in the cloud to a file on a node and back, and prints each step.
///
/// Runs hub, proxy, agent and the hostpath driver in one process, cuts the link in mid-call, and leaves nothing behind. As
/// root it mounts in a mount namespace of its own, otherwise in a user namespace.
#[derive(Debug, Clone, Parser)]
#[command(name = "quickstart", version)]
pub struct QuickstartOptions {
    /// Where the directory for sockets, state and mounts is made, and removed at the end; short, since socket paths are
    /// [default: the system's directory for temporary files]
    #[arg(long, value_name = "DIR")]
    pub directory: Option<PathBuf>,
}

impl QuickstartOptions {
    /// Makes the directory.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn directory(&self) -> Result<TempDir, Fatal> {
        let above = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        let made = tempfile::Builder::new().prefix("edge-csi-").tempdir_in(&above);
        made.map_err(|cause| {
            Fatal::Input(format!("--directory: cannot make a directory in {}: {cause}", above.display()))
        })
    }
}
