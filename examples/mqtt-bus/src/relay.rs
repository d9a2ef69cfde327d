//! The two sides of the relay, with streams, the leaving of callers, nodes that leave, and a broker that restarts.
//!
//! | Topic | Message |
//! |---|---|
//! | `csi/NODE` | a call, with the response topic and the correlation data of MQTT 5 |
//! | `answer/NODE/PROXY` | a part of an answer, with the correlation data of its call |
//! | `csi/NODE/left` | the correlation data of a call whose caller has left |
//! | `csi/NODE/here` | retained while the node is connected; its last will removes it |
//!
//! All messages have QoS 0. While a connection lasts, TCP delivers them once and in order. QoS 1 would send a call again
//! after a loss, when its caller has given it up. A loss is reported in any case: by the client for the own connection, by
//! the last will for the node's.
//!
//! Each client that may publish on `csi/NODE` commands the drivers of that node: `mosquitto.acl` of this example has
//! permissions.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::{Call, CallId, Fault, NodeId, Relay, Replies, bus};
use futures_util::{StreamExt as _, stream};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Filter, LastWill, Publish, PublishProperties};
use rumqttc::v5::{AsyncClient, EventLoop};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::broker::{self, Broker, Change};

/// Messages that wait for the connection, before senders wait.
const QUEUE: usize = 64;

/// How many parts a stream may be ahead of its caller; QoS 0 has no flow control. A stream that is further ahead ends with
/// [`Fault::LinkLost`].
const AHEAD: usize = 1024;

const ONCE: QoS = QoS::AtMostOnce;

fn requests(node: &NodeId) -> String {
    format!("csi/{node}")
}

