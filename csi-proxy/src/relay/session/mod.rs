//! Calls over sessions of `edge_transport`: the side of the proxy, and the side of the node.
//!
//! A call is a request to the service `csi/DRIVER`, below [`CSI_SERVICE`], of the peer with the name of the node, so that
//! policies can distinguish drivers. Its metadata is the
//! [`CallHeader`](crate::wire), its body the body of the call. Each message of the answer is one message of
//! the reply, and the outcome is its closing bytes.

mod nodes;
mod retry;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use bytes::Bytes;
use csi_proto::DriverName;
use edge_transport::peer::PeerBuilder;
use edge_transport::{
    CallError, Failure, InvalidName, MAX_CLOSING, Peer, PeerId, Reason, ReplyEvent, ReplySender, ReplyStream,
    Request, Service, ServiceName, SessionId,
};
use futures_util::stream;

pub use self::nodes::NodeWatch;
use self::nodes::PeerTable;
use crate::call::text::printable;
use crate::call::{Call, Fault, NodeId, NodeSession, Outcome, Replies, Reply};
use crate::log_limit::LogLimit;
use crate::relay::refused::Refused;
use crate::relay::{Reachability, Relay, opened, until_left};

/// The name of the service of a node's peer for CSI calls. Each driver has a name below it, `csi/DRIVER`.
pub const CSI_SERVICE: &str = "csi";

/// Returns the name of the service for calls of one driver.
fn service_of(driver: &DriverName) -> Result<ServiceName, InvalidName> {
    ServiceName::new(format!("{CSI_SERVICE}/{driver}"))
}

impl TryFrom<&NodeId> for PeerId {
    type Error = InvalidName;

    fn try_from(node: &NodeId) -> Result<Self, InvalidName> {
        Self::new(node.as_str())
    }
}

impl From<SessionId> for NodeSession {
    fn from(session: SessionId) -> Self {
        let SessionId { instance, number } = session;
        Self { instance, number }
    }
}

/// The side of the proxy: sends calls to the peer with the name of the node, on the session that they are
/// addressed to, if any.
///
/// One attempt per call: wrap it in a [`RetryRelay`](crate::RetryRelay) to retry. Dropping the answer, or the future,
/// cancels the request.
#[derive(Debug, Clone)]
pub struct SessionRelay {
    hubs: Hubs,
    /// The service of the first driver: a proxy usually has only one.
    service: Arc<OnceLock<(DriverName, ServiceName)>>,
}

/// The peer of a call.
#[derive(Debug, Clone)]
enum Hubs {
    /// All calls go to one hub.
    One(Peer),
    /// A call goes to the hub at which its node is.
    OfNode(Arc<PeerTable>, Reachability),
}

impl SessionRelay {
    /// Creates a relay over the sessions of this peer, at one hub. For several hubs, see [`NodeWatch::relay`].
    #[must_use]
    pub fn new(peer: Peer) -> Self {
        Self { hubs: Hubs::One(peer), service: Arc::default() }
    }

    fn at_hub_of_node(peers: Arc<PeerTable>, reachability: Reachability) -> Self {
        Self { hubs: Hubs::OfNode(peers, reachability), service: Arc::default() }
    }

    /// The peer at the hub to which the node of this call is connected.
    fn peer_of(&self, call: &Call) -> Result<Peer, Fault> {
        match &self.hubs {
            Hubs::One(peer) => Ok(peer.clone()),
            Hubs::OfNode(peers, reachability) => {
                let hub = reachability.hub_of(&call.node, call.session);
                hub.and_then(|hub| peers.get(hub)).ok_or_else(|| match call.session {
                    Some(_) => Fault::WrongSession { node: call.node.clone() },
                    None => Fault::NodeOffline { node: call.node.clone() },
                })
            }
        }
    }

    fn service_of(&self, driver: &DriverName) -> Result<ServiceName, InvalidName> {
        match self.service.get() {
            Some((known, service)) if known == driver => Ok(service.clone()),
            Some(_) => service_of(driver),
            None => {
                let service = service_of(driver)?;
                // Another call may have been the first.
                let _ = self.service.set((driver.clone(), service.clone()));
                Ok(service)
            }
        }
    }
}

#[async_trait]
impl Relay for SessionRelay {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let context = CallContext::of(&call);
        let name = |error: InvalidName| Fault::Protocol { reason: error.to_string() };
        let target = PeerId::try_from(&call.node).map_err(name)?;
        let service = self.service_of(&call.driver).map_err(name)?;
        let session = call.session.map(|NodeSession { instance, number }| SessionId { instance, number });
        let request = Request::new(service, call.body.clone())
            .metadata(call.encode_header())
            .remaining(call.remaining)
            .to_session(session);
        let answer =
            self.peer_of(&call)?.call(target, request).await.map_err(|error| context.not_sent(error))?;
        opened(stream::unfold((answer, context), |(mut answer, context)| async move {
            Some((next(&mut answer, &context).await, (answer, context)))
        }))
        .await
    }
}

