//! A CSI call as a message: sidecars here, the driver elsewhere.
//!
//! (Not related to `kubernetes-csi/csi-proxy`, which does privileged work on Windows hosts.)
//!
//! ```text
//! sidecar --gRPC/UDS--> Endpoint -> Router -> Relay ==> ... ==> Dispatcher -> Driver --gRPC/UDS--> vendor's driver
//! ```
//!
//! - [`Endpoint`] is the driver's socket where there is no driver. It answers what sidecars ask when they start by itself
//!   ([`driver_info`]), and turns everything else into a [`Call`].
//! - [`Router`] says which node a call goes to, always the same or [by topology](TopologyRouter); with [`NodeSockets`] each node has
//!   a socket of its own. [`Relay`] carries it there: [`Dispatcher`] itself within a process, `SessionRelay` (feature `edge-transport`) over
//!   a session, or yours over any message bus. [`RetryRelay`] around it sends a call again that was lost on its way.
//! - [`Dispatcher`] gives the call to the [`Driver`] that it names, and sees it through even if nobody waits any more.
//!
//! Bodies are opaque: a method or field of a later CSI version passes untouched. What the driver said passes unchanged, and a
//! failure on the way is a [`Fault`], which [`Fault::to_status`] turns into a code that does not make a sidecar forget a volume.
//!
//! # A socket whose driver is elsewhere
//!
//! ```
//! use csi_proxy::{Dispatcher, DriverName, Endpoint, Router};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let socket = format!("unix://{}/csi.sock", directory.path().display());
//! let name = DriverName::new("csi-hostpath")?;
//! // Where the driver is.
//! let drivers = Dispatcher::new().with_driver(name.clone(), "unix:///plugins/csi-hostpath/csi.sock".parse()?);
//! // Where the sidecars are.
//! let router = Router::fixed("edge-1".parse()?);
//! let serving = Endpoint::new(name, router, drivers).serve(socket.parse()?).await?;
//! serving.shutdown(std::time::Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # My own message bus: one method
//!
//! ```
//! use csi_proxy::{Call, Fault, Outcome, Relay, Replies};
//! # struct Mqtt;
//! # impl Mqtt {
//! #     async fn request(&self, _: &str, _: bytes::Bytes, _: bytes::Bytes) -> Result<[bytes::Bytes; 2], String> { Err("off".into()) }
//! # }
//!
//! struct MyMqtt(Mqtt);
//!
//! #[async_trait::async_trait]
//! impl Relay for MyMqtt {
//!     async fn relay(&self, call: Call) -> Result<Replies, Fault> {
//!         let lost = |reason: String| Fault::LinkLost { reason };
//!         let topic = format!("csi/{}", call.node);
//!         // At the node: Call::decode, Dispatcher::relay, and Outcome::encode.
//!         let answer = self.0.request(&topic, call.encode_header(), call.body).await;
//!         let [message, closing] = answer.map_err(lost)?;
//!         let outcome = Outcome::decode(closing).map_err(|error| lost(error.to_string()))?;
//!         Ok(if outcome.is_ok() { Replies::unary(message, outcome) } else { Replies::outcome(outcome) })
//!     }
//! }
//! ```
//!
//! `conformance` (feature `testing`) tests such a relay. [`RelayService`] and [`ServiceRelay`] put layers of tower around one.
//!
//! # One execution an operation
//!
//! A sidecar that gives up and asks again does not make the driver do its work twice at once: a [`Dispatcher`] knows
//! the [`operation`](dispatcher::operation) of each call. A [`Fence`] keeps stale copies of calls from beginning; a [`TermStore`] keeps the
//! part of it that outlives the process.
//!
//! # A socket for kubelet
//!
//! Before a driver on its own host an endpoint relays Node calls too. Calls join each other over it and over everything else that
//! has the same dispatcher; [`TopologyRelay`] says where the node is for drivers that do not; [`monitor`] names the rules of the
//! spec that whoever calls has broken.
//!
//! ```
//! use csi_proxy::monitor::{Monitored, Monitors};
//! use csi_proxy::{Dispatcher, Endpoint, EndpointSettings, NodeId, NodeSegment, Router, TopologyRelay};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let socket = format!("unix://{}/csi.sock", directory.path().display());
//! let (name, node): (_, NodeId) = ("csi-hostpath".parse()?, "edge-1".parse()?);
//! let drivers = Dispatcher::new().with_driver(name, "unix:///plugins/csi-hostpath/csi.sock".parse()?);
//! let located = TopologyRelay::new(drivers, NodeSegment::of_driver(node.clone()));
//! let relay = Monitored::new(located, Monitors::default());
//! let mut settings = EndpointSettings::default();
//! settings.relay_node_calls = true;
//! let endpoint = Endpoint::with_settings("csi-hostpath".parse()?, Router::fixed(node), relay, settings);
//! let serving = endpoint.serve(socket.parse()?).await?;
//! serving.shutdown(std::time::Duration::from_secs(30)).await;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! - `runtime` (default): everything that runs on tokio. Without it the crate is its pure core: calls, faults, outcomes, their
//!   [wire](call::wire) form, the cache of [driver info](driver_info) and the [placements](routing::Placements).
//! - `edge-transport`: `SessionRelay` and `SessionService`.
//! - `metrics`: the histogram `csi_plugin_operations_seconds`, the counter `csi_plugin_relay_faults_total`, and what there is to
//!   count of operations (`csi_plugin_operations_*`) and of broken rules
//!   (`csi_plugin_orchestrator_violations_total`), through the `metrics` facade.
//! - `redb`: what a proxy keeps ([`routing::store`]), on disk.
//! - `testing`: the conformance suites of a relay and of a store of placements, and a relay and a store that fail on purpose.
//!
//! # Bounds
//!
//! Request 8 MiB, answer message 16 MiB, metadata 8 KiB, 1024 open calls a connection and a driver, 128 connections, 15 minutes a
//! call. The open calls of a driver and the time are settings ([`Dispatcher::with_max_in_flight`], [`EndpointSettings`],
//! [`DriverSettings`]).

