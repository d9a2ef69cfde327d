//! A relay that fails on purpose, and the contract of a relay as tests.

pub mod conformance;
mod faulty;

pub use self::faulty::{Fate, FaultyRelay};
