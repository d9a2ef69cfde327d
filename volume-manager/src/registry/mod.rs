//! The kubelet plugin-registration protocol, version 1, from the side of kubelet.
//!
//! A registrar (the CSI project's `node-driver-registrar`, unchanged) puts a unix socket into a directory and serves
//! `pluginregistration.Registration` on it. `watch` finds the socket, asks `GetInfo`, checks the answer, tells its
//! caller with a [`DriverEvent`], and tells the registrar with `NotifyRegistrationStatus`, all as kubelet does:
//!
#![cfg_attr(feature = "runtime", doc = "```no_run")]
#![cfg_attr(not(feature = "runtime"), doc = "```ignore")]
//! use volume_manager::registry::{self, DriverEvent};
//!
//! # async fn agent() -> Result<(), registry::WatchError> {
//! let mut drivers = registry::watch("/var/lib/kubelet/plugins_registry")?;
//! while let Some(event) = drivers.recv().await {
//!     match event {
//!         DriverEvent::Registered { name, endpoint, .. } => println!("{name} serves on {endpoint}"),
//!         DriverEvent::Deregistered { name, reason } => println!("{name} left: {reason}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | Rule | Here |
//! |---|---|
//! | where | sockets directly in the directory; names that begin with a dot are still being made and are left alone |
//! | limits | dial 10 s, GetInfo 1 s, NotifyRegistrationStatus 5 s; 64 sockets; an answer of 64 KiB |
//! | accepted | type `CSIPlugin`, a valid driver name that no other socket holds, one version with major number 1 |
//! | endpoint | an absolute path, with or without `unix://`; empty means the registration socket itself |
//! | refused | the registrar is told why, and is asked again later (0.5 s, doubling, at most 60 s) |
//! | no answer | asked again later in the same rhythm; a registrar that hangs delays no other |
//! | end | the socket is removed or replaced; an exit of the registrar alone ends nothing, as with kubelet |
//!
//! What kubelet does besides is left to the caller: dialling the driver, and NodeGetInfo.

pub mod core;
mod plugin;

#[cfg(feature = "runtime")]
mod watch;

pub use self::core::{DeregistrationReason, DriverEvent};
pub use plugin::{DriverEndpoint, InvalidDriverEndpoint, Refusal};
#[cfg(feature = "runtime")]
pub use watch::{WatchError, watch};
