//! What a hub tells a node of Kubernetes, and a node the hub.
//!
//! The hub watches the API server; a node behind NAT cannot, and must go on without it. A node asks
//! the hub itself, service [`SERVICE`]: a [`message::Watch`] is answered by [`message::Update`]s for as long as the link
//! and the hub live, the other requests by one reply.

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

/// The kinds of objects that nodes are told of, numbered as in the messages.
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

    /// What Kubernetes calls it, in the plural and small letters.
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
