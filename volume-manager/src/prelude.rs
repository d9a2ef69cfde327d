//! What a program with volumes usually imports: `use volume_manager::prelude::*`.
//!
//! Each item is documented at its own path.

#[doc(no_inline)]
pub use crate::driver::{Access, AccessMode, ConsumerSpec, DriverPolicy, MountPath, VolumeSpec};
#[cfg(feature = "runtime")]
#[doc(no_inline)]
pub use crate::driver::{NoSecrets, Secrets};
#[cfg(all(feature = "linux", target_os = "linux"))]
#[doc(no_inline)]
pub use crate::mounts::linux::{LinuxMounts, MountSettings};
#[doc(no_inline)]
pub use crate::node::VolumeSettings;
#[cfg(feature = "runtime")]
#[doc(no_inline)]
pub use crate::node::{Parts, Volumes};
#[doc(no_inline)]
pub use crate::{ConsumerId, VolumeKey};
