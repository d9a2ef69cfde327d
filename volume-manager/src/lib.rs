//! Manages the CSI volumes of a node, from CREATED to PUBLISHED and back, consistently across power loss, and the
//! drivers that serve them.
//!
//! This crate is for the side of CSI that *calls* drivers, like kubelet. A storage driver does not need it.
//!
//! | Module | Purpose |
//! |---|---|
//! | [`node`] | all volumes of a node: records requests, makes the calls, verifies them, and restores the volumes after a crash or reboot |
//! | [`lifecycle`] | one volume with its consumers: selects the next call. One pure function, model-checked |
//! | [`store`] | records that are consistent after every power loss |
//! | [`mounts`] | the mount table and its comparison with the expected mounts; removal that cannot delete data |
//! | [`driver`] | the requests to a driver, and its connection |
//! | [`message`] | the desired volumes of a node, as messages over a session |
//! | [`registry`] | kubelet's plugin registration: `node-driver-registrar` works unchanged |
//!
//! Each module has a pure core. The feature `runtime` (default) adds the tokio tasks and clients, `redb` the store
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
//! use volume_manager::driver::{Access, AccessMode, ConsumerSpec, DriverPolicy, MountPath, NoSecrets, VolumeSpec};
//! use volume_manager::mounts::linux::{self, LinuxMounts, ProbeCommand};
//! use volume_manager::node::{Parts, Settings, Volumes};
//! use volume_manager::store::redb::RedbStore;
//! use volume_manager::{ConsumerId, VolumeKey, registry};
//!
//! // The `probe` comes from `linux::probe::serve_if_asked`, the first statement of `main`: operations that may hang on a dead
//! // mount run in a process of this program.
//! # async fn example(probe: ProbeCommand) -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedbStore::open("/var/lib/edge/volumes.redb")?;
//! let mounts = LinuxMounts::open(probe, linux::Settings::default()).await?;
//! let parts = Parts::new(store, mounts, NoSecrets);
//! let (volumes, run) = Volumes::open(parts, Settings::new("/var/lib/edge/volumes")).await?;
//! tokio::spawn(run);
//!
//! let drivers = registry::watch("/var/lib/edge/plugins_registry")?;
//! let registered = volumes.clone();
//! tokio::spawn(async move { registered.follow(drivers, |_| DriverPolicy::default()).await });
//!
//! let key = VolumeKey { driver: "hostpath.csi.k8s.io".parse()?, id: "vol-1".parse()? };
//! let volume = VolumeSpec::builder(key.clone(), Access::filesystem(), AccessMode::SingleNodeWriter).build()?;
//! let pod = ConsumerSpec::new(ConsumerId::new("pod-1")?, MountPath::new("/pods/1/data")?);
//! let published = volumes.publish(volume, pod.clone()).await?;
//! println!("at {}", published.target_path);
//! volumes.unpublish(&key, pod.id()).await?;
//! # Ok(())
//! # }
//! ```
#![cfg_attr(edge_csi_docs, doc = "\n# Features\n\n", doc = document_features::document_features!())]
#![cfg_attr(edge_csi_docs, feature(doc_cfg))]

mod backoff;
pub mod driver;
mod excerpt;
mod generated;
pub mod lifecycle;
pub mod message;
pub mod mounts;
pub mod name;
pub mod node;
pub mod registry;
pub mod store;

pub use name::{ConsumerId, VolumeKey};
