//! The messages about Kubernetes objects between a hub and its nodes.
//!
//! The hub watches the API server; a node behind NAT cannot reach it and must work without it. A node calls the
//! hub's own service [`SERVICE`]: the hub answers a [`message::Watch`] with a stream of [`message::Update`]s, and
//! every other request with one reply.

#[cfg(feature = "kubernetes")]
mod connect;

use std::hash::{BuildHasher, Hasher, RandomState};

#[cfg(feature = "kubernetes")]
pub use self::connect::KubernetesAccess;
use self::message::{ObjectKey, object};

/// The messages that are generated from `proto/edge_csi/kubernetes/v1/kubernetes.proto`.
///
/// Objects have only the fields that a node needs. No object has secrets or tokens: a node requests them when it
/// calls a driver.
pub mod message {
    pub use crate::generated::kubernetes::*;

    /// The kinds of requests.
    pub mod request {
        pub use crate::generated::kubernetes::request::Request as Kind;
    }

    /// The kinds of objects.
    pub mod object {
        pub use crate::generated::kubernetes::object::Object as Kind;
    }
}

/// The name of the service of a hub with `--kubeconfig`.
pub const SERVICE: &str = "kubernetes";

/// Returns a random number, not 0, for a new instance in the messages: of a hub, or of the state directory of a node.
pub fn new_instance() -> u64 {
    // A hasher with random keys is the standard library's source of random numbers.
    RandomState::new().build_hasher().finish().max(1)
}

/// The kinds of objects that nodes receive, numbered as in the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum ObjectKind {
    /// Pods.
    Pod = 1,
    /// PersistentVolumeClaims.
    Claim = 2,
    /// PersistentVolumes.
    PersistentVolume = 3,
    /// VolumeAttachments.
    Attachment = 4,
    /// CSIDrivers.
    Driver = 5,
}

impl ObjectKind {
    /// All kinds, in the order of their numbers.
    pub const ALL: [Self; 5] =
        [Self::Pod, Self::Claim, Self::PersistentVolume, Self::Attachment, Self::Driver];

    /// Returns the Kubernetes resource name: plural and lower case.
    pub const fn resource(self) -> &'static str {
        match self {
            Self::Pod => "pods",
            Self::Claim => "persistentvolumeclaims",
            Self::PersistentVolume => "persistentvolumes",
            Self::Attachment => "volumeattachments",
            Self::Driver => "csidrivers",
        }
    }

    /// The key of an object of this kind.
    pub fn key(self, namespace: &str, name: &str) -> ObjectKey {
        ObjectKey { kind: self as u32, namespace: namespace.to_owned(), name: name.to_owned() }
    }
}

impl object::Kind {
    /// Returns the kind, namespace and name of the object.
    pub fn key(&self) -> ObjectKey {
        match self {
            Self::Pod(pod) => ObjectKind::Pod.key(&pod.namespace, &pod.name),
            Self::Claim(claim) => ObjectKind::Claim.key(&claim.namespace, &claim.name),
            Self::PersistentVolume(volume) => ObjectKind::PersistentVolume.key("", &volume.name),
            Self::Attachment(attachment) => ObjectKind::Attachment.key("", &attachment.name),
            Self::Driver(driver) => ObjectKind::Driver.key("", &driver.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::message::{SecretAnswer, TokenAnswer};

    #[test]
    fn secrets_and_tokens_are_not_printed() {
        let values = [("password".to_owned(), "hunter2".to_owned())].into();
        let secret = SecretAnswer { reason: "found".into(), values, ..SecretAnswer::default() };
        let token = TokenAnswer { tokens: "hunter2".into(), ..TokenAnswer::default() };
        let printed = format!("{secret:?} {token:?}");
        assert!(printed.contains("found") && !printed.contains("hunter2"), "{printed}");
    }
}
