//! The drivers of `--driver`, whose CSI sockets the hub serves itself.

use std::str::FromStr;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::NodeId;
use edge_csi_common::process::Fatal;
use edge_csi_common::values::{DriverAt, InvalidValue};
use edge_csi_driver::{InProcess, InProcessOptions, InProcessStatus, TopologyOptions};
use edge_transport::PeerId;
use edge_transport::hub::HubBuilder;
use edge_transport::link::{DEFAULT_MAX_FRAME, Dialer, memory};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::options::HubOptions;

/// Callers in the process of the hub are below its own name, for which no other peer has a certificate or a token.
const HUB: &str = "hub";

/// `NAME=unix:///PATH` or `NAME@NODE=unix:///PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverOption(InProcessOptions);

/// A text is not a value of `--driver`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDriverOption {
    /// The part after `@` is not the name of a node.
    #[error("the node after @: {0}")]
    Node(#[from] csi_proxy::InvalidNodeId),
    /// Another part is not valid.
    #[error(transparent)]
    Driver(#[from] InvalidValue),
}

impl FromStr for DriverOption {
    type Err = InvalidDriverOption;

    fn from_str(text: &str) -> Result<Self, InvalidDriverOption> {
        let (name, url) = text.split_once('=').unwrap_or((text, ""));
        let (node, driver) = match name.split_once('@') {
            Some((driver, node)) => (Some(NodeId::new(node)?), format!("{driver}={url}")),
            None => (None, text.to_owned()),
        };
        let DriverAt { name: driver, socket: endpoint } = driver.parse()?;
        Ok(Self(InProcessOptions { driver, node, endpoint }))
    }
}

/// The drivers of a hub that is not running yet.
pub(super) struct Drivers(Vec<Driver>);

struct Driver {
    options: InProcessOptions,
    /// Its proxy's name at the hub.
    name: PeerId,
    dialer: Box<dyn Dialer>,
}

impl Drivers {
    /// Adds a listener for each driver of the options, inside the process.
    pub(super) fn listen(options: &[DriverOption], mut hub: HubBuilder) -> Result<(Self, HubBuilder), Fatal> {
        let mut drivers = Vec::new();
        for DriverOption(options) in options {
            let driver = &options.driver;
            if drivers.iter().any(|Driver { options: other, .. }| other.driver == *driver) {
                return Err(Fatal::Input(format!("--driver {driver}: given twice; give each driver once")));
            }
            let name = PeerId::of_this_process(caller(options)).map_err(Fatal::input)?;
            let (listener, dialer) = memory::listen_proven(&name, DEFAULT_MAX_FRAME);
            hub = hub.listener(listener);
            drivers.push(Driver { options: options.clone(), name, dialer: Box::new(dialer) });
        }
        Ok((Self(drivers), hub))
    }

    /// Opens the sockets, once the hub runs.
    pub(super) async fn start(self, hub: &HubOptions) -> Result<Serving, Fatal> {
        let (state_dir, drain_timeout) = (&hub.state_dir, hub.drain_timeout);
        let mut started = Vec::new();
        for Driver { options, name, dialer } in self.0 {
            let driver = options.driver.clone();
            let topology = TopologyOptions {
                topology_key: hub.topology_key.clone(),
                shared_topology_key: hub.shared_topology_key.clone(),
                ..TopologyOptions::default()
            };
            // A driver with one node selects none.
            let topology = if options.node.is_none() { topology } else { TopologyOptions::default() };
            let proxy = InProcess::start(options, topology, state_dir, (name, dialer), drain_timeout).await?;
            started.push((driver, proxy));
        }
        let status = InProcessStatus::of(started.iter().map(|(_, proxy)| proxy));
        let (stop, stopping) = watch::channel(false);
        let mut tasks = JoinSet::new();
        for (driver, proxy) in started {
            tasks.spawn(serve(driver, proxy, stopping.clone(), drain_timeout));
        }
        Ok(Serving { status, stop, tasks })
    }
}

/// The drivers whose sockets are open.
pub(super) struct Serving {
    pub(super) status: InProcessStatus,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

impl Serving {
    /// Accepts no more calls, and waits for open ones up to the drain timeout.
    pub(super) async fn drain(self) {
        // Without a driver, no task receives it.
        let _ = self.stop.send(true);
        self.tasks.join_all().await;
    }
}

/// Serves one driver until the hub ends. When another proxy has taken the driver over, only its socket is closed: the hub serves
/// others.
async fn serve(
    driver: DriverName,
    proxy: InProcess,
    mut stopping: watch::Receiver<bool>,
    drain_timeout: Duration,
) {
    let bound = tokio::select! {
        cause = proxy.ended() => {
            tracing::error!(%driver, %cause, "the socket of --driver is closed; to serve it again, end the other proxy of the driver and restart the hub");
            Duration::ZERO
        }
        _ = stopping.wait_for(|stop| *stop) => drain_timeout,
    };
    proxy.drain(bound).await;
}

/// Returns the rules that allow each driver's proxy to call that driver on every node.
pub(super) fn rules(options: &[DriverOption]) -> impl Iterator<Item = String> {
    options.iter().map(|DriverOption(options)| format!("{}=*:{}", caller(options), options.driver))
}

fn caller(options: &InProcessOptions) -> String {
    format!("{HUB}/{}", options.driver)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_has_a_name_a_socket_and_perhaps_a_node() {
        let parse = |text: &str| text.parse::<DriverOption>().map(|DriverOption(options)| options);
        let options = parse("a.b=unix:///csi.sock").unwrap();
        assert_eq!((options.driver.as_str(), options.node), ("a.b", None));
        let options = parse("a.b@edge-1=unix:///csi.sock").unwrap();
        assert_eq!(options.node.unwrap().as_str(), "edge-1");
        assert_eq!(options.endpoint.to_string(), "unix:///csi.sock");
        assert!(matches!(parse("a.b@=unix:///csi.sock"), Err(InvalidDriverOption::Node(_))));
        for wrong in ["a.b", "a.b@edge-1", "=unix:///csi.sock", "a.b=csi.sock"] {
            assert!(matches!(parse(wrong), Err(InvalidDriverOption::Driver(_))), "{wrong}");
        }
    }
}
