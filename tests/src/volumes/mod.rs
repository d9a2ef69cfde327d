//! Volumes with real mounts: a private mount namespace, a driver process with a witness before it, and a node process
//! that can be killed at any step.

pub mod between;
pub mod disk;
pub mod ground;
pub mod history;
pub mod local;
pub mod node;
pub mod rounds;
pub mod stand;
pub mod trace;
