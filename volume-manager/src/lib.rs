//! The volumes of a node, from CREATED to PUBLISHED and back, and the drivers that serve them.
//!
//! This crate is for the side of CSI that *calls* drivers, as kubelet does: a storage driver does not need it.
//!
//! What is here:
//!
//! - [`lifecycle`]: the states of one volume with one target, and the function that decides, from where it is, where
//!   it shall be and how the last call ended, what to call next. Pure: no clock, no I/O.
//! - [`registry`]: the kubelet plugin-registration protocol. A directory is watched, registrars such as
//!   `node-driver-registrar` announce drivers in it, and drivers come and go as events. A pure core
//!   ([`registry::core`]), and a driver on tokio behind the feature `runtime` (on by default).
//!
//! What is not here yet: keeping the record on disk, making the calls to the drivers, several targets and consumers of
//! a volume, checks against the mount table, recovery after a reboot, and the classification of gRPC codes into the
//! two kinds of [`lifecycle::Failure`]. Until then the lifecycle is a decision procedure for a caller who does these.
//!
//! A driver announces itself, and a volume is brought to its target:
//!
#![cfg_attr(feature = "runtime", doc = "```no_run")]
#![cfg_attr(not(feature = "runtime"), doc = "```ignore")]
//! use volume_manager::lifecycle::{DriverCapabilities, Effect, Event, Floor, Goal, Rpc, Volume, step};
//! use volume_manager::registry::{self, DriverEvent, Settings};
//!
//! # fn call(_: Rpc, _: &registry::DriverEndpoint) -> Result<(), volume_manager::lifecycle::Failure> { Ok(()) }
//! # async fn mount() -> Result<(), registry::WatchError> {
//! let mut drivers = registry::watch("/var/lib/edge/plugins_registry", Settings::default())?;
//! while let Some(event) = drivers.recv().await {
//!     let DriverEvent::Registered { endpoint, .. } = event else { continue };
//!     let capabilities = DriverCapabilities { publish_unpublish: false, stage_unstage: true };
//!     let mut volume = Volume::new(Floor::Created, capabilities);
//!     let mut event = Event::Want(Goal::Published);
//!     loop {
//!         let (then, effects) = step(&volume, event);
//!         volume = then;
//!         match effects.last() {
//!             Some(&Effect::Call(rpc)) => event = Event::Finished { rpc, outcome: call(rpc, &endpoint) },
//!             Some(Effect::BackOff { .. }) => event = Event::Resume, // after a while
//!             _ => break,
//!         }
//!     }
//! }
//! # Ok(())
//! # }
//! ```

pub mod lifecycle;
pub mod registry;
