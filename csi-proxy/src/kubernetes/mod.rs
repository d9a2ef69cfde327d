//! The state of a proxy at the API server of Kubernetes.
//!
//! [`KubernetesStore`] keeps one `Placement` for each volume name, snapshot and group, and one `DriverNode` for each node that has a
//! claim or is decommissioned. The manifests of both are in `deploy/base/crd`.
//!
//! Several proxies can use one store: each write names the version that it replaces, and a proxy that is late gets the row of
//! the other one.
//!
//! The program selects the version of Kubernetes with a feature of `k8s-openapi`, and its service account needs these rights in
//! the namespace: get, list, create, update and delete of `placements` and `drivernodes`.

mod driver_node;
#[cfg(test)]
mod fake_api;
mod object;
mod placement;
mod request;
mod store;
#[cfg(test)]
mod tests;

pub use self::store::KubernetesStore;
