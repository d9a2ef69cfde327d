//! The two sides of the relay, with streams, the leaving of callers, and a server that restarts.
//!
//! A call is a message on `csi.NODE`, its answer messages on an inbox of the caller, and a caller that leaves publishes its
//! inbox on `csi.NODE.left`. Set `max_payload: 17MB` at the server, so that the largest answer fits. Each client that
//! may publish on `csi.NODE` commands the drivers of that node: `nats.conf` of this example has permissions.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_nats::connection::State;
use async_nats::{Client, ConnectError, ConnectOptions, Event, Message, StatusCode, SubscribeError};
use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::{Call, CallId, Fault, NodeId, Relay, Replies, bus};
use futures_util::{StreamExt as _, stream};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot, watch};

use crate::seal::Seal;

/// How many parts a stream may be ahead of its caller; NATS has no flow control. A stream that is further ahead ends
/// with [`Fault::LinkLost`].
const AHEAD: usize = 1024;

/// A connection to a NATS server, which is opened again whenever it is lost.
#[derive(Debug, Clone)]
pub struct Connection {
    client: Client,
    seal: Arc<Seal>,
    /// Changes when the connection is lost.
    losses: watch::Receiver<u64>,
}

impl Connection {
    /// Connects to a server, `host:port`; waits until it is there.
    ///
    /// # Errors
    /// If the address is not valid.
    pub async fn open(server: &str, seal: Seal) -> Result<Self, ConnectError> {
        let (lost, losses) = watch::channel(0);
        let options = ConnectOptions::new().retry_on_initial_connect().event_callback(move |event| {
            if event == Event::Disconnected {
                lost.send_modify(|losses| *losses += 1);
            }
            std::future::ready(())
        });
        Ok(Self { client: options.connect(server).await?, seal: Arc::new(seal), losses })
    }

    /// Whether the server is connected now.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        self.client.connection_state() == State::Connected
    }
}

fn subject(node: &NodeId) -> String {
    format!("csi.{node}")
}

fn lost(reason: impl ToString) -> Fault {
    Fault::LinkLost { reason: reason.to_string() }
}

type Part = Result<Bytes, Fault>;
type Callers = Arc<Mutex<HashMap<String, mpsc::Sender<Part>>>>;

/// The side of the sidecars.
#[derive(Debug, Clone)]
pub struct NatsRelay {
    connection: Connection,
    /// The beginning of all inboxes.
    inbox: String,
    callers: Callers,
}

impl NatsRelay {
    /// Creates a relay with one subscription for all answers.
    ///
    /// # Errors
    /// If the client has ended.
    pub async fn new(connection: Connection) -> Result<Self, SubscribeError> {
        let (inbox, callers) = (connection.client.new_inbox(), Callers::default());
        let answers = connection.client.subscribe(format!("{inbox}.*")).await?;
        tokio::spawn(route(answers, connection.losses.clone(), Arc::clone(&callers)));
        Ok(Self { connection, inbox, callers })
    }
}

/// Passes each part to its caller. An answer that was under way when the connection was lost may be lost too.
async fn route(mut answers: async_nats::Subscriber, mut losses: watch::Receiver<u64>, callers: Callers) {
    loop {
        let lock = || callers.lock().unwrap_or_else(PoisonError::into_inner);
        tokio::select! {
            Ok(()) = losses.changed() => {
                lock().drain().for_each(|(_, caller)| {
                    let _ = caller.try_send(Err(lost("the connection to the NATS server was lost")));
                });
            }
            message = answers.next() => {
                let Some(Message { subject, payload, status, .. }) = message else { return };
                let mut callers = lock();
                let Some(caller) = callers.get(subject.as_str()) else { continue };
                let part = match status {
                    // Nothing subscribes to the subject of the node. The call of this inbox is the caller's.
                    Some(StatusCode::NO_RESPONDERS) => Err(Fault::HubUnreachable { reason: "no responders".to_owned() }),
                    _ => Ok(payload),
                };
                if caller.try_send(part).is_err() {
                    callers.remove(subject.as_str());
                }
            }
        }
    }
}

