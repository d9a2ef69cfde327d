//! CSI calls as messages, between sidecars in one place and the driver in another.
//!
//! (Not related to `kubernetes-csi/csi-proxy`, which does privileged work on Windows hosts.)
//!
//! ```text
//! sidecar --gRPC/UDS--> Endpoint -> Router -> Relay ==> ... ==> Dispatcher -> Driver --gRPC/UDS--> vendor's driver
//! ```
//!
//! - [`Endpoint`] serves the CSI socket where the driver is not. It answers the start-up calls of sidecars from a
//!   cache, and turns every other RPC into a [`Call`].
//! - [`Router`] selects the node of a call: a fixed one, or [by topology](TopologyRouter); with [`NodeSockets`] each
//!   node has a socket of its own. [`Relay`] carries the call there: [`Dispatcher`] itself within a process,
//!   `SessionRelay` (feature `edge-transport`) over a session, or your own over any message bus. [`RetryRelay`] wraps
//!   a relay and sends lost calls again.
//! - [`Dispatcher`] passes the call to the [`Driver`] that it names, and runs it to completion even if no caller waits
//!   any more.
//!
//! Bodies are opaque: methods and fields of later CSI versions pass unchanged. The status of the driver passes
//! unchanged, and a failure of the relay is a [`Fault`], which [`Fault::to_status`] maps to a code that does not make
//! a sidecar forget a volume.
//!
//! # A socket for a remote driver
//!
//! ```
//! use csi_proxy::{Dispatcher, DriverName, Endpoint, Router};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let socket = format!("unix://{}/csi.sock", directory.path().display());
//! let name = DriverName::new("csi-hostpath")?;
//! // At the node of the driver.
//! let drivers = Dispatcher::new().with_driver(name.clone(), "unix:///plugins/csi-hostpath/csi.sock".parse()?);
//! // At the sidecars.
//! let router = Router::fixed("edge-1".parse()?);
//! let serving = Endpoint::new(name, router, drivers).serve(socket.parse()?).await?;
//! serving.shutdown(std::time::Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # A custom message bus
//!
//! A relay over a bus has one method. [`bus`] has everything but input and output, and an example that passes the suite
//! below.
//!
//! `conformance` (feature `testing`) tests such a relay. [`tower`] turns relays into tower services and back.
//!
//! # Custom stores
//!
//! Any [`TermStore`], [`TermSource`] and [`DriverInfoStore`] may replace the ones of this crate. Their methods run in
//! tasks of the runtime, concurrently and in any order unless the method says otherwise, and must not block a thread.
//! Placements have an interface without a stability promise, [`advanced::routing::PlacementStore`].
//!
//! # One execution per operation
//!
//! When a sidecar times out and retries, the driver does not do its work twice at once: a [`Dispatcher`]
//! identifies the operation of each call. A [fence](Call::fence) prevents stale copies of calls
//! from beginning; a [`TermStore`] stores its terms across restarts.
//!
//! # A socket for kubelet
//!
//! In front of a driver on the same host, an endpoint relays Node calls too. Equal calls coalesce across all endpoints
//! that share a dispatcher; [`TopologyRelay`] adds the topology of the node for drivers that report none; [`monitor`]
//! reports which rules of the spec the caller has broken.
//!
//! ```
//! use csi_proxy::monitor::{Monitored, Monitors};
//! use csi_proxy::{Dispatcher, Endpoint, NodeId, NodeSegment, Router, TopologyRelay};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let socket = format!("unix://{}/csi.sock", directory.path().display());
//! let (name, node): (_, NodeId) = ("csi-hostpath".parse()?, "edge-1".parse()?);
//! let drivers = Dispatcher::new().with_driver(name, "unix:///plugins/csi-hostpath/csi.sock".parse()?);
//! let located = TopologyRelay::new(drivers, NodeSegment::of_driver(node.clone()));
//! let relay = Monitored::new(located, Monitors::default());
//! let endpoint = Endpoint::new("csi-hostpath".parse()?, Router::fixed(node), relay).with_node_calls();
//! let serving = endpoint.serve(socket.parse()?).await?;
//! serving.shutdown(std::time::Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # What dropping a handle does
//!
//! | Handle | When it, or its last clone, is dropped |
//! |---|---|
//! | [`Endpoint`] that does not serve | nothing: it has opened no socket |
//! | [`Serving`] | the socket is served on; [`Serving::shutdown`] ends it |
//! | [`NodeSockets`] | the sockets are served on, without refreshes: call [`NodeSockets::shutdown`] first |
//! | [`Dispatcher`] | queued calls end; calls that a driver has begun run to completion |
//! | [`Driver`] | its connections close when their last call has ended |
//! | a future of [`Relay::relay`], or [`Replies`] | the wait ends, the work continues |
//! | [`RetryRelay`] | the watch of nodes ends, if `RetryRelay::over` has started one; calls are unaffected |
//! | [`Router`], [`TopologyRouter`] | nothing: the placements are in the store |
//! | `RedbStore` | the file is closed after the pending writes |
//! | `kubernetes::Lease` | the renewals end, and another process takes the lease when it expires |
//!
//! Tasks run on the runtime in which the handle was started, and end with it.
//!
//! # Bounds
//!
//! Request 8 MiB, response message 16 MiB, metadata 8 KiB, 1024 open calls per connection and per driver (512 of
//! other hosts), 128 connections, 15 minutes per call. The open calls of a driver and the time can be set
//! ([`Dispatcher::with_max_in_flight`], [`Endpoint::with_default_timeout`], [`Driver::with_timeout`]).
#![cfg_attr(edge_csi_docs, doc = "\n# Features\n\n", doc = document_features::document_features!())]
#![cfg_attr(edge_csi_docs, feature(doc_cfg))]

