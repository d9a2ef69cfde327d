//! Drivers that register and deregister as kubelet plugins.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{Dispatcher, Driver, SocketAddress};
use volume_manager::registry::{self, DriverEvent};

use super::kubelet_sockets::KubeletSockets;
use super::volumes::NodeVolumes;
use edge_csi_common::process::Fatal;

/// Watches a plugin registration directory, and registers its drivers with the dispatcher and the volumes. Drivers
/// of the command line stay unchanged.
pub(super) fn start(
    directory: &Path,
    dispatcher: Dispatcher,
    timeout: Duration,
    volumes: Option<NodeVolumes>,
    kubelet_sockets: Option<Arc<KubeletSockets>>,
) -> Result<impl Future<Output = ()> + use<>, Fatal> {
    let named = dispatcher.drivers();
    let mut events = registry::watch(directory).map_err(Fatal::runtime)?;
    Ok(async move {
        while let Some(event) = events.recv().await {
            match event {
                DriverEvent::Registered { name, .. } | DriverEvent::Deregistered { name, .. }
                    if named.contains(&name) =>
                {
                    tracing::warn!(driver = %name, "the driver is also in --plugins-registry; using the socket of --driver");
                }
                DriverEvent::Registered { name, endpoint, .. } => {
                    match SocketAddress::new(endpoint.to_string()) {
                        Ok(socket) => {
                            dispatcher.register(Driver::new(name.clone(), socket).with_timeout(timeout));
                        }
                        Err(cause) => {
                            tracing::warn!(driver = %name, %cause, "a registered driver has an invalid socket path");
                        }
                    }
                    if let Some(sockets) = &kubelet_sockets
                        && let Err(error) = sockets.serve(&name).await
                    {
                        tracing::error!(driver = %name, "{error}");
                    }
                    if let Some(volumes) = &volumes {
                        volumes.driver_registered(name, endpoint).await;
                    }
                }
                DriverEvent::Deregistered { name, reason } => {
                    dispatcher.unregister(&name);
                    tracing::info!(driver = %name, %reason, "driver deregistered");
                    if let Some(volumes) = &volumes {
                        volumes.driver_deregistered(name).await;
                    }
                }
                _ => {}
            }
        }
    })
}
