//! Test tooling: a store in memory, one that fails on purpose, and the suite that any store is put to.

pub mod conformance;
pub mod faulty;
pub mod memory;
