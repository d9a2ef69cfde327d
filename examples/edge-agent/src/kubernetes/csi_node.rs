//! `--csi-node`: reports the drivers of a node whose kubelet keeps its CSINode to itself.
//!
//! Such a kubelet is the volume plugin of its node, and writes labels, annotations and `status.volumesInUse` of the Node. Only
//! CSINode is missing, from which the scheduler and the sidecars learn the drivers of a node and the keys of their topology.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::csi::v1::NodeGetInfoResponse;
use csi_proxy::{Call, CallId, Dispatcher, MethodPath, NodeId, Relay};
use edge_transport::{Peer, ReplyEvent};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::KubernetesOptions;
use super::hub::Hub;
use super::order::StatusOrder;
use super::retries::Retries;
use crate::essential::Essential;
use crate::seed_of;
use crate::store::AgentStore;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{DriverReport, NodeDriver, StatusResult};
use edge_csi_common::process::Fatal;

const NODE_GET_INFO: &str = "/csi.v1.Node/NodeGetInfo";

/// How often a driver without an answer is asked again, how often drivers are checked for registration changes, and how often
/// all are asked whether their answers are the same.
const ASK_AGAIN: Duration = Duration::from_secs(1);
const CHECK: Duration = Duration::from_secs(10);
const ASK_ALL: Duration = Duration::from_secs(60);

/// Time limit for an answer of a driver.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// The report of the node's drivers; [`start`](Self::start) sends it.
pub(crate) struct CsiNodeReport {
    hub: Hub,
    order: StatusOrder,
}

/// The drivers of the node, as they answer.
pub(crate) struct NodeDrivers {
    pub(crate) node: NodeId,
    pub(crate) dispatcher: Dispatcher,
    /// The relay to the drivers that adds the node's topology, so that CSINode has what the kubelet sees.
    pub(crate) relay: Arc<dyn Relay>,
}

impl CsiNodeReport {
    /// Opens the report. Returns `None` without `--csi-node` or a store.
    pub(crate) fn open(
        options: &KubernetesOptions,
        store: Option<&AgentStore>,
    ) -> Result<Option<Self>, Fatal> {
        let Some(store) = store.filter(|_| options.csi_node) else { return Ok(None) };
        let order = StatusOrder::open(store.starts.clone()).map_err(Fatal::runtime)?;
        let hub = Hub::new().map_err(Fatal::runtime)?;
        Ok(Some(Self { hub, order }))
    }

    /// Starts the tasks that ask the drivers, and report them.
    pub(crate) fn start(self, peer: Peer, drivers: NodeDrivers, tasks: &mut Essential) {
        let seed = seed_of(peer.name().as_str());
        self.hub.set_peer(peer);
        let (found, latest) = watch::channel(None);
        tasks.spawn("the check of the node's drivers", drivers.watch(found));
        tasks.spawn("the report of the node's drivers", report(self.hub, self.order, latest, seed));
    }
}

impl NodeDrivers {
    /// Asks the drivers, and sends each difference to `found`, the first time once all have answered or were asked for
    /// [`CHECK`]: a report without a driver removes it from CSINode.
    async fn watch(self, found: watch::Sender<Option<Vec<NodeDriver>>>) {
        let mut known: BTreeMap<DriverName, NodeDriver> = BTreeMap::new();
        let mut ask_all: Option<Instant> = None;
        let hold = Instant::now() + CHECK;
        loop {
            let now = Instant::now();
            let is_due = ask_all.is_none_or(|at| now >= at);
            if is_due {
                ask_all = Some(now + ASK_ALL);
            }
            let names = self.dispatcher.drivers();
            known.retain(|name, _| names.contains(name));
            for name in &names {
                if (is_due || !known.contains_key(name))
                    && let Some(driver) = self.ask(name).await
                {
                    // The last answer of a driver that restarts stays.
                    known.insert(name.clone(), driver);
                }
            }
            let all_answered = known.len() == names.len();
            if (all_answered && !names.is_empty()) || Instant::now() >= hold {
                let drivers: Vec<_> = known.values().cloned().collect();
                found.send_if_modified(|before| {
                    let is_new = before.as_ref() != Some(&drivers);
                    *before = Some(drivers);
                    is_new
                });
            }
            sleep_until(Instant::now() + if all_answered { CHECK } else { ASK_AGAIN }).await;
        }
    }

    /// Asks a driver. `None` if it does not answer, or does not name the node.
    async fn ask(&self, name: &DriverName) -> Option<NodeDriver> {
        let method = MethodPath::new(NODE_GET_INFO).ok()?;
        let call = Call::new(CallId::new(), self.node.clone(), name.clone(), method, Bytes::new())
            .with_remaining(ANSWER_TIMEOUT);
        let (messages, outcome) = self.relay.relay(call).await.ok()?.collect().await;
        let info = NodeGetInfoResponse::decode(messages.first()?.clone()).ok()?;
        (outcome.is_ok() && !info.node_id.is_empty()).then(|| NodeDriver {
            name: name.to_string(),
            node_id: info.node_id,
            segments: info.accessible_topology.unwrap_or_default().segments.into_iter().collect(),
            max_volumes: u64::try_from(info.max_volumes_per_node).unwrap_or_default(),
            ready: true,
        })
    }
}

