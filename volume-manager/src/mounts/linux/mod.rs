//! The mounts of Linux.
//!
//! A path lookup may hang forever if it crosses a mount whose server does not answer. A hanging thread cannot be stopped; a
//! process can be killed. Each such operation therefore runs in its own process, the [`probe`], with a deadline. The probe is
//! the embedder's own program, whose `main` calls [`probe::serve_if_asked`] first. A probe that hangs in the kernel and cannot
//! be killed is left behind; their number is bounded, and none costs a thread.

mod entry;
mod limits;
mod operation;
pub mod probe;
mod process;
mod reader;
mod reaper;
mod system;
mod table;

pub use process::{MountSettings, ProbeCommand};
pub use system::{LinuxMounts, OpenMountsError};
pub use table::read_table;
