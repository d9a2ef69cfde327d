//! The connection of the agent and the proxy to the hub: authentication and addresses.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use clap::Args;
use edge_transport::link::{Address, DialOptions, Dialer};
use edge_transport::peer::PeerBuilder;
use edge_transport::reload::FileWatch;
use edge_transport::tls::ClientTls;
use edge_transport::{HubSet, Peer, PeerId, PeerState};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::process::Fatal;
use crate::security::{ClientSecurity, spawn_reload};
use crate::state::StateDirectory;
use crate::status::Fact;
use crate::values::duration;

/// The default address of a hub.
pub const DEFAULT_HUB: &str = "unix:///run/edge-csi/hub.sock";

/// How often websockets are pinged on a metered link while no call waits: below the shortest usual timeout of a TCP connection
/// at an address translator, 5 minutes.
const METERED_PING: Duration = Duration::from_secs(240);

/// How often the files of a peer are checked while it is connected, for warnings about their expiry: a change of the connection
/// checks them anyway.
const CONNECTED_RELOAD_INTERVAL: Duration = Duration::from_secs(300);

/// Failback between the addresses of the hub.
#[derive(Debug, Clone, Args)]
pub struct FailbackOptions {
    /// How often the preferred addresses of the hub are tried while another address is in use (ms, s, m, h; 0s: never)
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub failback_interval: Duration,
}

impl FailbackOptions {
    /// Returns a builder of a peer with this interval and these paths. Addresses of one scheme are equal, in random order, and
    /// schemes are preferred in the order of their first addresses.
    pub fn peer(&self, name: PeerId, addresses: &[Address], dialers: Vec<Box<dyn Dialer>>) -> PeerBuilder {
        let scheme = |address: &Address| address.to_string().split(':').next().map(ToOwned::to_owned);
        let mut dialers: Vec<_> = addresses.iter().map(scheme).zip(dialers).collect();
        let mut builder = Peer::builder(name).failback_interval(self.failback_interval);
        while let Some(preferred) = dialers.first().map(|(scheme, _)| scheme.clone()) {
            let equal = dialers.extract_if(.., |(scheme, _)| *scheme == preferred);
            builder = builder.equal_dialers(equal.map(|(_, dialer)| dialer));
        }
        builder
    }
}

/// The certificate and the authorities of the agent or the proxy. Files that cannot be used keep the link down and stop
/// nothing else.
#[derive(Debug, Clone)]
pub struct LinkFiles {
    /// The files, if the options name any.
    pub tls: Option<ClientTls>,
    is_renewable: bool,
    watch: Arc<FileWatch>,
}

impl LinkFiles {
    /// Reads the files that the options name, if any.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn open(security: &ClientSecurity) -> Result<Self, Fatal> {
        Ok(Self::of(security.paths()?.map(ClientTls::open_when_valid), false))
    }

    /// Reads the files that the options name, and the certificate that the peer of this name has renewed itself. Without a
    /// certificate in the options there is nothing to renew.
    ///
    /// # Errors
    /// If the options contradict each other.
    pub fn open_renewable(security: &ClientSecurity, renewed: &Path, name: &PeerId) -> Result<Self, Fatal> {
        let Some((given, renewed)) = security.paths()?.zip(security.renewed(renewed)) else {
            return Self::open(security);
        };
        Ok(Self::of(Some(ClientTls::renewable(given, renewed, name.clone())), true))
    }

    fn of(tls: Option<ClientTls>, is_renewable: bool) -> Self {
        let watch = tls.iter().fold(FileWatch::new(), FileWatch::client);
        Self { tls, is_renewable, watch: Arc::new(watch) }
    }

    /// Returns the files of a peer that renews its certificate.
    pub fn renewable(&self) -> Option<ClientTls> {
        self.tls.clone().filter(|_| self.is_renewable)
    }

    /// Reads changed files now. Blocks.
    pub fn reload(&self) {
        // The periodic check logs what is wrong with files; this one follows a change of our own.
        self.watch.check(SystemTime::now());
    }

    /// Has changed files read now, in the background.
    pub fn check_soon(&self) {
        self.watch.check_soon();
    }

    /// Starts a task that reloads the files when they change. Start it after the status server: metrics count only once
    /// their recorder is installed.
    pub fn spawn_reload(&self) {
        spawn_reload(&self.watch);
    }

    /// Like [`spawn_reload`](Self::spawn_reload), and wakes a device seldom while its peer is connected.
    pub fn spawn_reload_for(&self, peer: &Peer) {
        if !self.watch.is_empty() {
            tokio::spawn(Arc::clone(&self.watch).run_for(peer.watch(), CONNECTED_RELOAD_INTERVAL));
        }
    }
}

/// Prefers what costs less on a metered link: QUIC is pinged ten times as often as a websocket.
pub fn prefer_websockets(addresses: &mut [Address]) {
    addresses.sort_by_key(|address| address.to_string().starts_with("quic://"));
}

/// Returns the dialers of the hub's addresses, in order. `option` is named in the error.
///
/// # Errors
/// If an address cannot be used, or if it needs an option that is missing.
pub fn dialers(
    option: &str,
    addresses: &[Address],
    security: &ClientSecurity,
    files: &LinkFiles,
    metered: bool,
) -> Result<Vec<Box<dyn Dialer>>, Fatal> {
    let mut options = DialOptions::default()
        .insecure(security.insecure)
        .tls(files.tls.clone())
        .token_file(security.token_file.clone());
    if metered {
        options = options.idle_ping(METERED_PING);
    }
    if security.insecure {
        tracing::warn!(
            "--insecure: the hub is not verified, and the hub cannot verify this peer; for tests only"
        );
    }
    addresses
        .iter()
        .map(|address| {
            let text = address.to_string();
            let needed = if text.starts_with("ws://") {
                "this link is not encrypted: use wss:// or quic:// with certificates, or, for tests, give --insecure"
            } else {
                "the hub must be verified: give --tls-ca with --tls-cert and --tls-key or with --token-file, or, for tests, --insecure"
            };
            let is_allowed = text.starts_with("unix://") || security.insecure || (files.tls.is_some() && !text.starts_with("ws://"));
            if !is_allowed {
                return Err(Fatal::Input(format!("{option} {address}: {needed}")));
            }
            address.dialer(&options).map_err(|cause| Fatal::Input(format!("{option}: {cause}")))
        })
        .collect()
}

