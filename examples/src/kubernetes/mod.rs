//! What a hub tells a node of Kubernetes, and a node the hub.
//!
//! The hub watches the API server; a node behind NAT cannot, and must go on without it. A node asks the peer
//! [`PEER`] of its hub, service [`SERVICE`]: a [`message::Watch`] is answered by [`message::Update`]s for as long as the link
//! and the hub live, the other requests by one reply.

pub mod message;
#[cfg(test)]
mod schema;

/// The peer that a hub with `--kubeconfig` is, among its own peers.
pub const PEER: &str = "kubernetes.edge-hub";

/// What the messages are called as a service of a session.
pub const SERVICE: &str = "kubernetes";
