//! The fuzz targets. Each target is a function here, so that it also runs without a fuzzer.
//!
//! `cargo fuzz run frame` (in this folder, or `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none frame` on a stable compiler) searches
//! for bytes that break a target; `cargo test --lib` runs all targets over the corpora and over mutations of them.

pub mod envelope;
pub mod frame;
pub mod hub;
pub mod mount_table;
pub mod operation;
pub mod record;
pub mod registration;
mod script;
pub mod session;

#[cfg(test)]
mod tests;
