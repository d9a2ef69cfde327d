//! From options to listeners.

use std::fs;
use std::path::Path;

use edge_transport::link::{Limits, Listener, quic, uds, ws};
use edge_transport::tls::{ServerFiles, ServerTls, insecure_server_config};

use edge_csi_common::uplink::DEFAULT_HUB;

use super::options::HubOptions;
use edge_csi_common::process::Fatal;

/// Opens every listener that the options ask for.
pub(super) async fn open(
    options: &HubOptions,
    files: Option<&ServerFiles>,
) -> Result<Vec<Box<dyn Listener>>, Fatal> {
    let limits = Limits::default();
    let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
    if let Some(address) = options.ws {
        let tls = match (files, options.security.insecure) {
            (Some(files), _) => Some(ServerTls::from(files.clone())),
            (None, true) => None,
            (None, false) => return Err(nobody_verified("--ws")),
        };
        let listener = ws::bind(address, tls, limits.clone()).await.map_err(Fatal::runtime)?;
        listeners.push(Box::new(listener));
    }
    if let Some(address) = options.quic {
        let tls = match (files, options.security.insecure) {
            (Some(files), _) => ServerTls::from(files.clone()),
            (None, true) => insecure_server_config().map_err(Fatal::runtime)?,
            (None, false) => return Err(nobody_verified("--quic")),
        };
        let listener = quic::bind(address, &tls, limits.clone()).await.map_err(Fatal::runtime)?;
        listeners.push(Box::new(listener));
    }
    match unix(options, limits) {
        Ok(listener) => listeners.insert(0, Box::new(listener)),
        Err(cause) if options.uds.is_none() && !listeners.is_empty() => {
            tracing::warn!("no unix socket: {cause}; choose its place with --uds");
        }
        Err(cause) => return Err(Fatal::runtime(cause)),
    }
    Ok(listeners)
}

fn unix(options: &HubOptions, limits: Limits) -> Result<uds::UdsListener, uds::BindError> {
    if let Some(socket) = &options.uds {
        return uds::bind(socket.path(), limits);
    }
    let path = Path::new(DEFAULT_HUB.trim_start_matches("unix://"));
    // Below /run nothing outlives a boot. If it cannot be made, listening there tells why.
    let _ = path.parent().map(fs::create_dir_all);
    uds::bind(path, limits)
}

fn nobody_verified(option: &str) -> Fatal {
    Fatal::Input(format!(
        "{option}: peers must prove who they are: give --tls-cert, --tls-key and --client-ca or --tokens, or, for tests, --insecure"
    ))
}