fn lost(reason: impl ToString) -> Fault {
    Fault::LinkLost { reason: reason.to_string() }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn subscription(topics: [String; 2]) -> [Filter; 2] {
    topics.map(|topic| Filter::new(topic, ONCE))
}

/// The side of the sidecars.
#[derive(Debug, Clone)]
pub struct MqttRelay {
    broker: Broker,
    client: AsyncClient,
    /// The end of all topics for answers to this relay.
    inbox: String,
    state: Arc<Mutex<State>>,
    /// Ends with the last clone.
    _connection: Arc<AbortOnDropHandle<()>>,
}

type Part = Result<Bytes, Fault>;

#[derive(Debug, Default)]
struct State {
    /// Why there is no connection.
    lost: Option<String>,
    /// The topics of the connected nodes.
    nodes: HashSet<String>,
    /// By correlation data.
    callers: HashMap<Bytes, Caller>,
}

#[derive(Debug)]
struct Caller {
    node: String,
    answers: String,
    parts: mpsc::Sender<Part>,
}

impl MqttRelay {
    /// Connects to a broker, as soon as it is there, with one subscription for all answers. Must be called on a runtime.
    #[must_use]
    pub fn new(broker: Broker) -> Self {
        let inbox = CallId::new().to_string();
        let (client, events) = AsyncClient::new(broker.options(format!("csi-proxy-{inbox}")), QUEUE);
        let lost = Some("not connected yet".to_owned());
        let state = Arc::new(Mutex::new(State { lost, ..State::default() }));
        let topics = [format!("answer/+/{inbox}"), "csi/+/here".to_owned()];
        let connection = tokio::spawn(route(events, client.clone(), topics, Arc::clone(&state)));
        Self { broker, client, inbox, state, _connection: Arc::new(AbortOnDropHandle::new(connection)) }
    }
}

/// Passes each part to its caller.
async fn route(mut events: EventLoop, client: AsyncClient, topics: [String; 2], state: Arc<Mutex<State>>) {
    loop {
        match broker::next(&mut events).await {
            Change::Connected => {
                let (client, filters) = (client.clone(), subscription(topics.clone()));
                // Not here: the queue is read by this task only.
                tokio::spawn(async move { client.subscribe_many(filters).await });
                lock(&state).lost = None;
            }
            Change::Lost(reason) => {
                lock(&state).disconnected(reason);
                broker::pause().await;
            }
            Change::Message(message) => lock(&state).receive(message),
        }
    }
}

impl State {
    fn disconnected(&mut self, reason: String) {
        self.nodes.clear();
        for (_, caller) in self.callers.drain() {
            let _ = caller.parts.try_send(Err(lost("the connection to the broker was lost")));
        }
        self.lost = Some(reason);
    }

    fn receive(&mut self, message: Publish) {
        let Ok(topic) = std::str::from_utf8(&message.topic) else { return };
        match topic.strip_suffix("/here") {
            Some(node) if message.payload.is_empty() => {
                self.nodes.remove(node);
                for (_, caller) in self.callers.extract_if(|_, caller| caller.node == node) {
                    let _ =
                        caller.parts.try_send(Err(lost("the node has lost its connection to the broker")));
                }
            }
            Some(node) => drop(self.nodes.insert(node.to_owned())),
            None => {
                let id = message.properties.and_then(|properties| properties.correlation_data);
                let Some((id, caller)) = id.and_then(|id| self.callers.get_key_value(&id)) else { return };
                // The permissions of a node end at the topics with its own name.
                if caller.answers == topic && caller.parts.try_send(Ok(message.payload)).is_err() {
                    let id = id.clone();
                    self.callers.remove(&id);
                }
            }
        }
    }
}

/// Removes a caller when its answer is dropped.
struct Waiting(Arc<Mutex<State>>, Bytes);

impl Drop for Waiting {
    fn drop(&mut self) {
        lock(&self.0).callers.remove(&self.1);
    }
}

#[async_trait]
impl Relay for MqttRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let (node, answers) = (requests(&call.node), format!("answer/{}/{}", call.node, self.inbox));
        let request = self.broker.seal.seal(&node, bus::request(&call)?).map_err(lost)?;
        // One for each attempt: copies of a call have the same id.
        let id = Bytes::copy_from_slice(CallId::new().as_bytes());
        let (sender, parts) = mpsc::channel(AHEAD);
        {
            let mut state = lock(&self.state);
            if let Some(reason) = &state.lost {
                return Err(Fault::HubUnreachable { reason: reason.clone() });
            }
            if !state.nodes.contains(&node) {
                return Err(Fault::NodeOffline { node: call.node });
            }
            let caller = Caller { node: node.clone(), answers: answers.clone(), parts: sender };
            state.callers.insert(id.clone(), caller);
        }
        let waiting = Waiting(Arc::clone(&self.state), id.clone());
        let properties = PublishProperties {
            response_topic: Some(answers.clone()),
            correlation_data: Some(id.clone()),
            ..PublishProperties::default()
        };
        let client = self.client.clone();
        client.publish_with_properties(&node, ONCE, false, request, properties).await.map_err(lost)?;
        let seal = Arc::clone(&self.broker.seal);
        let parts = stream::unfold((parts, waiting), |(mut parts, waiting)| async move {
            Some((parts.recv().await?, (parts, waiting)))
        });
        let parts = parts.map(move |part: Part| seal.open(&answers, part?).map_err(lost));
        let runtime = Handle::current();
        let left = move || {
            runtime.spawn(async move { client.publish(format!("{node}/left"), ONCE, false, id).await });
        };
        bus::replies(parts, left).await
    }
}

