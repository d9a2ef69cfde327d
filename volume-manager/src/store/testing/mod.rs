//! Test tools: an in-memory store, fault injection, and a conformance suite.

pub mod conformance;
pub mod faulty;
pub mod memory;
