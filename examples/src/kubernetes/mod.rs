//! What a hub tells a node of Kubernetes, and a node the hub.
//!
//! The hub watches the API server; a node behind NAT cannot, and must go on without it. A node asks
//! the hub itself, service [`SERVICE`]: a [`message::Watch`] is answered by [`message::Update`]s for as long as the link
//! and the hub live, the other requests by one reply.

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
