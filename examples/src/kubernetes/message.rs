//! The messages: by hand what `proto/edge_csi/kubernetes/v1/kubernetes.proto` says.
//!
//! Objects have the fewest fields that a node needs. Secrets and tokens are asked for when a driver is called, and are
//! in no object.

use std::collections::BTreeMap;
use std::fmt;

use prost::{Message, Oneof};

/// What a node asks: exactly one of these.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Request {
    /// Which one; `None` if it is of a kind that is not known here.
    #[prost(oneof = "request::Kind", tags = "1, 2, 3, 4")]
    pub request: Option<request::Kind>,
}

/// The kinds of requests.
pub mod request {
    use super::Oneof;

    /// What a request can be.
    #[derive(Clone, PartialEq, Eq, Oneof)]
    #[allow(clippy::exhaustive_enums, reason = "the fields of the message")]
    pub enum Kind {
        /// Answered by [`Update`](super::Update)s without an end.
        #[prost(message, tag = "1")]
        Watch(super::Watch),
        /// Answered by one [`StatusTaken`](super::StatusTaken).
        #[prost(message, tag = "2")]
        Status(super::NodeStatus),
        /// Answered by one [`SecretAnswer`](super::SecretAnswer).
        #[prost(message, tag = "3")]
        Secret(super::SecretQuery),
        /// Answered by one [`TokenAnswer`](super::TokenAnswer).
        #[prost(message, tag = "4")]
        Token(super::TokenQuery),
    }
}

/// Asks for the objects of the node that asks, and for whatever becomes of them.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Watch {
    /// The life of the hub that `revision` is of; 0 if the node has nothing.
    #[prost(uint64, tag = "1")]
    pub source: u64,
    /// What the node has on its disk. The hub goes on from there if it still can, else it sends a whole set.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
}

/// A part of what has changed. Parts count once one with `complete` has come: then they are one change.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Update {
    /// The life of the hub. Another one starts with a whole set.
    #[prost(uint64, tag = "1")]
    pub source: u64,
    /// The number of the change; a later one is higher.
    #[prost(uint64, tag = "2")]
    pub revision: u64,
    /// This is a part of a whole set: what is not in it is gone.
    #[prost(bool, tag = "3")]
    pub whole: bool,
    /// The last part.
    #[prost(bool, tag = "4")]
    pub complete: bool,
    /// New or changed, each once.
    #[prost(message, repeated, tag = "5")]
    pub changed: Vec<Object>,
    /// What is no more, or no more this node's. Empty in a whole set.
    #[prost(message, repeated, tag = "6")]
    pub gone: Vec<ObjectKey>,
}

/// What an object is known by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct ObjectKey {
    /// As the oneof of [`Object`] numbers them.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    /// Empty for what has none.
    #[prost(string, tag = "2")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "3")]
    pub name: String,
}

/// An object of Kubernetes, as far as a node needs it.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Object {
    /// `None` if it is of a kind that is not known here.
    #[prost(oneof = "object::Kind", tags = "1, 2, 3, 4, 5")]
    pub object: Option<object::Kind>,
}

/// The kinds of objects.
pub mod object {
    use super::Oneof;

    /// What an object can be.
    #[derive(Clone, PartialEq, Eq, Oneof)]
    #[allow(clippy::exhaustive_enums, reason = "the fields of the message")]
    #[allow(clippy::large_enum_variant, reason = "most objects are of the large kinds")]
    pub enum Kind {
        /// A pod that is bound to the node and has volumes of CSI.
        #[prost(message, tag = "1")]
        Pod(super::Pod),
        /// A claim of such a pod.
        #[prost(message, tag = "2")]
        Claim(super::Claim),
        /// The volume of such a claim.
        #[prost(message, tag = "3")]
        PersistentVolume(super::PersistentVolume),
        /// An attachment of any volume to the node.
        #[prost(message, tag = "4")]
        Attachment(super::Attachment),
        /// Every CSIDriver.
        #[prost(message, tag = "5")]
        Driver(super::Driver),
    }
}