/// Reports the latest drivers to each hub that is connected, and keeps the call open, with which the hub remembers them. Ends
/// when the sender is dropped.
async fn report(
    hub: Hub,
    mut order: StatusOrder,
    mut latest: watch::Receiver<Option<Vec<NodeDriver>>>,
    seed: u64,
) {
    let mut retries = Retries::new("the hub has not written the CSINode of this node", seed);
    let mut number = 0;
    loop {
        let Some(drivers) = latest.borrow_and_update().clone() else {
            match latest.changed().await {
                Ok(()) => continue,
                Err(_) => return,
            }
        };
        hub.connected().await;
        number += 1;
        let report = DriverReport { drivers, number: Some(order.number(number)) };
        let failure = tokio::select! {
            failure = keep(&hub, report, &mut order, &mut retries) => failure,
            changed = latest.changed() => match changed {
                Ok(()) => {
                    // The hub may not have answered.
                    order.lost();
                    continue;
                }
                Err(_) => return,
            },
        };
        tokio::time::sleep(retries.failed(&failure)).await;
    }
}

/// Makes one report, and waits until the hub ends the call. Returns why.
async fn keep(hub: &Hub, report: DriverReport, order: &mut StatusOrder, retries: &mut Retries) -> String {
    let mut replies = match hub.open(Kind::Drivers(report)).await {
        Ok(replies) => replies,
        Err(error) => {
            if error.may_be_received() {
                order.lost();
            }
            return error.to_string();
        }
    };
    loop {
        let result = match replies.next().await {
            Some(Ok(ReplyEvent::Message(bytes))) => StatusResult::decode(bytes),
            Some(Ok(_)) | None => return "the hub has ended the call".to_owned(),
            Some(Err(failure)) => {
                order.lost();
                return failure.to_string();
            }
        };
        let result: StatusResult = match result {
            Ok(result) => result,
            Err(error) => return error.to_string(),
        };
        order.answered(&result).await;
        if !result.failure.is_empty() {
            return result.failure;
        }
        retries.succeeded();
        tracing::info!("the hub has written the CSINode of this node");
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::csi::v1::Topology;
    use csi_proxy::{Driver, Fault, Outcome, Replies, SocketAddress};

    use super::*;

    /// Drivers that answer, but for the one of this name.
    struct Drivers(watch::Receiver<&'static str>);

    #[async_trait::async_trait]
    impl Relay for Drivers {
        async fn relay(&self, call: Call) -> Result<Replies, Fault> {
            if call.driver.as_str() == *self.0.borrow() {
                return Err(Fault::Draining { what: "the driver".to_owned() });
            }
            let segments = [("topology.example/node".to_owned(), call.node.to_string())].into();
            let info = NodeGetInfoResponse {
                node_id: format!("id-{}", call.driver),
                max_volumes_per_node: 7,
                accessible_topology: Some(Topology { segments }),
            };
            Ok(Replies::unary(info.encode_to_vec(), Outcome::ok()))
        }
    }

    fn names(drivers: Option<&Vec<NodeDriver>>) -> Option<Vec<&str>> {
        drivers.map(|drivers| drivers.iter().map(|driver| driver.name.as_str()).collect())
    }

    /// A driver that is slow to start is waited for, since a report without it removes its entry. One that has answered stays
    /// while it is silent, and leaves the report when it deregisters.
    #[tokio::test(start_paused = true)]
    async fn reports_drivers_that_answer_until_they_deregister() {
        let (silence, silent) = watch::channel("b.example");
        let dispatcher = Dispatcher::new();
        for name in ["a.example", "b.example"] {
            let socket = SocketAddress::new(format!("unix:///{name}.sock")).unwrap();
            dispatcher.register(Driver::new(DriverName::new(name).unwrap(), socket));
        }
        let drivers = NodeDrivers {
            node: NodeId::new("edge-1").unwrap(),
            dispatcher: dispatcher.clone(),
            relay: Arc::new(Drivers(silent)),
        };
        let begun = Instant::now();
        let (found, mut latest) = watch::channel(None);
        let task = tokio::spawn(drivers.watch(found));
        assert!(latest.borrow().is_none());
        silence.send_replace("");
        latest.changed().await.unwrap();
        assert!(begun.elapsed() < CHECK, "{:?}", begun.elapsed());
        let drivers = latest.borrow_and_update().clone().unwrap();
        assert_eq!(names(Some(&drivers)), Some(vec!["a.example", "b.example"]));
        assert_eq!((drivers[0].node_id.as_str(), drivers[0].max_volumes), ("id-a.example", 7));
        assert_eq!(drivers[0].segments["topology.example/node"], "edge-1");

        silence.send_replace("b.example");
        tokio::time::sleep(2 * ASK_ALL).await;
        assert!(!latest.has_changed().unwrap());

        dispatcher.unregister(&DriverName::new("b.example").unwrap());
        latest.changed().await.unwrap();
        assert_eq!(names(latest.borrow_and_update().as_ref()), Some(vec!["a.example"]));
        task.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn silent_driver_delays_the_first_report_for_a_bound() {
        let (_silence, silent) = watch::channel("a.example");
        let dispatcher = Dispatcher::new();
        let socket = SocketAddress::new("unix:///a.sock").unwrap();
        dispatcher.register(Driver::new(DriverName::new("a.example").unwrap(), socket));
        let node = NodeId::new("edge-1").unwrap();
        let drivers = NodeDrivers { node, dispatcher, relay: Arc::new(Drivers(silent)) };
        let begun = Instant::now();
        let (found, mut latest) = watch::channel(None);
        let task = tokio::spawn(drivers.watch(found));
        latest.changed().await.unwrap();
        assert_eq!(names(latest.borrow_and_update().as_ref()), Some(vec![]));
        assert!(begun.elapsed() >= CHECK && begun.elapsed() < CHECK + 2 * ASK_AGAIN, "{:?}", begun.elapsed());
        task.abort();
    }
}
