//! `edge-agent`: answers for the CSI drivers of one node.

mod options;
mod registry;
mod status;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use csi_proxy::session_relay::SERVICE;
use csi_proxy::{Dispatcher, Drained, Driver, DriverSettings, SessionService};
use edge_transport::{Peer, PeerId, ServiceName};

pub use self::options::AgentOptions;
use self::status::AgentStatus;
use crate::process::{self, Fatal, Signals};
use crate::status::StatusServer;
use crate::uplink;

/// Shortest `--call-ceiling`: less would cut work that every driver needs time for.
const SHORTEST_CEILING: Duration = Duration::from_secs(1);

/// The binary.
#[must_use]
pub fn main() -> ExitCode {
    process::run(run)
}

async fn run(options: AgentOptions, mut signals: Signals) -> Result<(), Fatal> {
    let dispatcher = Dispatcher::new();
    let settings = driver_settings(&options)?;
    for driver in &options.driver {
        if dispatcher.drivers().contains(&driver.name) {
            return Err(Fatal::Input(format!("--driver: {} is named twice", driver.name)));
        }
        let (name, socket) = (driver.name.clone(), driver.socket.clone());
        dispatcher.register(Driver::with_settings(name, socket, settings.clone()));
    }
    let identity = uplink::identity(&options.security)?;
    let dialers = uplink::dialers("--hub", &options.hub, &options.security, identity.as_ref())?;
    let name = PeerId::try_from(&options.nodeid).map_err(Fatal::input)?;
    let (_state, epoch) = uplink::epoch(options.state_dir.as_deref())?;
    let registry = match &options.plugins_registry {
        Some(directory) => Some(registry::start(directory, dispatcher.clone(), settings)?),
        None => None,
    };
    let peer = Peer::builder(name)
        .epoch(epoch)
        .dialers(dialers)
        .service(ServiceName::new(SERVICE).map_err(Fatal::runtime)?, SessionService::new(dispatcher.clone()))
        .settings(uplink::peer_settings(options.drain_timeout.duration()))
        .start()
        .map_err(Fatal::runtime)?;
    let connection = tokio::spawn(uplink::tell_connection(peer.watch()));
    let _status = match options.http {
        Some(address) => {
            let status = Arc::new(AgentStatus::new(peer.clone(), dispatcher.clone()));
            Some(StatusServer::start(address, status).await.map_err(Fatal::runtime)?)
        }
        None => None,
    };
    let signal = signals.next().await;
    tracing::info!(signal, "draining: no new calls, waiting for open ones");
    let drain = async {
        // The session is done with a call once nobody waits for it; the driver's work goes on and must not be cut.
        let (_, work) = tokio::join!(
            peer.drain("the agent is shutting down"),
            dispatcher.drain(options.drain_timeout.duration()),
        );
        if work != Drained::All {
            tracing::warn!("drivers were still at work when the time to drain was over; their calls are cut");
        }
    };
    signals.drain(drain).await;
    connection.abort();
    if let Some(registry) = registry {
        registry.abort();
    }
    tracing::info!("ended");
    Ok(())
}

/// Bounds of every driver's calls.
fn driver_settings(options: &AgentOptions) -> Result<DriverSettings, Fatal> {
    let ceiling = options.call_ceiling.duration();
    if ceiling < SHORTEST_CEILING {
        let found = options.call_ceiling;
        return Err(Fatal::Input(format!(
            "--call-ceiling: {found} is too short; give at least {SHORTEST_CEILING:?}"
        )));
    }
    let mut settings = DriverSettings::default();
    settings.ceiling = ceiling;
    Ok(settings)
}