mod address;
pub mod advanced;
mod call;
mod dispatcher;
mod driver_info;
#[cfg(feature = "runtime")]
mod endpoint;
mod generated;
#[cfg(feature = "runtime")]
mod grpc;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod log_limit;
#[cfg(feature = "metrics")]
mod metrics;
pub mod monitor;
#[cfg(feature = "runtime")]
mod observe;
#[cfg(feature = "runtime")]
pub mod prelude;
#[cfg(feature = "runtime")]
mod relay;
mod routing;

pub use csi_proto::{Code, Delivery, DriverName};

pub use self::address::{InvalidSocketAddress, MAX_SOCKET_PATH, SocketAddress};
pub use self::call::{
    Call, CallId, Drained, Fault, InvalidMethodPath, InvalidNodeId, MAX_METADATA, Metadata, MetadataError,
    MethodPath, NodeId, NodeSession, Origin, Outcome, Replies, Reply, Term, wire,
};
#[cfg(feature = "testing")]
pub use self::dispatcher::Connector;
#[cfg(feature = "runtime")]
pub use self::dispatcher::{
    Counts as OperationCounts, DEFAULT_MAX_IN_FLIGHT, Dispatcher, Driver, TermStore, TermStoreError,
};
pub use self::driver_info::StartupStatus;
#[cfg(feature = "runtime")]
pub use self::driver_info::{DriverInfoStore, StartupView};
#[cfg(feature = "runtime")]
pub use self::endpoint::{DEFAULT_MAX_SOCKETS, Endpoint, NodeSocketError, NodeSockets, ServeError, Serving};
#[cfg(feature = "runtime")]
pub use self::relay::bus;
#[cfg(feature = "edge-transport")]
pub use self::relay::{CSI_SERVICE, NodeWatch, ServeCsi, SessionRelay};
#[cfg(feature = "runtime")]
pub use self::relay::{
    ClockTerms, DEFAULT_RECONNECT_GRACE, InvalidSegment, NodeSegment, Reachability, Relay, Replaced,
    RetryRelay, TermError, TermSource, TopologyRelay, next_term, tower,
};
#[cfg(feature = "testing")]
pub use self::relay::{FaultyRelay, InjectedFault, conformance};
pub use self::routing::OfflinePolicy;
#[cfg(feature = "redb")]
pub use self::routing::store::RedbStore;
#[cfg(feature = "runtime")]
pub use self::routing::store::{MemoryStore, OpenStoreError, StoreError};
#[cfg(feature = "runtime")]
pub use self::routing::{
    DecommissionError, Decommissioned, MAX_DECOMMISSIONED, OpenRouteError, RepairError, Router,
    TopologyRouter, TopologyRouterBuilder,
};

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
struct Readme;
