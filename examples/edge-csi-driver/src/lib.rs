//! `edge-csi-driver`: a CSI socket in the cloud for a driver on a node at the edge.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

mod active;
mod decommission;
mod follow;
mod front;
mod in_process;
mod name;
mod options;
mod roster;
mod route;
mod running;
mod status;
#[cfg(feature = "kubernetes")]
mod sweep;

use std::process::ExitCode;

use self::active::Active;
pub use self::decommission::{ControlCommand, Repair, Target};
pub use self::in_process::{InProcess, InProcessOptions, InProcessStatus};
use self::name::HubName;
pub use self::options::{Command, CommandLine, CsiDriverOptions, PlacementsOption, Route};
pub use self::route::{OfflinePolicyOption, TopologyOptions};
use self::running::Running;
#[cfg(feature = "kubernetes")]
pub use self::sweep::Sweep;
use edge_csi_common::process::{self, Fatal, Signals};
use edge_csi_common::uplink::{self, LinkFiles};

/// The binary.
pub fn main() -> ExitCode {
    process::run(async |line: CommandLine, signals| match (line.command, line.options) {
        (Some(Command::Control(command)), _) => decommission::run(command),
        #[cfg(feature = "kubernetes")]
        (Some(Command::Sweep(command)), _) => sweep::run(command).await,
        (None, Some(options)) => serve(options, signals).await,
        (None, None) => Err(Fatal::Input("--drivername is missing".to_owned())),
    })
}

async fn serve(options: CsiDriverOptions, mut signals: Signals) -> Result<(), Fatal> {
    // The socket does not depend on the certificate: a file that cannot be used keeps only the link down.
    let files = LinkFiles::open(&options.security)?;
    let dialers = uplink::dialers("--hub", &options.hub, &options.security, &files, false)?;
    let state = uplink::state_directory(options.state_dir.as_deref())?;
    let Some(active) = Active::wait(&options, &mut signals).await? else { return Ok(()) };
    let name = HubName::new(&options.drivername, files.tls.clone())?;
    let drain_timeout = options.drain_timeout;
    let running = Running::start(options, name, dialers, files, state, active).await?;
    let signal = tokio::select! {
        signal = signals.next() => signal,
        // Without a drain: the newer proxy serves the remaining calls.
        ended = running.ended() => return Err(ended),
    };
    signals.drain(signal, running.drain(drain_timeout)).await;
    Ok(())
}
