//! What the reference binaries share, and what each of them does.
//!
//! The binaries are thin: `src/bin/NAME.rs` names a module of this library, which parses the options, puts the crates
//! together and waits for SIGTERM.

#![allow(
    clippy::exhaustive_enums,
    clippy::exhaustive_structs,
    reason = "this package is not published: nobody builds on its types"
)]

pub mod agent;
pub mod core_dumps;
pub mod csi_driver;
#[cfg(feature = "kubernetes-node")]
mod excerpt;
#[cfg(feature = "kubernetes-node")]
mod generated;
pub mod hostpath;
pub mod hub;
#[cfg(feature = "kubernetes-node")]
pub mod kubernetes;
mod logging;
pub mod process;
pub mod quickstart;
pub mod security;
pub mod state;
mod state_socket;
pub mod status;
pub mod uplink;
pub mod values;
