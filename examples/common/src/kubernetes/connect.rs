//! Creates the API server's client from `--kubeconfig`.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};

use crate::process::Fatal;

/// The time limit for connecting to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address and the credentials of the API server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KubernetesAccess {
    /// The service account of the pod.
    InCluster,
    /// A kubeconfig file, with its current context.
    File(PathBuf),
}

impl FromStr for KubernetesAccess {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "" => Err("expected a file, or `in-cluster` for the service account of the pod"),
            "in-cluster" => Ok(Self::InCluster),
            path => Ok(Self::File(path.into())),
        }
    }
}

impl KubernetesAccess {
    /// Creates a client, which connects at the first request.
    ///
    /// # Errors
    /// If the file cannot be read, or the process is in no pod.
    pub async fn client(&self) -> Result<Client, Fatal> {
        let unusable = |cause: &dyn std::error::Error| Fatal::Input(format!("--kubeconfig: {cause}"));
        let mut config = match self {
            Self::InCluster => Config::incluster().map_err(|cause| unusable(&cause))?,
            Self::File(path) => {
                let file = Kubeconfig::read_from(path).map_err(|cause| unusable(&cause))?;
                let options = KubeConfigOptions::default();
                Config::from_custom_kubeconfig(file, &options).await.map_err(|cause| unusable(&cause))?
            }
        };
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        if config.accept_invalid_certs {
            tracing::warn!("--kubeconfig disables the verification of the API server: for tests only");
        }
        Client::try_from(config).map_err(|cause| unusable(&cause))
    }
}
