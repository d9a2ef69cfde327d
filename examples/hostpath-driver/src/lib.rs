//! A small but complete CSI driver for the disk of one node.
//!
//! Volumes are directories, or sparse files behind loop devices with a filesystem or as raw block devices. The driver writes
//! its state to disk before it acts, one JSON record for each resource; it reads the mounts from the kernel. The next start
//! undoes or completes everything that a killed process leaves.
//!
//! | Concern | Where |
//! |---|---|
//! | The RPCs | `identity`, `controller`, `node`; gRPC around them in [`service`], the socket in [`listen`] |
//! | Records | [`volume`], [`snapshot`], written by [`store`], recovered at the start by `recovery` |
//! | Disk operations | [`data`], [`sparse`], [`loop_device`], [`filesystem`], [`mounts`] |
//! | Settings and checks of requests | [`config`], [`capability`], [`capacity`], [`identifier`], [`paging`] |
//! | Errors | [`error`], with the gRPC code of each failure |

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

pub mod capability;
pub mod capacity;
pub mod command;
pub mod config;
mod controller;
pub mod data;
pub mod driver;
pub mod error;
pub mod filesystem;
pub mod identifier;
mod identity;
pub mod listen;
pub mod loop_device;
pub mod mounts;
mod node;
mod options;
pub mod paging;
mod recovery;
pub mod requirements;
pub mod service;
pub mod snapshot;
pub mod sparse;
pub mod store;
pub mod volume;

use std::process::ExitCode;

use listen::Listener;
use service::Service;

pub use config::Config;
pub use driver::Driver;
pub use options::HostpathOptions;

use edge_csi_common::process::{self, Fatal, Signals};

/// Runs the binary.
pub fn main() -> ExitCode {
    process::run(run)
}

async fn run(options: HostpathOptions, mut signals: Signals) -> Result<(), Fatal> {
    let config = options.config()?;
    if let Some(missing) = requirements::missing() {
        tracing::warn!("{missing}");
    }
    let (name, node_id) = (config.driver_name.clone(), config.node_id.clone());
    // The state first: its lock prevents a second driver from starting.
    let service = Service::new(Driver::open(config).map_err(Fatal::input)?);
    let listener = Listener::bind(options.endpoint.path()).map_err(Fatal::input)?;
    tracing::info!(driver = %name, node = node_id, "listening on {}", options.endpoint);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = listener.serve(&service, stopped);
    tokio::pin!(serving);
    let signal = tokio::select! {
        ended = &mut serving => return ended.map_err(Fatal::runtime),
        signal = signals.next() => signal,
    };
    drop(stop);
    let mut outcome = Ok(());
    signals.drain(signal, async { outcome = serving.await }).await;
    outcome.map_err(Fatal::runtime)
}
