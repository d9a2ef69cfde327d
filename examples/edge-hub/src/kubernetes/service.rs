//! The hub's service `kubernetes`, which answers the requests of nodes.

use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use edge_transport::{PeerId, Reason, ReplySender, Service};
use kube::Client;
use prost::Message;
use tokio::time::MissedTickBehavior;

use super::events::{self, Events, PodName};
use super::node_feed::{NodeFeed, SHUTTING_DOWN, Subscriber};
use super::node_name::NodeName;
use super::node_statuses::{NodeStatuses, Scope};
use super::report::{self, ReportFailure};
use super::request_limits::{RequestLimits, RequestPermit};
use super::secret::{self, FetchFailure};
use super::status::StatusCounts;
use super::warn_limits::WarnLimits;
use edge_csi_common::kubernetes::message::request::Kind;
use edge_csi_common::kubernetes::message::{
    DriverReport, Fetched, NodeDriver, NodeStatus, Request, SecretAnswer, StatusResult, TokenAnswer, Watch,
};

/// The interval at which a watch without changes checks that its node is still connected.
const ABANDONED_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Answers the requests of each node about the node itself.
#[derive(Clone)]
pub(super) struct NodeService {
    pub(super) client: Client,
    pub(super) feed: NodeFeed,
    pub(super) limits: RequestLimits,
    pub(super) counts: StatusCounts,
    pub(super) statuses: NodeStatuses,
    pub(super) events: Events,
    pub(super) warnings: WarnLimits,
}

#[async_trait]
impl Service for NodeService {
    async fn call(&self, source: PeerId, request: edge_transport::Request, replies: ReplySender) {
        // In a task of its own, since a large answer must not delay other nodes.
        tokio::spawn(self.clone().answer(source, request.body, replies));
    }
}

impl NodeService {
    async fn answer(self, source: PeerId, request: Bytes, replies: ReplySender) {
        let node = match NodeName::new(source.as_str()) {
            Ok(node) => node,
            Err(cause) => {
                if self.warnings.permits("name", None, Instant::now()) {
                    tracing::warn!(from = %source, %cause, "refused a request: the peer's name is not a Node name");
                }
                return fail(replies, Reason::Forbidden, cause.to_string()).await;
            }
        };
        let kind = match Request::decode(request) {
            Ok(Request { request: Some(kind) }) => kind,
            Ok(Request { request: None }) => {
                return fail(
                    replies,
                    Reason::Protocol,
                    "unknown kind of request; the hub may be older than the node",
                )
                .await;
            }
            Err(cause) => {
                return fail(replies, Reason::Protocol, format!("cannot decode the request: {cause}")).await;
            }
        };
        // A watch does not end, so it must not hold a permit.
        if let Kind::Watch(watch) = kind {
            return self.send_updates(node, watch, replies).await;
        }
        let Some(permit) = self.limits.acquire(&node) else {
            return fail(replies, Reason::Overloaded, "this node has too many open requests").await;
        };
        if let Kind::Drivers(report) = kind {
            return self.keep_csi_node(node, permit, report, replies).await;
        }
        let answer: Bytes = match kind {
            Kind::Watch(_) | Kind::Drivers(_) => return,
            Kind::Status(status) => {
                let _lock = permit.lock_status().await;
                let _api_permit = permit.api_permit().await;
                let result = self.report(&node, Scope::All, &status).await;
                self.report_events(&node, &status);
                result.encode_to_vec().into()
            }
            Kind::Secret(query) => {
                let _api_permit = permit.api_permit().await;
                let read = secret::secret(&self.client, &self.feed, &node, query).await;
                let (values, fetched, reason) = self.fetched(&node, "secret", read);
                SecretAnswer { fetched, reason, values }.encode_to_vec().into()
            }
            Kind::Token(query) => {
                let _api_permit = permit.api_permit().await;
                let made = secret::tokens(&self.client, &self.feed, &node, query).await;
                let (tokens, fetched, reason) = self.fetched(&node, "token", made);
                TokenAnswer { fetched, reason, tokens }.encode_to_vec().into()
            }
        };
        // Fails if the node has disconnected.
        let _ = replies.send_and_finish(answer, Bytes::new()).await;
    }

    /// Counts and logs the result of a fetch, and converts it to the fields of an answer.
    fn fetched<T: Default>(
        &self,
        node: &NodeName,
        kind: &'static str,
        found: Result<T, FetchFailure>,
    ) -> (T, i32, String) {
        let (value, fetched, reason) = match found {
            Ok(value) => (value, Fetched::Found, String::new()),
            Err(FetchFailure { fetched, reason }) => {
                if self.warnings.permits(kind, Some(node), Instant::now()) {
                    tracing::warn!(%node, ?fetched, "a node got no {kind}: {reason}");
                }
                (T::default(), fetched, reason)
            }
        };
        self.counts.fetched(kind, fetched);
        (value, fetched.into(), reason)
    }

    /// Writes a status, and stores it for the case that the Node is recreated.
    async fn report(&self, node: &NodeName, scope: Scope, status: &NodeStatus) -> StatusResult {
        let report::Written { volumes_in_use, all: written } =
            report::write(&self.client, &self.feed, node, scope, status).await;
        if let Err(failure) = &written
            && self.warnings.permits("status", Some(node), Instant::now())
        {
            tracing::warn!(%node, %failure, "cannot write the status of a node");
        }
        self.counts.reported(node, status, written.is_ok());
        let failure = written.as_ref().map_or_else(ToString::to_string, |_| String::new());
        let superseded = matches!(written, Err(ReportFailure::Superseded(_)));
        // A status that is out of bounds, or older than another hub's, can never be written, so it is not stored.
        if !superseded && !matches!(written, Err(ReportFailure::OutOfBounds(_))) {
            self.statuses.set(node, scope, status, written.ok());
        }
        StatusResult { failure, volumes_in_use, superseded }
    }

