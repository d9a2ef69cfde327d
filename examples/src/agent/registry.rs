//! Drivers that come and go as kubelet plugins.

use std::path::Path;
use std::sync::Arc;

use csi_proto::DriverName;
use csi_proxy::{Dispatcher, Driver, DriverSettings, SocketAddress};
use tokio::task::JoinHandle;
use volume_manager::registry::{self, DriverEvent};

use super::shim::Shim;
use super::volumes::NodeVolumes;
use crate::process::Fatal;

/// Watches a directory and keeps the drivers of the dispatcher, and of the volumes, as they are there. Drivers that were
/// named on the command line stay as they are.
pub(super) fn start(
    directory: &Path,
    dispatcher: Dispatcher,
    bounds: DriverSettings,
    volumes: Option<NodeVolumes>,
    shim: Option<Arc<Shim>>,
) -> Result<JoinHandle<()>, Fatal> {
    let named = dispatcher.drivers();
    let mut events = registry::watch(directory).map_err(Fatal::runtime)?;
    Ok(tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            let told = event.clone();
            if !apply(&dispatcher, &named, &bounds, event) {
                continue;
            }
            if let (Some(shim), DriverEvent::Registered { name, .. }) = (&shim, &told)
                && let Err(error) = shim.serve(name).await
            {
                tracing::error!(driver = %name, "{error}");
            }
            if let Some(volumes) = &volumes {
                tell(volumes, told).await;
            }
        }
    }))
}

async fn tell(volumes: &NodeVolumes, event: DriverEvent) {
    match event {
        DriverEvent::Registered { name, endpoint, .. } => volumes.driver_registered(name, endpoint).await,
        DriverEvent::Deregistered { name, .. } => volumes.driver_gone(name).await,
        _ => {}
    }
}

/// Answers whether the event is about a driver that is not named on the command line.
fn apply(dispatcher: &Dispatcher, named: &[DriverName], bounds: &DriverSettings, event: DriverEvent) -> bool {
    match event {
        DriverEvent::Registered { name, .. } | DriverEvent::Deregistered { name, .. }
            if named.contains(&name) =>
        {
            tracing::warn!(driver = %name, "also in --plugins-registry: the socket that --driver names is used");
            return false;
        }
        DriverEvent::Registered { name, endpoint, .. } => match SocketAddress::new(endpoint.to_string()) {
            Ok(socket) => dispatcher.register(Driver::with_settings(name, socket, bounds.clone())),
            Err(cause) => tracing::warn!(driver = %name, %cause, "a registered driver cannot be reached"),
        },
        DriverEvent::Deregistered { name, reason } => {
            dispatcher.unregister(&name);
            tracing::info!(driver = %name, %reason, "driver deregistered");
        }
        _ => {}
    }
    true
}
