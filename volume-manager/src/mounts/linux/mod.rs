//! The mounts of Linux.
//!
//! Whatever walks a path may hang for ever, if a server behind a mount on the way is gone. A thread that hangs cannot be
//! ended; a process can be killed. So each such operation is a process of its own, the [`probe`], with a deadline.
//! The program of the embedder itself is that process too: its `main` begins with [`probe::serve_if_asked`].
//! What cannot be killed either, deep in the kernel, costs a process that waits, a bounded number of them, and no thread.

mod entry;
mod operation;
pub mod probe;
mod process;
mod reading;
mod reaping;
mod system;
mod table;
mod turns;

pub use process::{ProbeCommand, Settings};
pub use system::{LinuxMounts, OpenError};
pub use table::{TableReader, read_table};
