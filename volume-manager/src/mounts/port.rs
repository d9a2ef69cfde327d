//! The seam to the system: what a manager of volumes does to paths and mounts.

use std::io;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Bind, BindError, CreateError, Created, Creation, InspectError, Inspection, MountTable, RemoveError,
    Removed, SafeRemoval, TableError, Unmount, UnmountError, Unmounted,
};

/// The mounts of a node.
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

    /// Makes a directory or a placeholder unless it is there.
    async fn create(&self, creation: &Creation) -> Result<Created, CreateError>;

    /// Makes a bind mount. Never one on top of another mount.
    async fn bind(&self, bind: &Bind) -> Result<(), BindError>;

    /// Takes the topmost mount from a path.
    async fn unmount(&self, unmount: &Unmount) -> Result<Unmounted, UnmountError>;

    /// Removes an entry that holds no data.
    async fn remove(&self, removal: &SafeRemoval) -> Result<Removed, RemoveError>;

    /// Changes of the table from now on.
    fn changes(&self) -> io::Result<Box<dyn MountChanges>>;
}

/// The changes of a mount table, since it was asked for them.
#[async_trait]
pub trait MountChanges: Send {
    /// Waits for a change since the last answer. Many changes may be told as one, and a change may be told twice:
    /// read the table and compare, see [`losses`](super::losses).
    ///
    /// If the future is dropped, no change is lost.
    async fn changed(&mut self) -> io::Result<()>;
}
