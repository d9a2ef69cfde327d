//! The volumes of a node, from CREATED to PUBLISHED and back, right after every power cut; and the drivers that serve them.
//!
//! This crate is for the side of CSI that *calls* drivers, as kubelet does: a storage driver does not need it.
//!
//! | Module | What it does |
//! |---|---|
//! | [`node`] | all volumes of a node: what is wanted is recorded, done, checked, and done again after a crash or reboot |
//! | [`lifecycle`] | one volume with its consumers: which call comes next. One pure function, model-checked |
//! | [`store`] | records that are right after every power cut |
//! | [`mounts`] | what is mounted where, held against what should be; removal that cannot destroy data |
//! | [`driver`] | what is asked of a driver, and the one connection to it |
//! | [`message`] | which volumes a node shall have, as messages over a session |
//! | [`registry`] | kubelet's plugin registration: `node-driver-registrar` works unchanged |
//!
//! Each has a pure core. The feature `runtime` (on by default) adds what runs on tokio, `redb` the store on disk, `linux`
//! the system's mounts, and `metrics` figures. `testing` adds stores and mounts in memory, others that fail on purpose, and
//! the conformance suites of both.
//!
//! A node, with a driver that registers, and a volume that is published and stays so until it is unpublished:
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
//! # async fn example() -> Result<std::process::ExitCode, Box<dyn std::error::Error>> {
//! // The first thing in `main`: what may hang on a dead mount is done by this program as a process of its own.
//! if let Some(code) = linux::probe::serve_if_asked() {
//!     return Ok(code);
//! }
//! let store = RedbStore::open("/var/lib/edge/volumes.redb")?;
//! let mounts = LinuxMounts::open(ProbeCommand::own(), linux::Settings::default()).await?;
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
//! # Ok(std::process::ExitCode::SUCCESS)
//! # }
//! ```

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
