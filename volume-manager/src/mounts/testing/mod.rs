//! Test tooling: mounts in memory, mounts that fail on purpose, and the suite that any mounts are put to.

pub mod conformance;
mod faulty;
mod memory;

pub use faulty::{Fault, FaultyMounts, Operation};
pub use memory::{MemoryFileSystem, MemoryMounts};
