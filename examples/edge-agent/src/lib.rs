//! `edge-agent`: relays CSI calls to the drivers of one node, and mounts volumes without a kubelet.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod essential;
mod generated;
mod inspect;
mod keep_mounts;
mod kubelet_sockets;
mod kubernetes;
mod options;
mod registry;
mod renewal;
mod status;
mod store;
mod terms;
mod volumes;

use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use csi_proxy::{Dispatcher, Drained, Driver, NodeSegment, Relay, ServeCsi as _, TopologyRelay};
use edge_transport::{HubSet, PeerId, ServiceName};
use futures_util::future::OptionFuture;
use tokio::task::JoinSet;
use volume_manager::advanced::message;
use volume_manager::mounts::linux::{ProbeCommand, probe};

use self::essential::Essential;
pub use self::inspect::{Inspect, StateOption};
pub use self::kubelet_sockets::KubeletSocketOptions;
use self::kubelet_sockets::KubeletSockets;
pub use self::kubernetes::KubernetesOptions;
use self::kubernetes::{CsiNodeReport, NodeDrivers, NodePlugin};
pub use self::options::{AgentOptions, CommandLine};
use self::renewal::Renewal;
use self::status::AgentStatus;
use self::store::AgentStore;
pub use self::volumes::VolumesOptions;
use edge_csi_common::allow::AllowRule;
use edge_csi_common::process::{self, Fatal, Launch, Signals};
use edge_csi_common::state_socket;
use edge_csi_common::status::StatusServer;
use edge_csi_common::uplink::{self, LinkFiles};

/// Runs the `edge-agent` binary.
pub fn main() -> ExitCode {
    // Mount operations that may hang run in child processes of this program.
    let probe = match probe::serve_if_asked() {
        Ok(probe) => probe,
        Err(code) => return code,
    };
    // A subcommand prints its answer, so it logs warnings only.
    let launch = |line: &CommandLine| match line.command {
        Some(_) => Launch::default().level("warn"),
        None => Launch::default(),
    };
    process::run_with(launch, async |line, signals| match (line.command, line.options) {
        (Some(command), _) => inspect::run(&command).await,
        (None, Some(options)) => run(options, signals, probe).await,
        (None, None) => Err(Fatal::Input("--nodeid is missing".to_owned())),
    })
}

/// Returns a seed from a node's name, which spreads the waits of different nodes.
fn seed_of(name: &str) -> u64 {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(name)
}

