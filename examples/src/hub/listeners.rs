//! From options to listeners.

use std::fs;
use std::path::Path;

use edge_transport::link::{Limits, Listener, quic, uds, ws};
use edge_transport::tls;

use super::options::{DEFAULT_UDS, HubOptions};
use crate::process::Fatal;

/// Opens every listener that the options ask for.
pub(super) async fn open(options: &HubOptions) -> Result<Vec<Box<dyn Listener>>, Fatal> {
    let limits = Limits::default().with_max_frame(options.max_frame()?);
    let identity = identity(options)?;
    let verified = |identity| tls::server_config(identity, tls::ClientAuth::Required).map_err(Fatal::input);
    let mut listeners: Vec<Box<dyn Listener>> = Vec::new();
    if let Some(address) = options.ws {
        let tls = match (&identity, options.security.insecure) {
            (Some(identity), _) => Some(verified(identity)?),
            (None, true) => None,
            (None, false) => return Err(nobody_verified("--ws")),
        };
        let listener = ws::bind(address.socket_addr(), tls, limits.clone()).await.map_err(Fatal::runtime)?;
        listeners.push(Box::new(listener));
    }
    if let Some(address) = options.quic {
        let tls = match (&identity, options.security.insecure) {
            (Some(identity), _) => verified(identity)?,
            (None, true) => tls::insecure_server_config().map_err(Fatal::runtime)?,
            (None, false) => return Err(nobody_verified("--quic")),
        };
        let listener =
            quic::bind(address.socket_addr(), &tls, limits.clone()).await.map_err(Fatal::runtime)?;
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
    let path = Path::new(DEFAULT_UDS.trim_start_matches("unix://"));
    // Below /run nothing outlives a boot. If it cannot be made, listening there tells why.
    let _ = path.parent().map(fs::create_dir_all);
    uds::bind(path, limits)
}

fn identity(options: &HubOptions) -> Result<Option<tls::Identity>, Fatal> {
    let security = &options.security;
    let (Some(certificate), Some(key), Some(authorities)) =
        (&security.tls_cert, &security.tls_key, &security.client_ca)
    else {
        return Ok(None);
    };
    tls::Identity::from_pem_files(certificate, key, authorities).map(Some).map_err(Fatal::input)
}

fn nobody_verified(option: &str) -> Fatal {
    Fatal::Input(format!(
        "{option}: peers must prove who they are: give --tls-cert, --tls-key and --client-ca, or, for tests, --insecure"
    ))
}
