//! Test tools: in-memory mounts, fault injection, and a conformance suite.

pub mod conformance;
mod faulty;
mod memory;

pub use faulty::{Fault, FaultyMounts, Operation};
pub use memory::{MemoryFileSystem, MemoryMounts};
