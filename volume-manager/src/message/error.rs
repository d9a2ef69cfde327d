//! Errors of messages.

use csi_proto::name::{InvalidDriverName, InvalidVolumeId};
use prost::DecodeError;

use crate::driver::{InvalidMountPath, InvalidSecretReference, InvalidSpec};
use crate::name::{InvalidConsumerId, VolumeKey};

/// Why a message is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// The message is too large.
    #[error("the message has {found} bytes; at most {bound} are allowed")]
    TooLarge {
        /// The size of the message in bytes.
        found: usize,
        /// The maximum.
        bound: usize,
    },
    /// The bytes do not match the schema.
    #[error("not a message of edge_csi.volumes.v1")]
    Malformed(#[from] DecodeError),
    /// The request is empty or unknown.
    #[error("unknown request; expected desired volumes or a query; upgrade the node if the sender is newer")]
    NoRequest,
    /// The message has two requests.
    #[error("the message has more than one request; send each in its own message")]
    SeveralRequests,
    /// The revision is missing.
    #[error("invalid revision 0; expected increasing revisions from 1")]
    NoRevision,
    /// A list is too long.
    #[error("{field} has {found} elements; at most {bound} are allowed")]
    TooMany {
        /// The list.
        field: &'static str,
        /// The number of elements.
        found: usize,
        /// The maximum.
        bound: usize,
    },
    /// A volume is in the set twice.
    #[error("{key} is in volumes twice; list it once, with all its consumers")]
    VolumeTwice {
        /// The volume.
        key: VolumeKey,
    },
    /// A volume is invalid.
    #[error("volumes[{index}] ({volume}) is not valid")]
    Volume {
        /// The index of the volume in the list, from 0.
        index: usize,
        /// The driver and id in the message, cut at 64 bytes each.
        volume: String,
        /// The error.
        #[source]
        source: InvalidDesired,
    },
    /// A driver policy is invalid.
    #[error("drivers[{index}] is not valid")]
    Driver {
        /// The index of the policy in the list, from 0.
        index: usize,
        /// The error.
        #[source]
        source: InvalidDesired,
    },
}

/// Why a desired volume or a driver policy is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDesired {
    /// The message is too large.
    #[error("the message has {found} bytes; at most {bound} are allowed")]
    TooLarge {
        /// The size of the message in bytes.
        found: usize,
        /// The maximum.
        bound: usize,
    },
    /// The bytes do not match the schema.
    #[error("the bytes do not match the schema")]
    Malformed(#[from] DecodeError),
    /// A list is too long.
    #[error("{field} has {found} elements; at most {bound} are allowed")]
    TooMany {
        /// The list.
        field: &'static str,
        /// The number of elements.
        found: usize,
        /// The maximum.
        bound: usize,
    },
    /// The driver's name violates the rules of CSI.
    #[error("driver is not valid")]
    DriverName(#[from] InvalidDriverName),
    /// The driver is in the list twice.
    #[error("driver {name} is in the list twice; list it once")]
    DriverTwice {
        /// Its name.
        name: String,
    },
    /// The volume's id is invalid.
    #[error("volume_id is not valid")]
    VolumeId(#[from] InvalidVolumeId),
    /// The access is neither a file system nor a block device.
    #[error("access is missing; expected filesystem or block")]
    NoAccess,
    /// An enum value is unknown.
    #[error("unknown value {found} of {field}; use a value of the schema, or upgrade the node")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// The number.
        found: i32,
    },
    /// The combination of fields is invalid.
    #[error(transparent)]
    Spec(#[from] InvalidSpec),
    /// A secret reference is invalid.
    #[error("secrets.{field} is not valid")]
    Secret {
        /// The field of `SecretReferences`, named after the call that needs the secret.
        field: &'static str,
        /// The error.
        #[source]
        source: InvalidSecretReference,
    },
    /// A volume without an external attach is reported as attached.
    #[error("attached is set, but attach is not AWAITED; omit it, or set attach to AWAITED")]
    NotAwaited,
    /// A consumer is invalid.
    #[error("consumers[{index}] is not valid")]
    Consumer {
        /// The index of the consumer in the list, from 0.
        index: usize,
        /// The error.
        #[source]
        source: InvalidConsumer,
    },
    /// Two consumers have the same id.
    #[error("consumers[{index}].id {id} is a duplicate; use a unique id for each consumer")]
    ConsumerTwice {
        /// The index of the second consumer in the list, from 0.
        index: usize,
        /// The id.
        id: String,
    },
}

/// Why a consumer is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumer {
    /// The id is invalid.
    #[error("id is not valid")]
    Id(#[from] InvalidConsumerId),
    /// The target path is invalid.
    #[error("target_path is not valid")]
    Target(#[from] InvalidMountPath),
    /// The pod is invalid.
    #[error(transparent)]
    Pod(#[from] InvalidSpec),
}
