//! Drivers that come and go as kubelet plugins.

use std::path::Path;

use csi_proto::DriverName;
use csi_proxy::{Dispatcher, Driver, DriverSettings, SocketAddress};
use tokio::task::JoinHandle;
use volume_manager::registry::{self, DriverEvent, Settings};

use crate::process::Fatal;

/// Watches a directory and keeps the dispatcher's drivers as they are there. Drivers that were named on the command line
/// stay as they are.
pub(super) fn start(
    directory: &Path,
    dispatcher: Dispatcher,
    bounds: DriverSettings,
) -> Result<JoinHandle<()>, Fatal> {
    let named = dispatcher.drivers();
    let mut events = registry::watch(directory, Settings::default()).map_err(Fatal::runtime)?;
    Ok(tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            apply(&dispatcher, &named, &bounds, event);
        }
    }))
}

fn apply(dispatcher: &Dispatcher, named: &[DriverName], bounds: &DriverSettings, event: DriverEvent) {
    match event {
        DriverEvent::Registered { name, .. } | DriverEvent::Deregistered { name, .. }
            if named.contains(&name) =>
        {
            tracing::warn!(driver = %name, "also in --plugins-registry: the socket that --driver names is used");
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
}