/// The parts of a call that its faults report.
#[derive(Debug, Clone)]
struct CallContext {
    node: NodeId,
    driver: DriverName,
    remaining: Option<Duration>,
}

impl CallContext {
    fn of(call: &Call) -> Self {
        Self { node: call.node.clone(), driver: call.driver.clone(), remaining: call.remaining }
    }

    fn not_sent(&self, error: CallError) -> Fault {
        match error {
            CallError::TooLarge { found, max } => {
                Fault::RequestTooLarge { found: found as u64, max: max as u64 }
            }
            CallError::Deadline => self.late(),
            CallError::Draining { reason } => Fault::Draining { what: format!("the session ({reason})") },
            CallError::Closed => Fault::Draining { what: "the session".to_owned() },
            CallError::NotConnected { last_error, .. } => {
                Fault::HubUnreachable { reason: last_error.unwrap_or_else(|| "not connected yet".to_owned()) }
            }
            // The fence has more ranges than fit, since many calls are open.
            CallError::MetadataTooLarge { max, .. } => {
                Fault::Overloaded { what: "the header of the call".to_owned(), max: max as u64 }
            }
            other => Fault::Protocol { reason: other.to_string() },
        }
    }

    fn failed(&self, failure: &Failure) -> Fault {
        let detail = || printable(failure.detail());
        match failure.reason() {
            Reason::PeerOffline => Fault::NodeOffline { node: self.node.clone() },
            Reason::WrongSession => Fault::WrongSession { node: self.node.clone() },
            Reason::NoSuchService => Fault::DriverNotRegistered { driver: self.driver.clone() },
            Reason::LinkLost => Fault::LinkLost { reason: detail() },
            Reason::Draining => Fault::Draining { what: detail() },
            Reason::Deadline => self.late(),
            // The request or the answer was too large, so the fault does not prove that nothing was sent.
            Reason::TooLarge => Fault::FrameTooLarge { reason: detail() },
            Reason::Overloaded => Fault::Overloaded { what: detail(), max: 0 },
            Reason::Forbidden => Fault::Forbidden { reason: detail() },
            Reason::ServiceLost => Fault::ServiceLost { what: "the node's dispatcher".to_owned() },
            _ => Fault::Protocol { reason: printable(&failure.to_string()) },
        }
    }

    fn late(&self) -> Fault {
        Fault::Deadline { waited: self.remaining.unwrap_or_default() }
    }
}

async fn next(answer: &mut ReplyStream, context: &CallContext) -> Reply {
    let lost = || Fault::ServiceLost { what: "the session".to_owned() };
    Reply::End(match answer.next().await {
        Some(Ok(ReplyEvent::Message(message))) => return Reply::Message(message),
        Some(Ok(ReplyEvent::Finished(closing))) => Outcome::decode(closing).unwrap_or_else(|error| {
            Fault::Protocol { reason: format!("invalid closing bytes of an answer: {error}") }.into()
        }),
        Some(Err(failure)) => context.failed(&failure).into(),
        Some(Ok(_)) => {
            Fault::Protocol { reason: "unknown part of an answer; expected a message or its end".to_owned() }
                .into()
        }
        None => lost().into(),
    })
}

