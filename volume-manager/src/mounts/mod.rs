//! What is mounted where: seen and compared with what should be. Only drivers mount and unmount.
//!
//! | Part | What it does |
//! |---|---|
//! | [`MountTable`], [`Mount`] | read `/proc/self/mountinfo`, answer what is at a path and who holds a file system |
//! | [`verdict`], [`held`] | hold a record, the table and the path against each other; each disagreement is a [`Verdict`] |
//! | [`SafeRemoval`] | the only removal there is: of an empty directory or an empty file, on one mount |
//! | `Mounts` | the seam to the system, with the feature `runtime`; `linux` is behind it, and for tests `MemoryMounts` and `FaultyMounts` |
//!
//! The pure parts need no feature. The functions of the system are with the feature `linux`, and what is for
//! tests is with the feature `testing`.

mod check;
mod entry;
mod error;
mod escape;
mod mount;
mod table;

#[cfg(all(feature = "linux", target_os = "linux"))]
pub mod linux;
#[cfg(feature = "testing")]
mod testing;

pub use crate::driver::{InvalidMountPath, MountPath};
pub use check::{Expectation, Expected, Verdict, held, verdict};
pub use entry::{Inspection, Presence, Removed, SafeRemoval};
pub use error::{CreateError, RemoveError, TableError, Trouble};
pub use mount::{DeviceNumber, Mount, MountId, MountIdentity};
pub use table::{InvalidMountTable, MountTable};
#[cfg(feature = "testing")]
pub use testing::{Fault, FaultyMounts, MemoryFileSystem, MemoryMounts, Operation, conformance};

/// The mounts of a node. Only drivers mount and unmount, so there is no function for either.
///
/// What every implementation keeps, and `conformance` (feature `testing`) checks:
///
/// - No call blocks its thread, and none waits for ever: what hangs is answered as hung, within a bound that the
///   implementation states.
/// - A call that was answered has had its whole effect, and the next [`table`](Self::table) shows it.
/// - A call whose future is dropped may still have its effect, as with one that hung.
/// - Nothing that holds a byte is ever removed.
#[cfg(feature = "runtime")]
#[async_trait::async_trait]
pub trait Mounts: Send + Sync {
    /// The mounts that exist now, at least as new as the call.
    async fn table(&self) -> Result<std::sync::Arc<MountTable>, TableError>;

    /// What is at a path. The last part of the path is not followed if it is a symbolic link.
    async fn inspect(&self, path: &std::path::Path) -> Result<Inspection, Trouble>;

    /// Makes a directory, with those that are missing on the way to it, unless it is there. Each that is made has the
    /// permission bits `0o750`, whatever the umask of the process: open to its owner, readable to the group, as kubelet
    /// makes its directories. One that is there is left as it is.
    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError>;

    /// Removes an entry that holds no data.
    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError>;

    /// Changes of the table from now on.
    fn changes(&self) -> std::io::Result<Box<dyn MountChanges>>;
}

/// The changes of a mount table, since it was asked for them.
#[cfg(feature = "runtime")]
#[async_trait::async_trait]
pub trait MountChanges: Send {
    /// Waits for a change since the last answer. Many changes may be told as one, and a change may be told twice:
    /// read the table and compare.
    ///
    /// If the future is dropped, no change is lost.
    async fn changed(&mut self) -> std::io::Result<()>;
}
