//! What is mounted where: seen and compared with what should be. Only drivers mount and unmount.
//!
//! | Part | What it does |
//! |---|---|
//! | [`MountTable`], [`Mount`] | read `/proc/self/mountinfo`, answer what is at a path and who holds a file system |
//! | [`verdict`], [`held`] | hold a record, the table and the path against each other; each disagreement is a [`Verdict`] |
//! | [`SafeRemoval`] | the only removal there is: of an empty directory or an empty file, on one mount |
//! | `Mounts` | the seam to the system, with the feature `runtime`; `linux`, `MemoryMounts` and `FaultyMounts` are behind it |
//!
//! The pure parts need no feature. The functions of the system are with the feature `linux`.

mod error;
mod escape;
mod identity;
mod mount;
mod path;
mod presence;
mod removal;
mod table;
mod verdict;

#[cfg(feature = "runtime")]
pub mod conformance;
#[cfg(feature = "runtime")]
mod faulty;
#[cfg(all(feature = "linux", target_os = "linux"))]
pub mod linux;
#[cfg(feature = "runtime")]
mod memory;
#[cfg(feature = "runtime")]
mod port;

pub use error::{CreateError, InspectError, RemoveError, TableError, Trouble};
#[cfg(feature = "runtime")]
pub use faulty::{Fault, FaultyMounts, Operation};
pub use identity::MountIdentity;
#[cfg(feature = "runtime")]
pub use memory::{MemoryFileSystem, MemoryMounts};
pub use mount::{DeviceNumber, Mount, MountId};
pub use path::{AbsolutePath, InvalidPath};
#[cfg(feature = "runtime")]
pub use port::{MountChanges, Mounts};
pub use presence::{Inspection, Presence};
pub use removal::{Removable, Removed, SafeRemoval};
pub use table::{Holder, InvalidMountTable, Kinship, MountTable};
pub use verdict::{Expectation, Expected, Verdict, held, verdict};
