//! The messages about Kubernetes objects between a hub and its nodes.
//!
//! The hub watches the API server; a node behind NAT cannot, and must work without it. A node calls
//! the service [`SERVICE`] of the hub itself: a [`message::Watch`] is answered by a stream of [`message::Update`]s, each of
//! the other requests by one reply.

use self::message::{ObjectKey, object};

/// The messages that are made from `proto/edge_csi/kubernetes/v1/kubernetes.proto`.
///
/// Objects have the fewest fields that a node needs. Secrets and tokens are asked for when a driver is called, and are
/// in no object.
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

/// What they are called as a service of a hub with `--kubeconfig`.
pub const SERVICE: &str = "kubernetes";

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
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Pod, Self::Claim, Self::PersistentVolume, Self::Attachment, Self::Driver];

    /// The resource name of Kubernetes, plural and lower case.
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
    /// What the object is known by.
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