/// A pod.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Pod {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its UID. Another one under the same name is another pod.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// `spec.serviceAccountName`.
    #[prost(string, tag = "4")]
    pub service_account: String,
    /// `spec.securityContext.fsGroup`.
    #[prost(uint32, optional, tag = "5")]
    pub fs_group: Option<u32>,
    /// Its containers have ended for good: phase Succeeded or Failed. Its volumes are taken down.
    #[prost(bool, tag = "6")]
    pub ended: bool,
    /// Its volumes of CSI: those of claims, and inline ones.
    #[prost(message, repeated, tag = "7")]
    pub volumes: Vec<PodVolume>,
    /// It is being deleted. Its containers may still run.
    #[prost(bool, tag = "8")]
    pub deleting: bool,
    /// `spec.securityContext.fsGroupChangePolicy` is `OnRootMismatch`.
    #[prost(bool, tag = "9")]
    pub fs_group_on_root_mismatch: bool,
}

/// A volume of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct PodVolume {
    /// What the pod calls it.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The claim that it is from, in the pod's namespace; that of an ephemeral volume too. Empty for an inline volume.
    #[prost(string, tag = "2")]
    pub claim: String,
    /// Read-only for this pod.
    #[prost(bool, tag = "3")]
    pub read_only: bool,
    /// An inline volume of CSI.
    #[prost(message, optional, tag = "4")]
    pub inline: Option<InlineVolume>,
}

/// A volume that lives with its pod.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct InlineVolume {
    /// Name of the driver.
    #[prost(string, tag = "1")]
    pub driver: String,
    /// Such as ext4; the driver chooses if empty.
    #[prost(string, tag = "2")]
    pub fs_type: String,
    /// `volumeAttributes`.
    #[prost(btree_map = "string, string", tag = "3")]
    pub volume_attributes: BTreeMap<String, String>,
    /// `nodePublishSecretRef`, in the pod's namespace.
    #[prost(message, optional, tag = "4")]
    pub node_publish_secret: Option<SecretName>,
}

/// A PersistentVolumeClaim.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Claim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// Its volume; empty while it is not bound (`status.phase` is not Bound).
    #[prost(string, tag = "4")]
    pub volume: String,
    /// What the node shall make of it: the controller has made the volume so large, in bytes, and waits for the node
    /// (`FileSystemResizePending`, or `NodeResizePending`). 0 if nothing is asked.
    #[prost(uint64, tag = "5")]
    pub expand_to: u64,
}

/// A PersistentVolume of CSI.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct PersistentVolume {
    /// Its name, which its directory in a pod has.
    #[prost(string, tag = "1")]
    pub name: String,
    /// Name of the driver.
    #[prost(string, tag = "2")]
    pub driver: String,
    /// The driver's id of the volume.
    #[prost(string, tag = "3")]
    pub volume_handle: String,
    /// `spec.csi.readOnly`.
    #[prost(bool, tag = "4")]
    pub read_only: bool,
    /// `spec.csi.fsType`.
    #[prost(string, tag = "5")]
    pub fs_type: String,
    /// `spec.csi.volumeAttributes`.
    #[prost(btree_map = "string, string", tag = "6")]
    pub volume_attributes: BTreeMap<String, String>,
    /// `spec.accessModes`, such as ReadWriteOnce.
    #[prost(string, repeated, tag = "7")]
    pub access_modes: Vec<String>,
    /// `spec.volumeMode` is Block.
    #[prost(bool, tag = "8")]
    pub block: bool,
    /// `spec.mountOptions`.
    #[prost(string, repeated, tag = "9")]
    pub mount_options: Vec<String>,
    /// `nodeStageSecretRef`.
    #[prost(message, optional, tag = "10")]
    pub node_stage_secret: Option<SecretName>,
    /// `nodePublishSecretRef`.
    #[prost(message, optional, tag = "11")]
    pub node_publish_secret: Option<SecretName>,
    /// `nodeExpandSecretRef`.
    #[prost(message, optional, tag = "12")]
    pub node_expand_secret: Option<SecretName>,
    /// The UID of the claim that it is bound to.
    #[prost(string, tag = "14")]
    pub claim_uid: String,
}

