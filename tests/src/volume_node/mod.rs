//! The program `volume-node`: its options, its parts, and its orders.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "orders and answers are on standard streams")]

mod orders;
mod steps;

use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use volume_manager::driver::DriverPolicy;
use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
use volume_manager::node::{BackOff, Parts, VolumeSettings, Volumes};
use volume_manager::registry::DriverEndpoint;
use volume_manager::store::{BootId, Store, redb};

use self::steps::{SteppedConnector, SteppedMounts, SteppedRows, Steps};

struct Options {
    directory: PathBuf,
    drivers: Vec<(DriverName, DriverEndpoint)>,
    boot: u32,
    kill_at: Option<u64>,
}

/// Runs until standard input ends.
pub(crate) fn run(probe: ProbeCommand) -> ExitCode {
    let ended = options().and_then(|options| {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        runtime.block_on(serve(options, probe))
    });
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(cause) => {
            eprintln!("volume-node: {cause}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options, Box<dyn Error>> {
    let mut options = Options { directory: PathBuf::new(), drivers: Vec::new(), boot: 1, kill_at: None };
    let mut arguments = std::env::args().skip(1);
    while let Some(option) = arguments.next() {
        let value = arguments.next().ok_or_else(|| format!("{option} needs a value"))?;
        match option.as_str() {
            "--directory" => options.directory = value.into(),
            "--boot" => options.boot = value.parse()?,
            "--kill-at" => options.kill_at = Some(value.parse()?),
            "--driver" => {
                let (name, socket) = value.split_once('=').ok_or("--driver takes NAME=SOCKET")?;
                options.drivers.push((DriverName::new(name)?, DriverEndpoint::from_path(socket)?));
            }
            other => return Err(format!("unknown option {other}").into()),
        }
    }
    Ok(options)
}

async fn serve(options: Options, probe: ProbeCommand) -> Result<(), Box<dyn Error>> {
    let directory = options.directory.canonicalize()?;
    let steps = Arc::new(Steps::new(options.kill_at));
    let (store, recreated) = redb::open_or_recreate(directory.join("volumes.redb"))?;
    if let Some(lost) = recreated {
        eprintln!("the store was recreated: {}; {} records salvaged", lost.reason, lost.salvaged);
    }
    let mounts = LinuxMounts::open(probe, linux::MountSettings::default()).await?;
    let boot: BootId = format!("00000000-0000-4000-8000-{:012}", options.boot).parse()?;
    let parts = Parts::new(
        Store::new(SteppedRows::new(store.into_rows(), Arc::clone(&steps))),
        SteppedMounts::new(mounts, Arc::clone(&steps)),
        volume_manager::driver::NoSecrets,
    );
    let parts = parts.drivers(SteppedConnector::new(Arc::clone(&steps))).boot_id(boot).release_salvaged();
    let settings = VolumeSettings::new(directory.join("v"))
        .back_off(BackOff::new(Duration::from_millis(10), Duration::from_millis(200)))
        .mount_check_interval(Duration::from_millis(20));
    let (volumes, run) = Volumes::open(parts, settings).await?;
    let running = tokio::spawn(run);
    for (name, endpoint) in options.drivers {
        volumes.driver_registered(name, endpoint, DriverPolicy::default()).await?;
    }
    orders::answer(volumes, &directory, &steps).await?;
    running.abort();
    Ok(())
}
