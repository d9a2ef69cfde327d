//! The calls to one storage driver.
//!
//! - [`VolumeSpec`] and [`ConsumerSpec`] describe a volume, its consumers and their targets; [`DriverPolicy`] has
//!   the fields of a CSIDriver object. These types are plain data, validated on construction.
//! - [`Operation`] is one call with its arguments. Its request is built from the operation and the specs,
//!   according to the capabilities of the driver.
//!
//! The feature `runtime` adds the calls themselves:
//!
//! - `Driver` dials the driver's socket and queries the driver's name and capabilities once ([`DriverFacts`]). The result is
//!   a `DriverConnection`. All calls go over that one connection, so mounting a volume is two calls, where kubelet makes
//!   eight on eight connections.
//! - `Secrets` resolves a [`SecretReference`] when a call needs its values, and at no other time.
//! - A failed call is a [`CallError`], with the driver's code, if the driver answered, and whether the call was
//!   sent at all. [`lifecycle`](crate::lifecycle) selects the next call of the volume after the error.

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
mod connect;
#[cfg(feature = "runtime")]
mod connection;
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
pub use connect::{ConnectError, Driver};
#[cfg(feature = "runtime")]
pub use connection::DriverConnection;
#[cfg(feature = "runtime")]
pub use secrets::{MemorySecrets, NoSecrets, SecretValues, Secrets, ServiceAccountToken};