/// The side of the node: answers the calls to it, until the future is dropped.
pub async fn serve<R>(broker: &Broker, node: &NodeId, dispatcher: R)
where
    R: Relay + Clone + 'static,
{
    let topic = requests(node);
    let (here, leaving) = (format!("{topic}/here"), format!("{topic}/left"));
    let mut options = broker.options(format!("csi-{node}"));
    // An empty retained message removes the one that is there.
    options.set_last_will(LastWill::new(&here, "", ONCE, true, None));
    let (client, mut events) = AsyncClient::new(options, QUEUE);
    // By correlation data. Dropping the sender is the leaving of the caller.
    let callers: Arc<Mutex<HashMap<Bytes, oneshot::Sender<()>>>> = Arc::default();
    loop {
        match broker::next(&mut events).await {
            Change::Connected => {
                let (client, here) = (client.clone(), here.clone());
                let filters = subscription([topic.clone(), leaving.clone()]);
                tokio::spawn(async move {
                    client.subscribe_many(filters).await?;
                    client.publish(here, ONCE, true, "1").await
                });
            }
            // The callers get the last will.
            Change::Lost(_) => {
                lock(&callers).clear();
                broker::pause().await;
            }
            Change::Message(message) if message.topic == leaving => {
                lock(&callers).remove(&message.payload);
            }
            Change::Message(Publish { payload, properties, .. }) => {
                let Some(PublishProperties { response_topic: Some(to), correlation_data: Some(id), .. }) =
                    properties
                else {
                    continue;
                };
                let Ok(request) = broker.seal.open(&topic, payload) else { continue };
                let (caller, left) = oneshot::channel();
                lock(&callers).insert(id.clone(), caller);
                let (client, dispatcher) = (client.clone(), dispatcher.clone());
                let (callers, seal) = (Arc::clone(&callers), Arc::clone(&broker.seal));
                tokio::spawn(async move {
                    let left = async { drop(left.await) };
                    let send = |part| {
                        let (client, to, sealed) = (&client, to.clone(), seal.seal(&to, part));
                        let correlation_data = Some(id.clone());
                        let properties =
                            PublishProperties { correlation_data, ..PublishProperties::default() };
                        async move {
                            let part = sealed.map_err(lost)?;
                            client
                                .publish_with_properties(to, ONCE, false, part, properties)
                                .await
                                .map_err(lost)
                        }
                    };
                    // Fails only if the client has ended.
                    let _ = bus::serve(&dispatcher, request, left, send).await;
                    lock(&callers).remove(&id);
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_answer_counts_only_from_the_node_that_was_called() {
        let (mut state, id) = (State::default(), Bytes::from_static(b"id"));
        let (sender, mut parts) = mpsc::channel(AHEAD);
        let (node, answers) = ("csi/a".to_owned(), "answer/a/x".to_owned());
        state.callers.insert(id.clone(), Caller { node, answers, parts: sender });
        for topic in ["answer/b/x", "answer/a/x"] {
            let correlation_data = Some(id.clone());
            let properties = PublishProperties { correlation_data, ..PublishProperties::default() };
            state.receive(Publish::new(topic, ONCE, topic, Some(properties)));
        }
        assert_eq!(parts.try_recv().unwrap(), Ok(Bytes::from_static(b"answer/a/x")));
        assert!(parts.try_recv().is_err());
    }

    #[test]
    fn a_lost_broker_ends_all_calls_and_a_lost_node_its_own() {
        let mut state = State::default();
        let call = |state: &mut State, node: &str| {
            let (parts, receiver) = mpsc::channel(AHEAD);
            let caller = Caller { node: node.to_owned(), answers: String::new(), parts };
            state.callers.insert(node.to_owned().into(), caller);
            state.receive(Publish::new(format!("{node}/here"), ONCE, "1", None));
            receiver
        };
        let [mut a, mut b] = ["csi/a", "csi/b"].map(|node| call(&mut state, node));
        state.receive(Publish::new("csi/a/here", ONCE, "", None));
        assert!(matches!(a.try_recv(), Ok(Err(Fault::LinkLost { .. }))) && b.is_empty());
        assert_eq!(state.nodes, HashSet::from(["csi/b".to_owned()]));
        state.disconnected("cut".to_owned());
        assert!(matches!(b.try_recv(), Ok(Err(Fault::LinkLost { .. }))) && state.nodes.is_empty());
    }
}
