//! `edge-csi-driver`: a CSI socket in the cloud whose driver is on a node at the edge.

mod name;
mod options;
mod route;
mod status;

use std::process::ExitCode;
use std::sync::Arc;

use csi_proxy::startup::DirectoryFacts;
use csi_proxy::{Drained, Endpoint, EndpointSettings, PatientRelay, SessionRelay};
use edge_transport::Peer;

pub use self::options::{CsiDriverOptions, Route};
use self::route::Destination;
pub use self::route::{Offline, TopologyOptions};
use self::status::CsiDriverStatus;
use crate::process::{self, Fatal, Signals};
use crate::status::StatusServer;
use crate::uplink;

/// What drivers have said of themselves, a folder of the state directory, so that a restart with the edge off can answer.
const FACTS: &str = "driver-facts";

/// The binary.
#[must_use]
pub fn main() -> ExitCode {
    process::run(run)
}

async fn run(options: CsiDriverOptions, mut signals: Signals) -> Result<(), Fatal> {
    let identity = uplink::identity(&options.security)?;
    let dialers = uplink::dialers(
        "--kubeedge-endpoint",
        &options.kubeedge_endpoint,
        &options.security,
        identity.as_ref(),
    )?;
    let (state, epoch) = uplink::epoch(options.state_dir.as_deref())?;
    let destination = Destination::open(&options, state.as_ref()).await?;
    let drain_timeout = options.drain_timeout.duration();
    let peer = Peer::builder(name::of_this_process(&options.drivername, identity.as_ref(), epoch)?)
        .epoch(epoch)
        .dialers(dialers)
        .settings(options.roads.settings(uplink::peer_settings(drain_timeout)))
        .start()
        .map_err(Fatal::runtime)?;
    tracing::info!(name = %peer.name(), driver = %options.drivername, node = %destination, "the driver's calls go there");
    let connection = tokio::spawn(uplink::tell_connection(peer.watch()));

    let mut settings = EndpointSettings::default();
    if let Some(state) = &state {
        settings.facts = Some(Arc::new(DirectoryFacts::new(state.path().join(FACTS))));
    }
    let relay = PatientRelay::new(SessionRelay::new(peer.clone()), options.hold.duration());
    let endpoint = Endpoint::with_settings(options.drivername.clone(), destination.router(), relay, settings);
    // First what may fail: a socket that was there for a moment would break the sidecars that found it.
    let _status = match options.http {
        Some(address) => {
            let socket = options.endpoint.clone();
            let startup = endpoint.startup();
            let status = CsiDriverStatus::new(peer.clone(), options.drivername, destination, socket, startup);
            Some(StatusServer::start(address, Arc::new(status)).await.map_err(Fatal::runtime)?)
        }
        None => None,
    };
    let serving = endpoint.serve(options.endpoint).await.map_err(Fatal::runtime)?;
    let mut hub = peer.watch();
    let signal = loop {
        tokio::select! {
            signal = signals.next() => break signal,
            // What the driver says of itself is asked for at once when there is a way, and not when its turn comes.
            Ok(()) = hub.changed() => if hub.borrow_and_update().is_connected() { serving.refresh() },
        }
    };
    tracing::info!(signal, "draining: no new calls, waiting for open ones");
    let drain = async {
        if serving.shutdown(drain_timeout).await != Drained::All {
            tracing::warn!("calls were open to the end; their work goes on at the node");
        }
        peer.close().await;
    };
    signals.drain(drain).await;
    connection.abort();
    tracing::info!("ended");
    Ok(())
}