/// Where a secret is. Its values are asked for by a [`SecretQuery`].
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct SecretName {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
}

/// A VolumeAttachment.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Attachment {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The driver that attaches.
    #[prost(string, tag = "2")]
    pub attacher: String,
    /// The PersistentVolume.
    #[prost(string, tag = "3")]
    pub volume: String,
    /// `status.attached`, and it is not being deleted.
    #[prost(bool, tag = "4")]
    pub attached: bool,
    /// `status.attachmentMetadata`.
    #[prost(btree_map = "string, string", tag = "5")]
    pub metadata: BTreeMap<String, String>,
}

/// A CSIDriver. Enumerations are spelt as Kubernetes spells them.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct Driver {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// `attachRequired`.
    #[prost(bool, tag = "2")]
    pub attach_required: bool,
    /// `podInfoOnMount`.
    #[prost(bool, tag = "3")]
    pub pod_info_on_mount: bool,
    /// `volumeLifecycleModes`.
    #[prost(string, repeated, tag = "4")]
    pub lifecycle_modes: Vec<String>,
    /// `fsGroupPolicy`.
    #[prost(string, tag = "5")]
    pub fs_group_policy: String,
    /// `requiresRepublish`.
    #[prost(bool, tag = "6")]
    pub requires_republish: bool,
    /// `seLinuxMount`.
    #[prost(bool, tag = "7")]
    pub selinux_mount: bool,
    /// `tokenRequests`.
    #[prost(message, repeated, tag = "8")]
    pub token_requests: Vec<TokenRequest>,
    /// `serviceAccountTokenInSecrets`.
    #[prost(bool, tag = "9")]
    pub token_in_secrets: bool,
}

/// A token that a driver wants of a pod's service account.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct TokenRequest {
    /// Whom it is for; empty is the API server.
    #[prost(string, tag = "1")]
    pub audience: String,
    /// How long it shall be valid; the issuer decides if absent.
    #[prost(uint64, optional, tag = "2")]
    pub expiration_seconds: Option<u64>,
}

/// What the node says of itself: all of it, each time.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct NodeStatus {
    /// The drivers of the node, each once: what CSINode and the labels of the Node are made of.
    #[prost(message, repeated, tag = "1")]
    pub drivers: Vec<NodeDriver>,
    /// Volumes that must not be detached, as `status.volumesInUse` names them: `kubernetes.io/csi/DRIVER^HANDLE`.
    #[prost(string, repeated, tag = "2")]
    pub volumes_in_use: Vec<String>,
    /// Claims whose volume the node has made larger, with the size that was reached.
    #[prost(message, repeated, tag = "3")]
    pub expanded: Vec<ExpandedClaim>,
    /// What stands at pods, to be shown: for each pod volume its state and why it waits.
    #[prost(message, repeated, tag = "4")]
    pub pod_volumes: Vec<PodVolumeStatus>,
}

/// A driver of the node.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct NodeDriver {
    /// Its name.
    #[prost(string, tag = "1")]
    pub name: String,
    /// What NodeGetInfo calls the node.
    #[prost(string, tag = "2")]
    pub node_id: String,
    /// Topology segments, with that of the relay.
    #[prost(btree_map = "string, string", tag = "3")]
    pub segments: BTreeMap<String, String>,
    /// `max_volumes_per_node`; 0 is no limit.
    #[prost(uint64, tag = "4")]
    pub max_volumes: u64,
    /// The driver answers. One that does not is left out of CSINode's drivers only after it has been deregistered.
    #[prost(bool, tag = "5")]
    pub ready: bool,
}

/// A claim that is larger now.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct ExpandedClaim {
    /// Its namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// Its name.
    #[prost(string, tag = "2")]
    pub name: String,
    /// Its UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// The size, in bytes.
    #[prost(uint64, tag = "4")]
    pub bytes: u64,
}

