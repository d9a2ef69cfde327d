//! The seam to the system: what a manager of volumes does to paths and mounts.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    AbsolutePath, CreateError, InspectError, Inspection, MountTable, RemoveError, Removed, SafeRemoval,
    TableError,
};

/// The mounts of a node. Only drivers mount and unmount, so there is no function for either.
///
/// What every implementation keeps, and [`conformance`](super::conformance) checks:
///
/// - No call blocks its thread, and none waits for ever: what hangs is answered as hung, within a bound that the
///   implementation states.
/// - A call that was answered has had its whole effect, and the next [`table`](Self::table) shows it.
/// - A call whose future is dropped may still have its effect, as with one that hung.
/// - Nothing that holds a byte is ever removed.
#[async_trait]
pub trait Mounts: Send + Sync {
    /// The mounts that exist now, at least as new as the call.
    async fn table(&self) -> Result<Arc<MountTable>, TableError>;

    /// What is at a path. The last part of the path is not followed if it is a symbolic link.
    async fn inspect(&self, path: &Path) -> Result<Inspection, InspectError>;

    /// Makes a directory, with those that are missing on the way to it, unless it is there. Each that is made has the
    /// permission bits `0o750`, whatever the umask of the process: open to its owner, readable to the group, as kubelet
    /// makes its directories. One that is there is left as it is.
    async fn create_directory(&self, path: &AbsolutePath) -> Result<(), CreateError>;

    /// Removes an entry that holds no data.
    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError>;

    /// Changes of the table from now on.
    fn changes(&self) -> io::Result<Box<dyn MountChanges>>;
}

/// The changes of a mount table, since it was asked for them.
#[async_trait]
pub trait MountChanges: Send {
    /// Waits for a change since the last answer. Many changes may be told as one, and a change may be told twice:
    /// read the table and compare.
    ///
    /// If the future is dropped, no change is lost.
    async fn changed(&mut self) -> io::Result<()>;
}
