//! What the fuzz targets do with bytes. Each target is a function here, so that it runs without a fuzzer too.
//!
//! `cargo fuzz run frame` (in this folder, or `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none frame` on a stable compiler) looks for
//! bytes that break one; `cargo test --lib` runs all of them over the corpora and over mutations of those.

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