/// How it is with a volume of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct PodVolumeStatus {
    /// The pod's namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The pod's name.
    #[prost(string, tag = "2")]
    pub pod: String,
    /// The pod's UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// What the pod calls the volume.
    #[prost(string, tag = "4")]
    pub volume: String,
    /// It is at its path, and the mount table agrees.
    #[prost(bool, tag = "5")]
    pub published: bool,
    /// Why not, for people; at most 1 KiB.
    #[prost(string, tag = "6")]
    pub reason: String,
    /// What the pod's people are to be told by an event.
    #[prost(message, optional, tag = "7")]
    pub failure: Option<PodVolumeFailure>,
}

/// An event of a pod.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct PodVolumeFailure {
    /// The reason, as kubelet has it: `FailedMount`, `FailedMapVolume` or `VolumeResizeFailed`.
    #[prost(string, tag = "1")]
    pub reason: String,
    /// What happened, for people; at most 1 KiB.
    #[prost(string, tag = "2")]
    pub message: String,
    /// It may end by itself, and is told if it lasts.
    #[prost(bool, tag = "3")]
    pub waits: bool,
}

/// A status was written to the API server.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct StatusTaken {
    /// Empty if so. Else why not, for people; it is to be sent again.
    #[prost(string, tag = "1")]
    pub failure: String,
    /// Whether the volumes in use were written, whatever became of the rest. They are if there is no failure.
    #[prost(bool, tag = "2")]
    pub volumes_in_use: bool,
}

/// Asks for a secret that an object of the node names.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct SecretQuery {
    /// Which one.
    #[prost(message, optional, tag = "1")]
    pub secret: Option<SecretName>,
}

/// The values of a secret. Never printed, and never kept.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct SecretAnswer {
    /// How it went.
    #[prost(enumeration = "Fetched", tag = "1")]
    pub fetched: i32,
    /// Why there is nothing, for people.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// Keys and values; a value that is not UTF-8 fails the query.
    #[prost(btree_map = "string, string", tag = "3")]
    pub values: BTreeMap<String, String>,
}

impl fmt::Debug for SecretAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keys = self.values.len();
        formatter
            .debug_struct("SecretAnswer")
            .field("fetched", &self.fetched)
            .field("reason", &self.reason)
            .field("keys", &keys)
            .finish()
    }
}

/// Asks for tokens of a pod's service account, as its driver's `tokenRequests` have them.
#[derive(Clone, PartialEq, Eq, Message)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct TokenQuery {
    /// The pod's namespace.
    #[prost(string, tag = "1")]
    pub namespace: String,
    /// The pod's name.
    #[prost(string, tag = "2")]
    pub pod: String,
    /// The pod's UID.
    #[prost(string, tag = "3")]
    pub uid: String,
    /// The driver.
    #[prost(string, tag = "4")]
    pub driver: String,
}

/// Tokens, as drivers get them. Never printed, and never kept on a disk.
#[derive(Clone, PartialEq, Eq, Message)]
#[prost(skip_debug)]
#[allow(clippy::exhaustive_structs, reason = "the fields of the message")]
pub struct TokenAnswer {
    /// How it went.
    #[prost(enumeration = "Fetched", tag = "1")]
    pub fetched: i32,
    /// Why there is nothing, for people.
    #[prost(string, tag = "2")]
    pub reason: String,
    /// The value of `csi.storage.k8s.io/serviceAccount.tokens`: JSON.
    #[prost(string, tag = "3")]
    pub tokens: String,
}

impl fmt::Debug for TokenAnswer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (fetched, reason) = (&self.fetched, &self.reason);
        formatter.debug_struct("TokenAnswer").field("fetched", fetched).field("reason", reason).finish()
    }
}

/// How a question to the API server ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[allow(clippy::exhaustive_enums, reason = "the values of the message")]
#[repr(i32)]
pub enum Fetched {
    /// An end that is not known here; as `Unavailable`.
    Unspecified = 0,
    /// Here it is.
    Found = 1,
    /// There is no such thing.
    NotFound = 2,
    /// No object of this node names it.
    Forbidden = 3,
    /// Nobody can say now.
    Unavailable = 4,
}
