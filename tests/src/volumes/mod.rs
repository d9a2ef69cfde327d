//! Volumes with real mounts: a private mount namespace, a driver process behind an interceptor, and a node process that
//! can be killed at any step.

pub mod disk;
pub mod history;
pub mod interceptor;
pub mod local;
pub mod namespace;
pub mod node;
pub mod rounds;
pub mod storage;
pub mod trace;
