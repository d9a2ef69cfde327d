//! `edge-hub`: accepts the links of agents and proxies, and forwards calls between them.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod drivers;
#[cfg(feature = "kubernetes")]
mod kubernetes;
mod listeners;
mod options;
mod presence_log;
mod rebalance;
mod status;
mod trace;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use edge_transport::hub::{DenyList, Hub, HubBuilder, Rules};
use edge_transport::reload::FileWatch;
use tokio::task::JoinSet;

use self::drivers::Drivers;
pub use self::drivers::{DriverOption, InvalidDriverOption};
#[cfg(feature = "kubernetes")]
pub use self::kubernetes::{InvalidSigner, KubernetesAccess, NodeSigner};
pub use self::options::HubOptions;
pub use self::rebalance::{Command, Rebalance};
use self::status::HubStatus;
use edge_csi_common::allow::AllowRule;
use edge_csi_common::process::{self, Fatal, Launch, Signals};
use edge_csi_common::security::spawn_reload;
use edge_csi_common::status::StatusServer;

/// The binary.
pub fn main() -> ExitCode {
    process::run_with(|options: &HubOptions| Launch::default().threads(options.threads), run)
}

async fn run(options: HubOptions, mut signals: Signals) -> Result<(), Fatal> {
    if let Some(Command::Rebalance(command)) = &options.command {
        return rebalance::run(command);
    }
    let files = options.security.files()?;
    let tokens = options.security.tokens();
    let listeners = listeners::open(&options, files.as_ref()).await?;
    let mut watch = FileWatch::new();
    let mut builder = Hub::builder().drain_timeout(options.drain_timeout);
    if options.security.insecure {
        tracing::warn!(
            "--insecure: peers are not authenticated and can use any name; use certificates outside of tests"
        );
        builder = builder.allow_unauthenticated();
    }
    if let Some(files) = &files {
        watch = watch.server(files);
        builder = builder.client_certificates(files);
    }
    if let Some(tokens) = tokens {
        tracing::info!(names = tokens.names(), "peers with a token can authenticate");
        watch = watch.tokens(&tokens);
        builder = builder.token_verifier(tokens);
    }
    if let Some(path) = &options.deny {
        let list = DenyList::open(path).map_err(Fatal::input)?;
        tracing::info!(entries = list.entries(), "peers and certificates of --deny are refused");
        watch = watch.deny(&list);
        builder = builder.deny(list);
    }
    let watch = Arc::new(watch);
    builder = with_policy(builder, &options)?.presence();
    for listener in listeners {
        builder = builder.listener(trace::traced(listener));
    }
    #[cfg(feature = "kubernetes")]
    let kubernetes = match &options.kubeconfig {
        Some(access) => {
            let kubernetes;
            (builder, kubernetes) = kubernetes::Kubernetes::start(access, options.signer()?, builder).await?;
            Some(kubernetes)
        }
        None => None,
    };
    let (drivers, builder) = Drivers::listen(&options.driver, builder)?;
    let hub = builder.start().map_err(Fatal::input)?;
    spawn_reload(&watch);
    for address in hub.addresses() {
        tracing::info!("listening on {address}");
    }
    let drivers = drivers.start(&options).await?;
    let draining = Arc::new(AtomicBool::new(false));
    let status = HubStatus {
        hub: hub.clone(),
        files: watch,
        drivers: drivers.status.clone(),
        draining: Arc::clone(&draining),
        #[cfg(feature = "kubernetes")]
        kubernetes: kubernetes.clone(),
    };
    let _status = StatusServer::start(options.http_endpoint, status).await.map_err(Fatal::runtime)?;
    let presence = tokio::spawn(presence_log::run(hub.clone()));
    let mut commands = JoinSet::new();
    if let Some(socket) = rebalance::bind(&options.listen)? {
        commands.spawn(rebalance::serve(socket, hub.clone()));
    }
    let signal = signals.next().await;
    draining.store(true, Ordering::Relaxed);
    #[cfg(feature = "kubernetes")]
    if let Some(kubernetes) = &kubernetes {
        kubernetes.stop();
    }
    let drain = async {
        tokio::join!(drivers.drain(), hub.drain("the hub is shutting down"));
    };
    signals.drain(signal, drain).await;
    presence.abort();
    drop(commands);
    Ok(())
}

/// Sets the policy of the hub. A certificate proves a name, not a right to call: a node must not reach the drivers
/// of other nodes.
fn with_policy(builder: HubBuilder, options: &HubOptions) -> Result<HubBuilder, Fatal> {
    if !options.allow.is_empty() {
        let rules = options.allow.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        tracing::info!(rules, "only calls that match --allow are forwarded");
        let own: Result<Vec<AllowRule>, _> =
            drivers::rules(&options.driver).map(|rule| rule.parse()).collect();
        let rules = [&options.allow[..], &own.map_err(Fatal::input)?].concat();
        return Ok(builder.policy(AllowRule::policy(&rules)));
    }
    tracing::info!("no --allow: peers that offer services cannot call, all others can");
    Ok(builder.policy(Rules::clients_only()))
}
