//! Kubelet's side of the plugin registration protocol, version 1.
//!
//! A registrar (the CSI project's `node-driver-registrar`, unchanged) creates a unix socket in a directory and serves
//! `pluginregistration.Registration` on it. `watch` finds the socket, calls `GetInfo`, validates the answer, sends a
//! [`DriverEvent`] to its caller, and calls `NotifyRegistrationStatus`, all as kubelet does:
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
//!         DriverEvent::Deregistered { name, reason } => println!("{name} deregistered: {reason}"),
//!         _ => {}
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! | Aspect | Behavior |
//! |---|---|
//! | sockets | those directly in the directory; names that begin with a dot are ignored, since they are still being created |
//! | limits | dial 10 s, GetInfo 1 s, NotifyRegistrationStatus 5 s; 64 sockets; an answer of 64 KiB |
//! | accepted | type `CSIPlugin`, a valid driver name that no other socket has registered, one version with major number 1 |
//! | endpoint | an absolute path, with or without `unix://`; empty means the registration socket itself |
//! | rejected | the registrar receives the reason, and GetInfo is retried with a backoff (0.5 s, doubling, at most 60 s) |
//! | no answer | retried with the same backoff; a registrar that hangs does not delay others |
//! | deregistered | when the socket is removed or replaced; not when the registrar exits, as with kubelet |
//!
//! The caller dials the driver and calls NodeGetInfo, as the rest of kubelet does.

pub(crate) mod core;
pub(crate) mod plugin;

#[cfg(feature = "runtime")]
mod watch;

pub use self::core::{DeregistrationReason, DriverEvent};
pub use plugin::{DriverEndpoint, InvalidDriverEndpoint};
#[cfg(feature = "runtime")]
pub use watch::{WatchError, watch};
