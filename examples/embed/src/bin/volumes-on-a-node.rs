//! A node program with volumes: drivers register in a directory, and one volume of one driver is published and stays so,
//! over crashes and reboots, until it is unpublished.
//!
//! As root: `cargo run -p embed --bin volumes-on-a-node -- DIR DRIVER VOLUME TARGET`
#![allow(clippy::print_stdout, reason = "an example's output")]

use std::error::Error;
use std::path::Path;
use std::process::ExitCode;

use volume_manager::driver::{
    Access, AccessMode, ConsumerSpec, DriverPolicy, MountPath, NoSecrets, VolumeSpec,
};
use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
use volume_manager::node::{Parts, Settings, Volumes};
use volume_manager::store::redb::RedbStore;
use volume_manager::{ConsumerId, VolumeKey, registry};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    // This program is also its own probe process: calls that may hang on a dead mount run in a child.
    match linux::probe::serve_if_asked() {
        Ok(probe) => run(probe),
        Err(code) => Ok(code),
    }
}

#[tokio::main(flavor = "current_thread")]
async fn run(probe: ProbeCommand) -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, driver, volume, target] = &arguments[..] else {
        println!("usage: volumes-on-a-node DIR DRIVER VOLUME TARGET");
        return Ok(ExitCode::FAILURE);
    };
    let directory = Path::new(directory).canonicalize()?;

    // ANCHOR: embed
    let store = RedbStore::open(directory.join("volumes.redb"))?;
    let mounts = LinuxMounts::open(probe, linux::Settings::default()).await?;
    let parts = Parts::new(store, mounts, NoSecrets);
    let (volumes, run) = Volumes::open(parts, Settings::new(directory.join("staging"))).await?;
    tokio::spawn(run);

    let drivers = registry::watch(directory.join("plugins_registry"))?;
    let registered = volumes.clone();
    tokio::spawn(async move { registered.follow(drivers, |_| DriverPolicy::default()).await });

    let key = VolumeKey { driver: driver.parse()?, id: volume.parse()? };
    let volume =
        VolumeSpec::builder(key.clone(), Access::filesystem(), AccessMode::SingleNodeWriter).build()?;
    let pod = ConsumerSpec::new(ConsumerId::new("pod-1")?, MountPath::new(target)?);
    let published = volumes.publish(volume, pod).await?;
    println!("{key} is published at {}", published.target_path);
    if let Some(explanation) = volumes.explain(&key).await? {
        println!("{explanation}");
    }
    // ANCHOR_END: embed
    Ok(ExitCode::SUCCESS)
}
