//! What a storage driver needs to know: volumes, consumers, the driver's policy, and secrets.
//!
//! - [`VolumeSpec`] and [`ConsumerSpec`] describe a volume, its consumers and their targets; [`DriverPolicy`] has
//!   the fields of a CSIDriver object. These types are plain data, validated on construction.
//! - `Secrets` (feature `runtime`) resolves a [`SecretReference`] when a call needs its values, and at no other time.
//! - [`DriverFacts`] is what a driver reported about itself.
//!
//! A driver is dialed once, and all calls go over that one connection, so mounting a volume is two calls, where kubelet makes
//! eight on eight connections. Calls without `Volumes` are in
//! [`advanced::driver`](crate::advanced::driver).

mod access;
mod bounds;
pub(crate) mod call_error;
mod consumer_spec;
mod facts;
mod mount_path;
pub(crate) mod operation;
pub(crate) mod outcome;
mod policy;
mod secret_reference;
mod volume_spec;

pub use crate::lifecycle::Attach;
pub use access::{Access, AccessMode};
pub use bounds::InvalidSpec;
pub(crate) use call_error::CallError;
pub use call_error::SecretError;
pub use consumer_spec::{ConsumerSpec, PodInfo};
pub use facts::{Capabilities, ControllerCapabilities, DriverFacts, NodeCapabilities};
pub use mount_path::{InvalidMountPath, MountPath};
pub(crate) use operation::Operation;
pub(crate) use outcome::CallOutcome;
pub use outcome::{HealthIssue, HealthStatus, Usage, VolumeCondition, VolumeStats};
pub use policy::{DriverPolicy, FsGroupPolicy, OwnershipChange, TokenRequest};
pub use secret_reference::{InvalidSecretReference, SecretReference};
pub use volume_spec::{SecretReferences, VolumeSpec, VolumeSpecBuilder};

#[cfg(feature = "runtime")]
mod channel;
#[cfg(feature = "runtime")]
pub(crate) mod connect;
#[cfg(feature = "runtime")]
pub(crate) mod connection;
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
pub(crate) use connect::{ConnectError, Driver};
#[cfg(feature = "runtime")]
pub(crate) use connection::DriverConnection;
#[cfg(feature = "runtime")]
pub use secrets::{MemorySecrets, NoSecrets, SecretValues, Secrets, ServiceAccountToken};
