//! A hub and peers over memory links.
#![allow(dead_code, clippy::unwrap_used, clippy::panic, reason = "shared by several tests; each uses a part")]

pub(crate) mod cuttable;
pub(crate) mod raw;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::PeerSettings;
use edge_transport::hub::Rules;
use edge_transport::link::memory;
use edge_transport::link::{Dialer, Listener};
use edge_transport::{
    Hub, Peer, PeerId, Reason, ReplyEvent, ReplySender, ReplyStream, Request, Service, ServiceName,
};

pub(crate) fn peer_id(name: &str) -> PeerId {
    PeerId::new(name).unwrap()
}

pub(crate) fn service_name(name: &str) -> ServiceName {
    ServiceName::new(name).unwrap()
}

/// A service that replies with the received body. To `stream:N:SIZE` it replies with N messages of SIZE bytes and their
/// index, to `never` only when released, to `panic`, `drop` and `fail` without a complete response.
#[derive(Clone, Default)]
pub(crate) struct Echo {
    pub(crate) release: Arc<tokio::sync::Notify>,
    pub(crate) started: Arc<tokio::sync::Notify>,
    pub(crate) sent: Arc<std::sync::atomic::AtomicUsize>,
    pub(crate) finished: Arc<std::sync::atomic::AtomicUsize>,
}

#[async_trait::async_trait]
impl Service for Echo {
    async fn call(&self, _source: PeerId, request: Request, mut replies: ReplySender) {
        use std::sync::atomic::Ordering::SeqCst;
        let text = String::from_utf8_lossy(&request.body[..request.body.len().min(40)]).into_owned();
        let mut words = text.split(':');
        match words.next() {
            Some("stream") => {
                let count: usize = words.next().unwrap().parse().unwrap();
                let size: usize = words.next().unwrap().parse().unwrap();
                for index in 0..count {
                    let mut body = vec![index as u8; size];
                    body.extend_from_slice(&(index as u64).to_be_bytes());
                    if replies.send(body.into()).await.is_err() {
                        break;
                    }
                    self.sent.fetch_add(1, SeqCst);
                }
                let _ = replies.finish(Bytes::from_static(b"done")).await;
            }
            Some("never") => {
                self.started.notify_one();
                self.release.notified().await;
                let _ = replies.send_and_finish(request.body, Bytes::new()).await;
            }
            Some("panic") => panic!("as asked"),
            Some("drop") => {}
            Some("fail") => {
                let _ = replies.fail(Reason::Overloaded, "as asked").await;
            }
            _ => {
                let _ = replies.send_and_finish(request.body, request.metadata).await;
            }
        }
        self.finished.fetch_add(1, SeqCst);
    }
}

pub(crate) struct Net {
    pub(crate) hub: Hub,
    pub(crate) dialer: Arc<dyn Dialer>,
}

pub(crate) fn listen() -> (Box<dyn Listener>, Arc<dyn Dialer>) {
    memory::listen("hub", 16 * 1024 * 1024)
}

pub(crate) fn net() -> Net {
    net_with(|builder| builder)
}

pub(crate) fn net_with(
    change: impl FnOnce(edge_transport::hub::HubBuilder) -> edge_transport::hub::HubBuilder,
) -> Net {
    let (listener, dialer) = listen();
    let builder = Hub::builder().listener(listener).allow_unauthenticated().policy(Rules::allow_all());
    let hub = change(builder).start().unwrap();
    Net { hub, dialer }
}

impl Net {
    pub(crate) async fn edge(&self, name: &str) -> (Peer, Echo) {
        let echo = Echo::default();
        let peer = Peer::builder(peer_id(name))
            .dialer(Box::new(self.dialer.clone()))
            .service(service_name("echo"), echo.clone())
            .start()
            .unwrap();
        peer.connected().await.unwrap();
        (peer, echo)
    }

    /// Waits until a peer of this name is connected.
    pub(crate) async fn wait_for_peer(&self, name: &str) {
        let mut presence = self.hub.presence();
        while !self.hub.peers().iter().any(|peer| peer.peer.as_str() == name) {
            presence.recv().await.unwrap();
        }
    }

    pub(crate) async fn caller(&self, name: &str) -> Peer {
        self.caller_with(name, PeerSettings::default()).await
    }

    pub(crate) async fn caller_with(&self, name: &str, settings: PeerSettings) -> Peer {
        let peer = Peer::builder(peer_id(name))
            .dialer(Box::new(self.dialer.clone()))
            .settings(settings)
            .start()
            .unwrap();
        peer.connected().await.unwrap();
        peer
    }
}

pub(crate) fn echo(body: impl Into<Bytes>) -> Request {
    Request::new(service_name("echo"), body)
}

/// Returns the messages and the end of a response.
pub(crate) async fn collect(mut replies: ReplyStream) -> (Vec<Bytes>, Result<Bytes, Reason>) {
    let mut messages = Vec::new();
    loop {
        let next = tokio::time::timeout(Duration::from_secs(600), replies.next()).await.unwrap();
        match next.unwrap() {
            Ok(ReplyEvent::Message(message)) => messages.push(message),
            Ok(ReplyEvent::Finished(closing)) => return (messages, Ok(closing)),
            Ok(other) => panic!("{other:?}"),
            Err(failure) => return (messages, Err(failure.reason())),
        }
    }
}