/// Removes a caller when its answer is dropped.
struct Waiting(Callers, String);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.1);
    }
}

#[async_trait]
impl Relay for NatsRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if !self.connection.is_connected() {
            return Err(Fault::HubUnreachable { reason: "the NATS server is not connected".to_owned() });
        }
        let (client, request) = (&self.connection.client, bus::request(&call)?);
        let to = subject(&call.node);
        let request = self.connection.seal.seal(&to, request).map_err(lost)?;
        let max = client.server_info().max_payload;
        if request.len() > max {
            return Err(Fault::RequestTooLarge { found: request.len() as u64, max: max as u64 });
        }
        // One for each attempt: copies of a call have the same id.
        let inbox = format!("{}.{}", self.inbox, CallId::new());
        let (sender, parts) = mpsc::channel(AHEAD);
        self.callers.lock().unwrap_or_else(PoisonError::into_inner).insert(inbox.clone(), sender);
        let waiting = Waiting(Arc::clone(&self.callers), inbox.clone());
        client.publish_with_reply(to.clone(), inbox.clone(), request).await.map_err(lost)?;
        let (seal, topic) = (Arc::clone(&self.connection.seal), inbox.clone());
        let parts = stream::unfold((parts, waiting), |(mut parts, waiting)| async move {
            Some((parts.recv().await?, (parts, waiting)))
        });
        let parts = parts.map(move |part: Part| seal.open(&topic, part?).map_err(lost));
        let (client, runtime) = (client.clone(), Handle::current());
        let left = move || {
            let notice = Bytes::from(inbox);
            runtime.spawn(async move { client.publish(format!("{to}.left"), notice).await });
        };
        let offline = |fault| match fault {
            Fault::HubUnreachable { .. } => Fault::NodeOffline { node: call.node.clone() },
            fault => fault,
        };
        bus::replies(parts, left).await.map_err(offline)
    }
}

/// The side of the node: answers the calls to it, until the client ends.
///
/// # Errors
/// If the client has ended.
pub async fn serve<R>(connection: Connection, node: &NodeId, dispatcher: R) -> Result<(), SubscribeError>
where
    R: Relay + Clone + 'static,
{
    let (Connection { client, seal, .. }, topic) = (connection, subject(node));
    let mut requests = client.subscribe(topic.clone()).await?;
    let mut leaving = client.subscribe(format!("{topic}.left")).await?;
    // Dropping the sender is the leaving of the caller.
    let callers: Arc<Mutex<HashMap<Bytes, oneshot::Sender<()>>>> = Arc::default();
    loop {
        tokio::select! {
            Some(request) = requests.next() => {
                let (Some(inbox), Ok(request)) = (request.reply, seal.open(&topic, request.payload)) else {
                    continue;
                };
                let key = Bytes::copy_from_slice(inbox.as_bytes());
                let (caller, left) = oneshot::channel();
                callers.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), caller);
                let (client, dispatcher) = (client.clone(), dispatcher.clone());
                let (callers, seal) = (Arc::clone(&callers), Arc::clone(&seal));
                tokio::spawn(async move {
                    let left = async { drop(left.await) };
                    let send = |part| {
                        let (client, inbox, sealed) = (&client, inbox.clone(), seal.seal(&inbox, part));
                        async move { client.publish(inbox, sealed.map_err(lost)?).await.map_err(lost) }
                    };
                    // Fails only if the client has ended.
                    let _ = bus::serve(&dispatcher, request, left, send).await;
                    callers.lock().unwrap_or_else(PoisonError::into_inner).remove(&key);
                });
            }
            Some(notice) = leaving.next() => {
                callers.lock().unwrap_or_else(PoisonError::into_inner).remove(&notice.payload);
            }
            else => return Ok(()),
        }
    }
}
