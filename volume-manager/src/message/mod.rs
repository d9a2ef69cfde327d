//! The messages between whoever decides which volumes a node shall have, and the node.
//!
//! The schema is `proto/edge_csi/volumes/v1/volumes.proto` of this crate; it says what each field means. Here are the
//! messages that are made from it, and the checked types of the other modules. Nothing here sends or keeps anything.
//!
//! ```
//! use std::sync::Arc;
//!
//! use volume_manager::driver::{Access, AccessMode, ConsumerSpec, MountPath, VolumeSpec};
//! use volume_manager::message::{DesiredSet, Request};
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

/// What the messages are called as a service of a session.
pub const SERVICE: &str = "volumes";

/// The most bytes of a request that is read.
pub const MAX_REQUEST_BYTES: usize = 4 << 20;

/// The most volumes of a set.
pub const MAX_VOLUMES: usize = 16_384;

/// The most driver policies of a set.
pub const MAX_POLICIES: usize = 64;

/// The most bytes of one volume with its consumers.
pub const MAX_VOLUME_BYTES: usize = 256 << 10;

/// The most bytes of one driver policy.
pub const MAX_POLICY_BYTES: usize = 64 << 10;

/// The most consumers of one volume.
pub const MAX_CONSUMERS: usize = 256;

/// The most token requests of one driver policy.
pub const MAX_TOKEN_REQUESTS: usize = 64;
