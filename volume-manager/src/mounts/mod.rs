//! Reads the mount table and compares it with the recorded state. Only drivers mount and unmount.
//!
//! | Part | What it does |
//! |---|---|
//! | [`MountTable`], [`Mount`] | parse `/proc/self/mountinfo`; find the mount at a path and all mounts of a file system |
//! | [`SafeRemoval`] | the only kind of removal: of an empty directory or an empty file, within one mount |
//! | `Mounts` | the trait over the system, with the feature `runtime`; implemented by `linux`, and in tests by `MemoryMounts` and `FaultyMounts` |
//!
//! The pure parts need no feature. The system calls need the feature `linux`, the test tools the feature `testing`.

pub(crate) mod check;
mod entry;
mod error;
mod escape;
mod mount;
mod table;

#[cfg(all(feature = "linux", target_os = "linux"))]
pub mod linux;
#[cfg(feature = "testing")]
mod testing;

#[cfg(any(feature = "runtime", feature = "linux"))]
use crate::driver::MountPath;
pub(crate) use check::{Expectation, MountCheck, check_mount, check_unused};
pub use entry::{Inspection, PathState, Removed, SafeRemoval};
pub use error::{CreateError, ProbeError, RemoveError, TableError};
pub use mount::{DeviceNumber, Mount, MountId, MountIdentity};
pub use table::{InvalidMountTable, MountTable};
#[cfg(feature = "testing")]
pub use testing::{Fault, FaultyMounts, MemoryFileSystem, MemoryMounts, Operation, conformance};

/// The mounts of a node. Only drivers mount and unmount, so there is no function for either.
///
/// The contract of every implementation, checked by `conformance` (feature `testing`):
///
/// - **Threads:** calls are made at once from several tasks; no call blocks its thread.
/// - **Bounds:** each call is bounded in time: a path that hangs is reported as hung, within a bound that the implementation
///   documents. Paths have up to 4,095 bytes.
/// - **Order:** a call that returned has had its whole effect, and the next [`table`](Self::table) shows it. Calls for different
///   paths do not wait for each other.
/// - **Cancellation:** a call whose future is dropped may still have its effect, as may a call that hung.
/// - **Data:** nothing that holds a byte is ever removed.
#[cfg(feature = "runtime")]
#[async_trait::async_trait]
pub trait Mounts: Send + Sync {
    /// Reads the mount table, no older than the call.
    async fn table(&self) -> Result<std::sync::Arc<MountTable>, TableError>;

    /// Inspects a path. The last component is not followed if it is a symbolic link.
    async fn inspect(&self, path: &std::path::Path) -> Result<Inspection, ProbeError>;

    /// Creates a directory and its missing parents. Each new directory has the mode `0o750`, whatever the umask of the process,
    /// as kubelet's directories have. An existing directory is left unchanged.
    async fn create_directory(&self, path: &MountPath) -> Result<(), CreateError>;

    /// Removes an entry that holds no data.
    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError>;

    /// Subscribes to changes of the table.
    fn changes(&self) -> std::io::Result<Box<dyn MountChanges>>;
}

/// A subscription to changes of the mount table, from the call of [`Mounts::changes`] on. Dropping it ends the subscription.
#[cfg(feature = "runtime")]
#[async_trait::async_trait]
pub trait MountChanges: Send {
    /// Waits for a change since the last return. Several changes may be reported as one, and a change may be reported twice:
    /// read the table and compare.
    ///
    /// Cancel safe: if the future is dropped, no change is lost. It waits without limit, and never blocks its thread.
    ///
    /// # Errors
    /// If changes can no longer be detected. The subscription is then dropped, and the table is read at intervals instead.
    async fn changed(&mut self) -> std::io::Result<()>;
}
