//! Shared parts of the tests across processes: the binaries, their processes and logs, certificates, CSI clients, and
//! bounded waits.

#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "a test that cannot be set up must fail"
)]

pub mod api;
pub mod arguments;
pub mod binaries;
pub mod cable;
pub mod callers;
pub mod certificates;
pub mod cluster;
pub mod command_line;
pub mod counting;
pub mod csi;
pub mod guide;
pub mod link;
pub mod manifest;
pub mod memory;
pub mod metrics;
pub mod page;
pub mod port;
pub mod process;
pub mod random;
pub mod raw;
#[cfg(doctest)]
pub mod readme;
pub mod sidecar;
pub mod volumes;
pub mod wait;
