//! A relay with injected faults, and conformance tests for relays.

pub mod conformance;
mod faulty;

pub use self::faulty::{FaultyRelay, InjectedFault};
