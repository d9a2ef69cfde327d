//! The mounts of Linux.
//!
//! Whatever walks a path may hang for ever, if a server behind a mount on the way is gone. A thread that hangs cannot be
//! ended; a process can be killed. So each such operation is a process of its own, the [`probe`], with a deadline.
//! The program of the embedder itself is that process too: its `main` begins with [`probe::serve_if_asked`].
//! What cannot be killed either, deep in the kernel, costs a process that waits, a bounded number of them, and no thread.

#[cfg(feature = "runtime")]
mod changes;
mod entry;
mod operation;
pub mod probe;
#[cfg(feature = "runtime")]
mod process;
#[cfg(feature = "runtime")]
mod reading;
#[cfg(feature = "runtime")]
mod reaping;
#[cfg(feature = "runtime")]
mod settings;
#[cfg(feature = "runtime")]
mod storage;
#[cfg(feature = "runtime")]
mod system;
mod table;
#[cfg(feature = "runtime")]
mod turns;

#[cfg(feature = "runtime")]
pub use settings::{InvalidSettings, ProbeCommand, Settings};
#[cfg(feature = "runtime")]
pub use system::{LinuxMounts, OpenError};
pub use table::{TableReader, read_table};