/// Opens and locks the state directory, if the options name one.
///
/// # Errors
/// If the directory cannot be used.
pub fn state_directory(path: Option<&Path>) -> Result<Option<StateDirectory>, Fatal> {
    path.map(StateDirectory::open).transpose().map_err(Fatal::runtime)
}

/// Logs each change of the connections to the hubs, until all are closed. Notifies of each hub that connects.
pub async fn log_connections(mut hubs: HubSet, connected: Arc<Notify>) {
    let (mut known, mut logs): (Vec<Peer>, _) = (Vec::new(), JoinSet::new());
    loop {
        let peers = hubs.peers();
        for peer in peers.iter().filter(|peer| known.iter().all(|known| !known.is(peer))) {
            logs.spawn(log_connection(peer.watch(), Arc::clone(&connected)));
        }
        known = peers;
        if !hubs.changed().await {
            break;
        }
    }
    logs.join_all().await;
}

/// Logs each change of a peer's connection, until the peer is closed.
async fn log_connection(mut state: watch::Receiver<PeerState>, connected: Arc<Notify>) {
    let mut last: Option<String> = None;
    loop {
        let now = state.borrow_and_update().clone();
        match now {
            PeerState::Connected { address, hub, .. } => {
                last = None;
                tracing::info!(address, %hub, "connected to the hub");
                connected.notify_one();
            }
            // A repeated cause is logged once.
            PeerState::Connecting { last_error: Some(cause), attempts, .. }
                if last.as_ref() != Some(&cause) =>
            {
                tracing::warn!(attempts, "no connection to the hub, trying again: {cause}{}", advice(&cause));
                last = Some(cause);
            }
            PeerState::Draining { reason } => tracing::info!(reason, "the session is being drained"),
            PeerState::Closed => return,
            _ => {}
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

/// Explains the TLS library's names of the two common mistakes; empty for other errors.
fn advice(cause: &str) -> &'static str {
    if cause.contains("UnknownIssuer") {
        " (the hub's certificate is not signed by an authority in --tls-ca)"
    } else if cause.contains("UnknownCA") {
        " (the hub refuses the certificate in --tls-cert: none of its --client-ca authorities has signed it)"
    } else {
        ""
    }
}

/// Checks that a hub is connected, for `/readyz`.
///
/// # Errors
/// Returns the reason, if no hub is connected.
pub fn readiness(hubs: &HubSet) -> Result<(), String> {
    let mut causes = Vec::new();
    for (_, state) in hubs.states() {
        causes.push(match state {
            PeerState::Connected { .. } => return Ok(()),
            PeerState::Connecting { last_error: Some(cause), .. } => {
                format!("no connection to the hub: {cause}")
            }
            PeerState::Draining { reason } => format!("draining: {reason}"),
            PeerState::Closed => "closed".to_owned(),
            _ => "no connection to the hub yet".to_owned(),
        });
    }
    Err(if causes.is_empty() { "no connection to the hub yet".to_owned() } else { causes.join("; ") })
}

/// Returns the rows of the page about the connections of a peer with this name.
pub fn facts(hubs: &HubSet, name: &PeerId) -> Vec<Fact> {
    let connection = |(address, state)| match state {
        PeerState::Connected { address, since, .. } => {
            format!("{address} for {} s", since.elapsed().as_secs())
        }
        PeerState::Connecting { last_error: Some(cause), .. } => format!("not connected: {cause}"),
        _ => format!("{address}: not connected"),
    };
    let hubs = hubs.states().into_iter().map(connection).map(|text| Fact::new("hub", text));
    std::iter::once(Fact::new("name at the hub", name)).chain(hubs).collect()
}

/// Sets the gauges `edge_csi_hub_connected` (1 if a hub is connected, else 0), `edge_csi_hubs` (the hubs that the peer connects
/// to) and `edge_csi_hubs_connected`, and the gauges of the files, whose next values include changes up to now.
pub fn publish_metrics(hubs: &HubSet, files: &LinkFiles) {
    files.watch.publish(SystemTime::now());
    files.check_soon();
    let states = hubs.states();
    let connected = states.iter().filter(|(_, state)| state.is_connected()).count();
    metrics::gauge!("edge_csi_hub_connected").set(if connected > 0 { 1.0 } else { 0.0 });
    metrics::gauge!("edge_csi_hubs").set(states.len() as f64);
    metrics::gauge!("edge_csi_hubs_connected").set(connected as f64);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use super::*;

    #[test]
    fn websockets_are_preferred_in_the_order_given() {
        let texts = ["quic://a:1", "wss://b:1", "quic://c:1", "ws://d:1", "unix:///e"];
        let mut addresses = texts.map(|text| text.parse::<Address>().unwrap());
        prefer_websockets(&mut addresses);
        let order = addresses.map(|address| address.to_string());
        assert_eq!(order, ["wss://b:1", "ws://d:1", "unix:///e", "quic://a:1", "quic://c:1"]);
    }
}
