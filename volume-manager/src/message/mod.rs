//! The messages between the controller of the desired volumes and the node.
//!
//! The schema is `proto/edge_csi/volumes/v1/volumes.proto` of this crate, which documents the fields. This module
//! contains the generated messages and their conversion to and from the validated types of the other modules. It sends
//! and stores nothing.
//!
//! ```
//! use std::sync::Arc;
//!
//! use volume_manager::driver::{Access, AccessMode, ConsumerSpec, MountPath, VolumeSpec};
//! use volume_manager::advanced::message::{DesiredSet, Request};
//! use volume_manager::node::DesiredVolume;
//! use volume_manager::{ConsumerId, VolumeKey};
//!
//! # use csi_proto::{DriverName, VolumeId};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let key = VolumeKey { driver: DriverName::new("hostpath.csi.k8s.io")?, id: VolumeId::new("vol-1")? };
//! let spec = VolumeSpec::builder(key, Access::filesystem(), AccessMode::SingleNodeWriter).build()?;
//! let pod = ConsumerSpec::new(ConsumerId::new("pod-1")?, MountPath::new("/pods/1/data")?);
//! let volume = DesiredVolume { spec: Arc::new(spec), consumers: vec![Arc::new(pod)] };
//! let desired = DesiredSet::new(1, vec![volume]);
//! assert_eq!(Request::decode(&desired.encode())?, Request::Desired(desired));
//! # Ok(())
//! # }
//! ```

mod answers;
mod decode;
mod desired;
mod error;
#[cfg(test)]
mod tests;

use crate::generated::volumes as wire;

pub use answers::{
    Answer, ConsumerReport, MAX_ANSWER_BYTES, Quarantined, Reconciled, Refusal, Refused, VolumeReport,
    VolumeReports, answer, refusal,
};
pub use decode::Request;
pub use desired::{DesiredSet, consumer_bytes, policy_bytes, query, volume_bytes};
pub use error::{InvalidConsumer, InvalidDesired, InvalidMessage};

/// The name of the session service that carries the messages.
pub const SERVICE: &str = "volumes";

/// The maximum size of a request in bytes.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The maximum number of volumes in a set and on a node.
///
/// A node has a few hundred volumes at most, and each takes a few KiB of memory. Without a bound, a caller that sends
/// ever more volumes would exhaust the memory.
pub const MAX_VOLUMES: usize = 16_384;

/// The maximum number of driver policies in a set.
pub const MAX_POLICIES: usize = 64;

/// The maximum size of a volume with its consumers, in bytes.
pub const MAX_VOLUME_BYTES: usize = 256 << 10;

/// The maximum size of a driver policy in bytes.
pub const MAX_POLICY_BYTES: usize = 64 << 10;

/// The maximum number of consumers of one volume.
pub const MAX_CONSUMERS: usize = 256;

/// The maximum number of token requests in a driver policy.
pub const MAX_TOKEN_REQUESTS: usize = 64;
