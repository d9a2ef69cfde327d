//! What a hub tells a node of Kubernetes, and a node the hub.
//!
//! The hub watches the API server; a node behind NAT cannot, and must go on without it. A node asks
//! the hub itself, service [`SERVICE`]: a [`message::Watch`] is answered by [`message::Update`]s for as long as the link
//! and the hub live, the other requests by one reply.

#[cfg(test)]
pub(crate) mod chance;
pub mod message;

/// What they are called as a service of a hub with `--kubeconfig`.
pub const SERVICE: &str = "kubernetes";