    /// Writes events for the failures that a node reports of its own pods.
    fn report_events(&self, node: &NodeName, status: &NodeStatus) {
        let pods = self.feed.read(|core| core.pods_of(node));
        let own = pods.iter().map(|pod| {
            let (uid, namespace, name) = (pod.uid.clone(), pod.namespace.clone(), pod.name.clone());
            PodName { uid, namespace, name }
        });
        self.events.report(&self.client, node, status, &own.collect());
    }

    /// Counts ongoing failures at an interval, without end.
    pub(super) async fn repeat_events(self) {
        let mut round = tokio::time::interval(events::TICK_INTERVAL);
        round.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            round.tick().await;
            self.events.tick(&self.client, |node| self.statuses.is_connected(node));
        }
    }

    /// Handles an event of a Node. If the last status of the node was not written to this Node, writes the status.
    pub(super) async fn node_seen(&self, name: &str, uid: &str) {
        if self.statuses.missing(name, uid).is_none() {
            return;
        }
        let Some(permit) = NodeName::new(name).ok().and_then(|it| self.limits.acquire(&it)) else {
            return;
        };
        let _lock = permit.lock_status().await;
        let _api_permit = permit.api_permit().await;
        // The node may have reported its status meanwhile.
        if let Some((node, scope, mut status)) = self.statuses.missing(name, uid) {
            tracing::info!(%node, uid, "the Node is new; writing the last status of the node to it");
            // A hub that the node has left without a word may hold an older status, and write it too.
            if let Some(number) = &mut status.number {
                number.unanswered = true;
            }
            self.report(&node, scope, &status).await;
        }
    }

    /// Writes the CSINode of a node, also for a new Node of its name, until the node ends the call.
    async fn keep_csi_node(
        &self,
        node: NodeName,
        permit: RequestPermit,
        report: DriverReport,
        mut replies: ReplySender,
    ) {
        let number = self.feed.next_number();
        self.statuses.enter(&node, number);
        let DriverReport { drivers, number: order } = report;
        let status = NodeStatus { drivers, number: order, ..NodeStatus::default() };
        let result = {
            let _lock = permit.lock_status().await;
            let _api_permit = permit.api_permit().await;
            self.report(&node, Scope::CsiNode, &status).await
        };
        // The call is as long as a watch, so it must not hold a permit.
        drop(permit);
        let (answer, is_written) = (result.encode_to_vec(), result.failure.is_empty());
        if !is_written {
            // Fails if the node has disconnected. The node tries again.
            let _ = replies.send_and_finish(answer.into(), Bytes::new()).await;
        } else if replies.send(answer.into()).await.is_ok() {
            self.warn_of_settings(&node, &status);
            tokio::select! {
                () = replies.cancelled() => {}
                () = self.feed.stopped() => fail(replies, Reason::Draining, SHUTTING_DOWN).await,
            }
        }
        self.statuses.leave(&node, number);
    }

    /// Logs the settings of drivers that a kubelet which keeps its CSINode to itself does not see either.
    fn warn_of_settings(&self, node: &NodeName, status: &NodeStatus) {
        for NodeDriver { name, .. } in &status.drivers {
            let driver = self.feed.read(|core| core.driver(name));
            let settings = driver.map(|driver| report::settings_without_effect(&driver)).unwrap_or_default();
            // Drivers of a node may register one soon after the other, and only existing CSIDrivers have settings.
            let kind = format!("settings of {name}");
            if !settings.is_empty() && self.warnings.permits(&kind, Some(node), Instant::now()) {
                let settings = settings.join(", ");
                tracing::warn!(%node, driver = name, settings, "settings of the CSIDriver have no effect on a node");
            }
        }
    }

    /// Sends a node its objects until it disconnects.
    async fn send_updates(&self, node: NodeName, has: Watch, mut replies: ReplySender) {
        tracing::debug!(%node, revision = has.revision, "a node's watch has started");
        let mut subscriber = self.feed.subscribe(node, &has);
        let (node, number) = (subscriber.subscription.node.clone(), subscriber.subscription.generation);
        self.statuses.enter(&node, number);
        let ended = forward(&mut subscriber, &mut replies).await;
        self.statuses.leave(&node, number);
        tracing::debug!(%node, ?ended, "a node's watch has ended");
        if let Some(reason) = ended {
            fail(replies, Reason::Draining, reason).await;
        }
    }
}

/// Sends a node its objects until the subscription ends; returns why, unless the node has disconnected. While the node is slow,
/// changes accumulate in the core and become one.
async fn forward(subscriber: &mut Subscriber, replies: &mut ReplySender) -> Option<&'static str> {
    let mut check = tokio::time::interval(ABANDONED_CHECK_INTERVAL);
    loop {
        let next = tokio::select! {
            next = subscriber.next() => next,
            _ = check.tick() => {
                if replies.is_cancelled() {
                    return None;
                }
                continue;
            }
        };
        let parts = match next {
            Ok(parts) => parts,
            Err(ended) => return Some(ended),
        };
        for part in parts {
            let (changed, removed, revision) = (part.changed.len(), part.removed.len(), part.revision);
            tracing::debug!(node = %subscriber.subscription.node, revision, changed, removed, "sending a part of a change");
            if replies.send(part.encode_to_vec().into()).await.is_err() {
                return None;
            }
        }
    }
}

async fn fail(replies: ReplySender, reason: Reason, detail: impl Into<String> + Send) {
    // Fails if the node has disconnected.
    let _ = replies.fail(reason, detail).await;
}
