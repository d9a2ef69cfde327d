//! A node program with volumes: one volume of one driver is published, stays so over crashes and reboots while the program runs,
//! and is unpublished when its input ends.
//!
//! As root: `cargo run -p embed --bin own_node -- DIR DRIVER SOCKET VOLUME TARGET`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use volume_manager::mounts::linux::{ProbeCommand, probe};
use volume_manager::node::{ChangeKind, WatchEvent};
use volume_manager::prelude::*;
use volume_manager::store;

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // This program is also its own probe process: calls that may hang on a dead mount run in a child.
    match probe::serve_if_asked() {
        Ok(probe) => run(probe),
        Err(code) => Ok(code),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(probe: ProbeCommand) -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, driver, socket, volume, target] = &arguments[..] else {
        println!("usage: own_node DIR DRIVER SOCKET VOLUME TARGET");
        return Ok(ExitCode::FAILURE);
    };
    if std::fs::metadata("/proc/self")?.uid() != 0 {
        println!(
            "this program needs root, since it makes and removes directories of mounts: run it with sudo"
        );
        return Ok(ExitCode::FAILURE);
    }
    let directory = Path::new(directory).canonicalize()?;

    // ANCHOR: embed
    let store = store::redb::open(directory.join("volumes.redb"))?;
    let mounts = LinuxMounts::open(probe, MountSettings::default()).await?;
    let parts = Parts::new(store, mounts, NoSecrets);
    let (volumes, run) = Volumes::open(parts, VolumeSettings::new(directory.join("staging"))).await?;
    tokio::spawn(run);
    // Drivers that register themselves in a directory: `volumes.follow(registry::watch(directory)?, policy)`.
    volumes.driver_registered(driver.parse()?, socket.parse()?, DriverPolicy::default()).await?;

    let key = VolumeKey { driver: driver.parse()?, id: volume.parse()? };
    let volume =
        VolumeSpec::builder(key.clone(), Access::filesystem(), AccessMode::SingleNodeWriter).build()?;
    let pod = ConsumerSpec::new(ConsumerId::new("pod-1")?, MountPath::new(target)?);
    let published = volumes.publish_within(volume, pod.clone(), Duration::from_secs(60)).await?;
    println!("{key} is published at {}", published.target_path);
    if let Some(explanation) = volumes.explain(&key).await? {
        println!("{explanation}");
    }
    // ANCHOR_END: embed

    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    let mut changes = volumes.watch();
    volumes.unpublish(&key, pod.id()).await?;
    println!("{key} is unpublished");
    // After its last consumer the volume is unstaged and removed.
    while let Some(event) = changes.next().await {
        match event {
            WatchEvent::Change(change) if change.key == key && change.kind == ChangeKind::Removed => break,
            WatchEvent::Lagged(_) if volumes.explain(&key).await?.is_none() => break,
            _ => {}
        }
    }
    println!("{key} is removed");
    Ok(ExitCode::SUCCESS)
}
