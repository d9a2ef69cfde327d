//! What is wrong with a message.

use csi_proto::name::{InvalidDriverName, InvalidVolumeId};
use prost::DecodeError;

use crate::driver::{InvalidMountPath, InvalidSecretReference, InvalidSpec};
use crate::name::{InvalidConsumerId, VolumeKey};

/// Why bytes are no message of the schema, or say something that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidMessage {
    /// More bytes than are read.
    #[error("the message has {found} bytes; at most {bound} are read")]
    TooLarge {
        /// Its bytes.
        found: usize,
        /// The most that are read.
        bound: usize,
    },
    /// No message of this schema.
    #[error("it is no message of edge_csi.volumes.v1")]
    Malformed(#[from] DecodeError),
    /// Nothing that is known here.
    #[error("the request is none that is known here; give desired volumes or a query, or upgrade the node")]
    NoRequest,
    /// Two requests in one message.
    #[error("the message has more than one request; send one message for each")]
    SeveralRequests,
    /// Sets are numbered from 1.
    #[error("revision is 0; number the sets from 1, rising")]
    NoRevision,
    /// A list is longer than its bound.
    #[error("{field} has {found} elements; at most {bound} are allowed")]
    TooMany {
        /// The list.
        field: &'static str,
        /// Its elements.
        found: usize,
        /// The most that are allowed.
        bound: usize,
    },
    /// A volume is in the set twice.
    #[error("{key} is in volumes twice; give it once, with all its consumers")]
    VolumeTwice {
        /// The volume.
        key: VolumeKey,
    },
    /// A volume that cannot be.
    #[error("volumes[{index}] ({volume}) is not valid")]
    Volume {
        /// Its place in the list, from 0.
        index: usize,
        /// Driver and id as they are in the message, cut at 64 bytes each.
        volume: String,
        /// What is wrong with it.
        #[source]
        source: InvalidDesired,
    },
    /// A driver policy that cannot be.
    #[error("drivers[{index}] is not valid")]
    Driver {
        /// Its place in the list, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: InvalidDesired,
    },
}

/// What is wrong with a desired volume or a driver policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidDesired {
    /// More bytes than one may have.
    #[error("it has {found} bytes; at most {bound} are allowed")]
    TooLarge {
        /// Its bytes.
        found: usize,
        /// The most that are allowed.
        bound: usize,
    },
    /// No message of this schema.
    #[error("it is no such message")]
    Malformed(#[from] DecodeError),
    /// A list is longer than its bound.
    #[error("{field} has {found} elements; at most {bound} are allowed")]
    TooMany {
        /// The list.
        field: &'static str,
        /// Its elements.
        found: usize,
        /// The most that are allowed.
        bound: usize,
    },
    /// The driver's name breaks the rules of CSI.
    #[error("driver is not valid")]
    DriverName(#[from] InvalidDriverName),
    /// The driver is in the list twice.
    #[error("the driver {name} is in the list twice; give it once")]
    DriverTwice {
        /// Its name.
        name: String,
    },
    /// The volume's id cannot be.
    #[error("volume_id is not valid")]
    VolumeId(#[from] InvalidVolumeId),
    /// Neither a file system nor a block device.
    #[error("access is missing; give filesystem or block")]
    NoAccess,
    /// A number that is not in its enum.
    #[error("{field} is {found}, which is not known here; give one of the schema's, or upgrade the node")]
    Number {
        /// The field.
        field: &'static str,
        /// The number.
        found: i32,
    },
    /// The volume as a whole.
    #[error(transparent)]
    Spec(#[from] InvalidSpec),
    /// A reference to a secret.
    #[error("secrets.{field} is not valid")]
    Secret {
        /// The call that takes it.
        field: &'static str,
        /// What is wrong with it.
        #[source]
        source: InvalidSecretReference,
    },
    /// Only a volume that is attached by others can be told to be attached.
    #[error("attached is set, and attach is not AWAITED; leave it out, or set attach to AWAITED")]
    AttachedByNobody,
    /// A consumer that cannot be.
    #[error("consumers[{index}] is not valid")]
    Consumer {
        /// Its place in the list, from 0.
        index: usize,
        /// What is wrong with it.
        #[source]
        source: InvalidConsumer,
    },
    /// Two consumers have one id.
    #[error("consumers[{index}].id is {id}, as another's; give each consumer an id of its own")]
    ConsumerTwice {
        /// The place of the second in the list, from 0.
        index: usize,
        /// The id.
        id: String,
    },
}

/// What is wrong with a consumer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidConsumer {
    /// Its id cannot be.
    #[error("id is not valid")]
    Id(#[from] InvalidConsumerId),
    /// Its target cannot be.
    #[error("target_path is not valid")]
    Target(#[from] InvalidMountPath),
    /// Its pod cannot be.
    #[error(transparent)]
    Pod(#[from] InvalidSpec),
}