mod address;
pub mod call;
pub mod dispatcher;
pub mod driver_info;
#[cfg(feature = "runtime")]
mod endpoint;
mod generated;
#[cfg(feature = "runtime")]
mod grpc;
#[cfg(feature = "metrics")]
mod metrics;
pub mod monitor;
#[cfg(feature = "runtime")]
mod observe;
#[cfg(feature = "runtime")]
mod relay;
pub mod routing;

pub use csi_proto::{Delivery, DriverName};

pub use self::address::{InvalidSocketAddress, MAX_SOCKET_PATH, SocketAddress};
pub use self::call::{
    Call, CallId, CallNumber, Fault, Fence, GivenUp, MAX_METADATA, Metadata, MethodPath, NodeId, NodeSession,
    Origin, Outcome, Replies, Reply, Term,
};
#[cfg(feature = "testing")]
pub use self::dispatcher::Connector;
#[cfg(feature = "runtime")]
pub use self::dispatcher::{
    DEFAULT_MAX_IN_FLIGHT, Dispatcher, Driver, DriverSettings, MemoryTerms, TermStore, TermStoreError,
};
#[cfg(feature = "runtime")]
pub use self::endpoint::{
    DEFAULT_MAX_SOCKETS, Drained, Endpoint, EndpointSettings, NodeSocketError, NodeSockets, ServeError,
    Serving,
};
#[cfg(feature = "edge-transport")]
pub use self::relay::{CSI_SERVICE, NodeWatch, SessionRelay, SessionService};
#[cfg(feature = "runtime")]
pub use self::relay::{
    ClockTerms, DEFAULT_RECONNECT_GRACE, InvalidSegment, Missing, NodeSegment, NodeStatus, Reachability,
    Relay, RelayService, Replaced, RetryRelay, ServiceRelay, TermError, TermSource, TopologyRelay, next_term,
};
#[cfg(feature = "testing")]
pub use self::relay::{Fate, FaultyRelay, conformance};
#[cfg(feature = "runtime")]
pub use self::routing::{Router, TopologyRouter, TopologySettings};
pub use csi_proto::Code;

#[cfg(all(doctest, feature = "runtime"))]
#[doc = include_str!("../README.md")]
struct Readme;
