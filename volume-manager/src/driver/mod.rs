//! The calls to one storage driver.
//!
//! - [`VolumeSpec`] and [`ConsumerSpec`] say what a volume is and who uses it where; [`DriverPolicy`] says what a
//!   CSIDriver object says. Plain data, checked when it is made.
//! - [`Operation`] is one call with all that it needs besides; the requests are built from these, by the capabilities
//!   of the driver that is going to answer.
//!
//! The feature `runtime` adds the calls themselves:
//!
//! - `Driver` dials the driver's socket and asks once what the driver is and can do ([`DriverFacts`]). What it makes is a
//!   connection, a `Generation`. Every call of a generation goes over that one connection, so mounting a volume is two
//!   calls, where kubelet makes eight on eight connections.
//! - `Secrets` is asked for the values behind a [`SecretReference`] when a call needs them, and at no other time.
//! - A call that fails is a [`CallError`]. It says which code the driver answered, if the driver answered, and whether the
//!   call was sent at all; what follows from that for the volume is for [`lifecycle`](crate::lifecycle) to decide.

mod access;
mod bounds;
mod call_error;
mod consumer_spec;
mod facts;
mod mount_path;
mod operation;
mod outcome;
mod policy;
mod secret_reference;
mod volume_spec;

pub use crate::lifecycle::Attach;
pub use access::{Access, AccessMode};
pub use bounds::InvalidSpec;
pub use call_error::{CallError, RequestError, SecretError};
pub use consumer_spec::{ConsumerSpec, PodInfo};
pub use facts::{Capabilities, ControllerCapabilities, DriverFacts, NodeCapabilities};
pub use mount_path::{InvalidMountPath, MountPath};
pub use operation::Operation;
pub use outcome::{CallOutcome, HealthIssue, HealthStatus, Usage, VolumeCondition, VolumeStats};
pub use policy::{DriverPolicy, FsGroupPolicy, OwnershipChange, TokenRequest};
pub use secret_reference::{InvalidSecretReference, SecretReference};
pub use volume_spec::{SecretReferences, VolumeSpec, VolumeSpecBuilder};

#[cfg(feature = "runtime")]
mod channel;
#[cfg(feature = "runtime")]
mod dial;
#[cfg(feature = "runtime")]
mod generation;
#[cfg(feature = "runtime")]
mod identify;
#[cfg(feature = "runtime")]
mod process;
#[cfg(feature = "runtime")]
mod request;
#[cfg(feature = "runtime")]
mod secrets;
#[cfg(feature = "runtime")]
mod stats;

#[cfg(feature = "runtime")]
pub use dial::{ConnectError, Driver};
#[cfg(feature = "runtime")]
pub use generation::Generation;
#[cfg(feature = "runtime")]
pub use secrets::{MemorySecrets, NoSecrets, SecretValues, Secrets, ServiceAccountToken};
