//! The shared parts of the reference binaries: process and signals, logs, options about TLS, the status page, the
//! link to the hub, and the messages between a hub that watches an API server and its nodes.

#![allow(clippy::exhaustive_enums, clippy::exhaustive_structs, reason = "not published")]

pub mod allocator;
pub mod allow;
pub mod certificates;
pub mod core_dumps;
pub mod excerpt;
mod generated;
pub mod kubernetes;
pub mod logging;
pub mod process;
pub mod security;
pub mod state;
pub mod state_socket;
pub mod status;
pub mod uplink;
pub mod values;
