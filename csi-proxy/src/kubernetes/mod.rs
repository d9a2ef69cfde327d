//! The state of a proxy at the API server of Kubernetes: placements as custom resources, and a Lease for the active one of
//! several proxies.
//!
//! - [`KubernetesStore`] keeps one `Placement` for each volume name, snapshot and group, and one `DriverNode` for each node
//!   that has a claim or is decommissioned. The manifests of both are in `deploy/base/crd`.
//! - [`Lease`] makes one of several proxies the active one, and gives it the term of the driver.
//!
//! Several proxies can use one store: each write names the version that it replaces, and a proxy that is late gets the row of
//! the other one. A proxy that lost its Lease without noticing is harmless, since nodes refuse its term.
//!
//! The program selects the version of Kubernetes with a feature of `k8s-openapi`, and its service account needs these rights in
//! the namespace: get, list, create, update and delete of `placements` and `drivernodes`; get, create and update of `leases`.
//!
//! # Example
//!
//! ```no_run
//! use csi_proxy::kubernetes::{KubernetesStore, Lease};
//! use csi_proxy::{DriverName, TopologyRouter};
//!
//! # async fn run(
//! #     client: kube::Client, relay: impl csi_proxy::Relay, reachability: csi_proxy::Reachability,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let driver: DriverName = "csi-hostpath".parse()?;
//! // The other proxy is active until this returns.
//! let lease = Lease::builder(client.clone(), "edge-csi", "csi-hostpath", "pod-1").acquire().await?;
//! // The rows are read after that, so that they include the last writes of the other proxy.
//! let store = KubernetesStore::new(client, "edge-csi", driver.clone());
//! let router = TopologyRouter::builder(driver, ["edge-1".parse()?]).open(store).await?;
//! let relay = csi_proxy::RetryRelay::start(relay, reachability, lease.clone()).await?;
//! // ... serve until the lease is lost; then exit without a drain.
//! let lost = lease.lost().await;
//! # drop((router, relay));
//! # Err(lost.into())
//! # }
//! ```

mod driver_node;
#[cfg(test)]
mod fake_api;
mod lease;
mod object;
mod placement;
mod request;
mod store;
#[cfg(test)]
mod tests;

pub use self::lease::{
    DEFAULT_LEASE_DURATION, InvalidLeaseDuration, Lease, LeaseBuilder, LeaseError, LeaseLost,
    MAX_LEASE_DURATION, MIN_LEASE_DURATION,
};
pub use self::store::KubernetesStore;
