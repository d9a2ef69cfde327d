//! A relay over a message bus of your own, which only has to carry byte strings.
//!
//! Cloud side: [`request`] encodes a call, [`replies`] decodes its answer. Node side: [`serve`] decodes a call, passes it to
//! the dispatcher, watches for the caller's leaving, and encodes each part of the answer. The rest is input and output:
//!
//! ```
//! use std::collections::HashMap;
//! use std::sync::{Arc, Mutex};
//!
//! use bytes::Bytes;
//! use csi_proxy::{Call, CallId, Fault, Relay, Replies, bus, conformance};
//! use futures_util::StreamExt;
//! use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
//! use tokio_stream::wrappers::UnboundedReceiverStream;
//!
//! /// Replaces the client of your bus: topics, and payloads with a topic for their answer.
//! #[derive(Clone, Default)]
//! struct Client(Arc<Mutex<HashMap<String, UnboundedSender<(String, Bytes)>>>>);
//!
//! impl Client {
//!     fn subscribe(&self, topic: &str) -> UnboundedReceiver<(String, Bytes)> {
//!         let (sender, payloads) = unbounded_channel();
//!         self.0.lock().unwrap().insert(topic.to_owned(), sender);
//!         payloads
//!     }
//!
//!     fn topic(&self, topic: &str) -> Option<UnboundedSender<(String, Bytes)>> {
//!         self.0.lock().unwrap().get(topic).cloned()
//!     }
//! }
//!
//! /// The cloud side.
//! struct BusRelay(Client);
//!
//! #[async_trait::async_trait]
//! impl Relay for BusRelay {
//!     async fn relay(&self, call: Call) -> Result<Replies, Fault> {
//!         let inbox = format!("csi/answers/{}", CallId::new());
//!         let parts = UnboundedReceiverStream::new(self.0.subscribe(&inbox));
//!         let Some(node) = self.0.topic(&format!("csi/{}", call.node)) else {
//!             return Err(Fault::NodeOffline { node: call.node });
//!         };
//!         let lost = |_| Fault::LinkLost { reason: "the bus has closed".to_owned() };
//!         node.send((inbox, bus::request(&call)?)).map_err(lost)?;
//!         // Dropped when the caller leaves: then the node notices that nothing receives from the inbox.
//!         bus::replies(parts.map(|(_, part)| Ok(part)), || ()).await
//!     }
//! }
//!
//! /// The node side; `dispatcher` is usually a `Dispatcher`.
//! async fn serve(client: Client, node: &str, dispatcher: Arc<dyn Relay>) {
//!     let mut requests = client.subscribe(&format!("csi/{node}"));
//!     while let Some((inbox, request)) = requests.recv().await {
//!         let (client, dispatcher) = (client.clone(), Arc::clone(&dispatcher));
//!         tokio::spawn(async move {
//!             let Some(caller) = client.topic(&inbox) else { return };
//!             let send = |part| std::future::ready(caller.send((String::new(), part)));
//!             // Fails only if the caller has left.
//!             let _ = bus::serve(&*dispatcher, request, caller.closed(), send).await;
//!         });
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), conformance::Violation> {
//! conformance::check(async |far| {
//!     let client = Client::default();
//!     tokio::spawn(serve(client.clone(), conformance::NODE, far));
//!     tokio::task::yield_now().await;
//!     BusRelay(client)
//! })
//! .await
//! # }
//! ```
//!
//! A payload is a protobuf message of `proto/edge/csi/v1/call.proto`, so that a side may be written in another language. A
//! request has at most [`MAX_REQUEST`] bytes of body, and a message of an answer at most [`MAX_MESSAGE`]; a header, a
//! fence and a closing add less than [`MAX_OVERHEAD`]. The payloads of one answer must arrive in order. The bus may
//! deliver a request or a part of an answer again: the dispatcher begins a call once, and [`replies`] reads each part of
//! one answer once.
//!
//! **Each client that may publish to a node's topic commands its drivers**, and each one that may subscribe to it reads
//! the secrets of the calls. The permissions of the bus are the only protection; [`serve`] refuses only the Node calls
//! that mount and unmount.

mod near;
mod node;

pub use self::near::{replies, request};
pub use self::node::serve;

/// The maximum size of the body of a request in bytes.
pub const MAX_REQUEST: usize = 8 << 20;

/// The maximum size of a message of an answer in bytes.
pub const MAX_MESSAGE: usize = 16 << 20;

/// The maximum size that a header or a closing adds to a payload, in bytes.
pub const MAX_OVERHEAD: usize = 64 << 10;

/// The maximum size of a closing in bytes.
const MAX_CLOSING: usize = 48 << 10;