async fn run(mut options: AgentOptions, mut signals: Signals, probe: ProbeCommand) -> Result<(), Fatal> {
    let state = uplink::state_directory(options.state_dir.as_deref())?;
    let store = match &state {
        Some(state) => {
            let directory = state.path().to_owned();
            let opened = tokio::task::spawn_blocking(move || AgentStore::open(&directory)).await;
            Some(opened.map_err(Fatal::runtime)?.map_err(Fatal::runtime)?)
        }
        None => None,
    };
    let mut dispatcher = Dispatcher::new().with_volume_wait(options.operation_queue_timeout);
    if let Some(store) = &store {
        dispatcher = dispatcher.with_terms(store.terms.clone());
    }
    let terms = match state.as_ref().zip(store.as_ref()) {
        Some((state, store)) => {
            Some((state_socket::bind(&state.path().join(terms::SOCKET))?, store.terms.clone()))
        }
        None => None,
    };
    for driver in &options.driver {
        if dispatcher.drivers().contains(&driver.name) {
            return Err(Fatal::Input(format!("--driver: {} is named twice", driver.name)));
        }
        let (name, socket) = (driver.name.clone(), driver.socket.clone());
        dispatcher.register(Driver::new(name, socket).with_timeout(options.driver_timeout));
    }
    // Local storage does not depend on the certificate: a file that cannot be used keeps only the link down.
    let name = PeerId::try_from(&options.nodeid).map_err(Fatal::input)?;
    let renewed = state.as_ref().map(|state| state.path().join(renewal::FILE));
    let files = match &renewed {
        Some(renewed) => LinkFiles::open_renewable(&options.security, renewed, &name)?,
        None => LinkFiles::open(&options.security)?,
    };
    if options.metered {
        uplink::prefer_websockets(&mut options.hub);
        options.failback.failback_interval = Duration::ZERO;
    }
    let dialers = uplink::dialers("--hub", &options.hub, &options.security, &files, options.metered)?;
    let plugin = NodePlugin::open(&options.kubernetes, &options.volumes, store.as_ref())?;
    let csi_node = CsiNodeReport::open(&options.kubernetes, store.as_ref())?;
    let secrets = plugin.as_ref().map(NodePlugin::secrets);
    let saved = state.as_ref().zip(store).map(|(state, store)| (state, store.volumes, store.desired));
    let opened = volumes::open(&options.volumes, probe, saved, options.nodeid.as_str(), secrets).await?;
    let volumes = opened.as_ref().map(volumes::OpenedVolumes::handle);
    let sockets = KubeletSockets::open(&options.kubelet_sockets, &options.nodeid, &dispatcher)?;
    let mut builder = options.failback.peer(name, &options.hub, dialers).drain_timeout(options.drain_timeout);
    let (relay, segment): (Arc<dyn Relay>, _) = match &sockets {
        Some(sockets) => (sockets.relay(), sockets.segment()),
        // Without a kubelet, the agent adds the node's topology itself.
        None if plugin.is_some() => {
            let segment = NodeSegment::of_driver(options.nodeid.clone());
            (Arc::new(TopologyRelay::new(dispatcher.clone(), segment.clone())), Some(segment))
        }
        None => (Arc::new(dispatcher.clone()), None),
    };
    builder = builder.serve_csi(relay);
    if !options.allow.is_empty() {
        builder = builder.policy(AllowRule::policy(&options.allow));
    }
    if let Some(volumes) = &volumes {
        let service = ServiceName::new(message::SERVICE).map_err(Fatal::runtime)?;
        builder = builder.service(service, volumes.clone());
    }
    let peer = builder.start().map_err(Fatal::runtime)?;
    let connection = tokio::spawn(uplink::log_connections(HubSet::from(peer.clone()), Arc::default()));
    let renewal = match renewed {
        Some(path) => {
            Renewal::new(&files, &peer, (&options.security, path), seed_of(options.nodeid.as_str()))
        }
        None => Ok(None),
    };
    let renewal = renewal.map_err(Fatal::runtime)?;
    let status = AgentStatus {
        peer: peer.clone(),
        files: files.clone(),
        renewal: renewal.as_ref().map(Renewal::view),
        dispatcher: dispatcher.clone(),
        volumes: volumes.clone(),
        kubelet_sockets: sockets.clone(),
        pods: plugin.as_ref().map(NodePlugin::view),
    };
    let _status = StatusServer::start(options.http_endpoint, status).await.map_err(Fatal::runtime)?;
    // The tasks start after the status server, since metrics count only once their recorder is installed.
    files.spawn_reload_for(&peer);
    if let Some(renewal) = renewal {
        tokio::spawn(renewal.run());
    }
    let mut essential = Essential::default();
    if let Some((socket, table)) = terms {
        tokio::spawn(terms::serve(socket, dispatcher.clone(), table));
    }
    if let Some(opened) = opened {
        opened.start(&options.driver, &mut essential).await?;
    }
    if let (Some(plugin), Some(volumes)) = (plugin, &volumes) {
        plugin.start(peer.clone(), volumes.clone(), segment, &mut essential);
    }
    if let Some((report, sockets)) = csi_node.zip(sockets.as_ref()) {
        let (node, dispatcher, relay) = (options.nodeid.clone(), dispatcher.clone(), sockets.relay());
        report.start(peer.clone(), NodeDrivers { node, dispatcher, relay }, &mut essential);
    }
    if let Some(sockets) = &sockets {
        for driver in &options.driver {
            sockets.serve(&driver.name).await?;
        }
    }
    let mut registry = JoinSet::new();
    if let Some(directory) = &options.plugins_registry {
        registry.spawn(registry::start(
            directory,
            dispatcher.clone(),
            options.driver_timeout,
            volumes,
            sockets.clone(),
        )?);
    }
    let signal = tokio::select! {
        signal = signals.next() => signal,
        fatal = essential.ended() => return Err(fatal),
    };
    let drain = async {
        // The session drops a call without a caller; the driver's operation continues and must not be cut off.
        let bound = options.drain_timeout;
        let sockets = OptionFuture::from(sockets.as_ref().map(|sockets| sockets.drain(bound)));
        let (_, _, work) =
            tokio::join!(peer.drain("the agent is shutting down"), sockets, dispatcher.drain(bound));
        if work != Drained::All {
            tracing::warn!("operations of drivers still run after the drain timeout and are cancelled");
        }
    };
    signals.drain(signal, drain).await;
    drop(essential);
    connection.abort();
    drop(registry);
    Ok(())
}
