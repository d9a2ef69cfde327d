//! All volumes of a node, against mounts and a store in memory and a scripted driver that checks its calls.
#![cfg(feature = "runtime")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test fails by panicking, and prints what replays it"
)]

mod cancellation;
mod crash;
mod driver;
mod faults;
mod lies;
mod lifecycle;
mod recovery;
mod store;
mod world;
