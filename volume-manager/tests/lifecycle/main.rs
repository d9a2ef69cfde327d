//! The lifecycle of a volume: a model check, a reference model, and each hard case by name.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints its counts"
)]

mod actions;
mod backoff;
mod capabilities;
mod cases;
mod codes;
mod diagram;
mod expansions;
mod mesos;
mod model;
mod mutants;
mod property;
mod script;
mod world;
