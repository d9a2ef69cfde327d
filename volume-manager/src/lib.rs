//! Manages the CSI volumes of a node, from CREATED to PUBLISHED and back, consistently across power loss, and the
//! drivers that serve them.
//!
//! This crate is for the side of CSI that *calls* drivers, like kubelet. A storage driver does not need it.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`node`] | all volumes of a node: records requests, makes the calls, verifies them, and restores the volumes after a crash or reboot |
//! | [`driver`] | volumes, consumers, the driver's policy, and secrets |
//! | [`mounts`] | the mount table; removal that cannot delete data |
//! | [`store`] | records that are consistent after every power loss, on a medium of your own too |
//! | [`registry`] | kubelet's plugin registration: `node-driver-registrar` works unchanged |
//! | [`prelude`] | what a program usually imports |
//! | [`advanced`] | the state machines inside, without a promise of stability |
//!
//! The feature `runtime` (default) adds the tokio tasks and clients, `redb` the store
//! on disk, `linux` the system's mounts, and `metrics` the metrics. `testing` adds stores and mounts in memory,
//! implementations with injected faults, and the conformance suites of both.
//!
//! Example: a node with a driver that registers, and a volume that stays published until it is unpublished:
//!
#![cfg_attr(
    all(feature = "runtime", feature = "redb", feature = "linux", target_os = "linux"),
    doc = "```no_run"
)]
#![cfg_attr(
    not(all(feature = "runtime", feature = "redb", feature = "linux", target_os = "linux")),
    doc = "```ignore"
)]
//! use std::time::Duration;
//! use volume_manager::{mounts::linux::ProbeCommand, prelude::*, registry, store};
//!
//! // The `probe` comes from `linux::probe::serve_if_asked`, the first statement of `main`: operations that may hang on a dead
//! // mount run in a process of this program.
//! # async fn example(probe: ProbeCommand) -> Result<(), Box<dyn std::error::Error>> {
//! let store = store::redb::open("/var/lib/edge/volumes.redb")?;
//! let mounts = LinuxMounts::open(probe, MountSettings::default()).await?;
//! let parts = Parts::new(store, mounts, NoSecrets);
//! let (volumes, run) = Volumes::open(parts, VolumeSettings::new("/var/lib/edge/volumes")).await?;
//! tokio::spawn(run);
//!
//! let drivers = registry::watch("/var/lib/edge/plugins_registry")?;
//! let registered = volumes.clone();
//! tokio::spawn(async move { registered.follow(drivers, |_| DriverPolicy::default()).await });
//!
//! let key = VolumeKey { driver: "hostpath.csi.k8s.io".parse()?, id: "vol-1".parse()? };
//! let volume = VolumeSpec::builder(key.clone(), Access::filesystem(), AccessMode::SingleNodeWriter).build()?;
//! let pod = ConsumerSpec::new(ConsumerId::new("pod-1")?, MountPath::new("/pods/1/data")?);
//! let published = volumes.publish_within(volume, pod.clone(), Duration::from_secs(60)).await?;
//! println!("at {}", published.target_path);
//! volumes.unpublish(&key, pod.id()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! # What dropping a handle does
//!
//! | Dropped | Effect |
//! |---|---|
//! | a future of `Volumes`, such as that of `publish` | ends the wait only: the recorded request continues, across restarts too |
//! | `Volumes` | nothing, while a clone is left; with the last clone the run future ends, and volumes stay mounted |
//! | the run future of `Volumes::open` | as a crash: later calls fail with `Closed`, volumes stay mounted, the next `open` continues from disk |
//! | `Changes` of `Volumes::watch` | ends the subscription |
//! | the receiver of `registry::watch` | ends the watch and its calls; registered drivers stay registered with `Volumes` |
//! | the future of `Volumes::follow` | drops its receiver; as above |
//! | `store::Store` | closes the medium; all acknowledged commits are on it |
//! | `LinuxMounts` | nothing, while a clone is left; running probe processes are killed when their calls are dropped |
//! | `MountChanges` | ends the subscription |
#![cfg_attr(edge_csi_docs, doc = "\n# Features\n\n", doc = document_features::document_features!())]
#![cfg_attr(edge_csi_docs, feature(doc_cfg))]

pub mod advanced;
mod backoff;
pub mod driver;
mod excerpt;
mod generated;
mod lifecycle;
mod message;
pub mod mounts;
mod name;
pub mod node;
pub mod prelude;
pub mod registry;
pub mod store;

pub use name::{ConsumerId, InvalidConsumerId, VolumeKey};