/// Serves CSI calls at a peer. Implemented for the builder of a peer.
pub trait ServeCsi: Sized {
    /// Passes the calls of other peers to a relay, usually a [`Dispatcher`](crate::Dispatcher), as the service
    /// [`CSI_SERVICE`]. Replaces an earlier one.
    ///
    /// A call whose caller leaves before it begins does not begin; one that has begun runs on, as the relay decides. The
    /// answer is dropped, as of a stream.
    ///
    /// Refuses every method that must not come from another host, with [`Fault::Forbidden`], or `UNIMPLEMENTED` if its
    /// service is not CSI's (see [`MethodPath::is_remote`](crate::MethodPath::is_remote)), and a call for another driver
    /// than the one that the request's service names, which the policies of hub and peer have checked. Refusals are
    /// counted (`csi_plugin_refused_calls_total`) and logged, at most once in 10 s.
    ///
    /// ```no_run
    /// use csi_proxy::{Dispatcher, ServeCsi};
    /// use edge_transport::link::DialOptions;
    /// use edge_transport::{Peer, PeerId};
    ///
    /// # async fn serve() -> Result<(), Box<dyn std::error::Error>> {
    /// let socket = "unix:///plugins/csi-hostpath/csi.sock".parse()?;
    /// let drivers = Dispatcher::new().with_driver("csi-hostpath".parse()?, socket);
    /// let node = Peer::builder(PeerId::new("edge-1")?)
    ///     .dial("unix:///run/edge-csi/hub.sock".parse()?, DialOptions::default())?
    ///     .serve_csi(drivers)
    ///     .start()?;
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    fn serve_csi(self, relay: impl Relay + 'static) -> Self;

    /// Like [`Self::serve_csi`], and accepts every method, for simulations in which a session replaces a socket on the
    /// node.
    #[cfg(feature = "testing")]
    #[must_use]
    fn serve_csi_with_node_calls(self, relay: impl Relay + 'static) -> Self;
}

impl ServeCsi for PeerBuilder {
    fn serve_csi(self, relay: impl Relay + 'static) -> Self {
        serve(self, relay, false)
    }

    #[cfg(feature = "testing")]
    fn serve_csi_with_node_calls(self, relay: impl Relay + 'static) -> Self {
        serve(self, relay, true)
    }
}

fn serve(builder: PeerBuilder, relay: impl Relay + 'static, node_calls: bool) -> PeerBuilder {
    match ServiceName::new(CSI_SERVICE) {
        Ok(name) => {
            builder.service(name, SessionService { relay, node_calls, warnings: LogLimit::default() })
        }
        // Unreachable: the name is valid.
        Err(_) => builder,
    }
}

/// The service of the calls of other peers.
struct SessionService<R> {
    relay: R,
    node_calls: bool,
    warnings: LogLimit,
}

/// Why a call of another peer to this service is refused.
fn refused(service: &ServiceName, call: &Call, node_calls: bool) -> Option<Refused> {
    if !node_calls && let Some(refused) = Refused::of_method(&call.method) {
        return Some(refused);
    }
    let below = service.as_str().strip_prefix(CSI_SERVICE);
    let is_permitted =
        below == Some("") || below.and_then(|below| below.strip_prefix('/')) == Some(call.driver.as_str());
    (!is_permitted).then(|| Refused::Driver(service.to_string()))
}

#[async_trait]
impl<R: Relay + 'static> Service for SessionService<R> {
    async fn call(&self, source: PeerId, request: Request, mut replies: ReplySender) {
        let Request { service, metadata, body, remaining, .. } = request;
        let answer = match Call::decode(metadata, body) {
            Ok(mut call) => match refused(&service, &call, self.node_calls) {
                Some(refused) => {
                    let may_warn = self.warnings.permits(Instant::now());
                    Replies::outcome(refused.outcome(&source, &call, may_warn))
                }
                None => {
                    call.remaining = remaining;
                    let answer = until_left(&self.relay, call, replies.cancelled()).await;
                    answer.unwrap_or_else(|| Replies::outcome(Fault::Cancelled))
                }
            },
            Err(error) => {
                Replies::outcome(Fault::Protocol { reason: format!("invalid header of a call: {error}") })
            }
        };
        // Fails only if the caller has cancelled; another copy of the call gets the answer then.
        let _ = send(answer, replies).await;
    }
}

async fn send(answer: Replies, mut to: ReplySender) -> Result<(), edge_transport::Cancelled> {
    let mut parts = match answer.into_whole() {
        Ok((Some(message), outcome)) => return to.send_and_finish(message, closing(&outcome)).await,
        Ok((None, outcome)) => return to.finish(closing(&outcome)).await,
        Err(parts) => parts,
    };
    loop {
        let part = tokio::select! {
            biased;
            part = parts.next() => part,
            // The driver's stream ends with the call, although it may send nothing for long.
            () = to.cancelled() => return Ok(()),
        };
        match part {
            Some(Reply::Message(message)) => to.send(message).await?,
            Some(Reply::End(outcome)) => return to.finish(closing(&outcome)).await,
            None => return Ok(()),
        }
    }
}

fn closing(outcome: &Outcome) -> Bytes {
    outcome.encode_within(MAX_CLOSING)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{CallId, MethodPath};

    #[test]
    fn refuses_by_method_service_and_driver() {
        let refused = |service: &str, method: &str| {
            let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new("a.driver").unwrap());
            let method = MethodPath::new(method).unwrap();
            let call = Call::new(CallId::new(), node, driver, method, Bytes::new());
            refused(&ServiceName::new(service).unwrap(), &call, false)
        };
        let driver = |service: &str| Some(Refused::Driver(service.to_owned()));
        let (create, stage) = ("/csi.v1.Controller/CreateVolume", "/csi.v1.Node/NodeStageVolume");
        for (service, method, expected) in [
            ("csi/a.driver", create, None),
            ("csi", create, None),
            ("csi/b.driver", create, driver("csi/b.driver")),
            ("csi/a.driver/x", create, driver("csi/a.driver/x")),
            ("csia.driver", create, driver("csia.driver")),
            ("other", create, driver("other")),
            ("csi/a.driver", stage, Some(Refused::Method)),
            ("csi/a.driver", "/other.v1.Service/Call", Some(Refused::Service)),
        ] {
            assert_eq!(refused(service, method), expected, "{service} {method}");
        }
    }
}
