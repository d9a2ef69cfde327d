//! A peer that sends and receives single frames.

use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::{self, Frame, Hello, Kind, Part, Reply};
use edge_transport::link::{Dialer, Lane, Link, WireFrame};
use edge_transport::{Reason, Request, SessionId};
use futures_util::{SinkExt, StreamExt};
use tokio::time::timeout;

use super::{Net, peer_id, service_name};

/// One end of a link, without a session.
pub(crate) struct Raw {
    pub(crate) link: Link,
}

impl Raw {
    pub(crate) async fn dial(net: &Net) -> Self {
        Self { link: net.dialer.dial().await.unwrap() }
    }

    pub(crate) async fn admitted(net: &Net, name: &str, session: u64) -> Self {
        let mut raw = Self::dial(net).await;
        raw.send(Kind::Hello(hello(name, session, 1, 1))).await;
        assert!(matches!(raw.receive().await.unwrap().kind, Kind::Hello(_)));
        raw
    }

    pub(crate) async fn send(&mut self, kind: Kind) {
        self.send_frame(Frame::link(kind)).await;
    }

    pub(crate) async fn send_frame(&mut self, frame: Frame) {
        self.link.send(frame::encode(frame, Lane::Control)).await.unwrap();
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &'static [u8]) {
        let frame = WireFrame::new(Lane::Control, false, Bytes::from_static(bytes), Bytes::new());
        self.link.send(frame).await.unwrap();
    }

    /// Returns the next frame other than a ping; `None` when the hub has closed.
    pub(crate) async fn receive(&mut self) -> Option<Frame> {
        loop {
            let bytes = timeout(Duration::from_secs(60), self.link.next()).await.unwrap()?.ok()?;
            match frame::decode(bytes, usize::MAX).unwrap() {
                Frame { kind: Kind::Ping { .. }, .. } => {}
                frame => return Some(frame),
            }
        }
    }

    pub(crate) async fn refusal(&mut self) -> String {
        let Some(Frame { kind: Kind::Drain { reason }, .. }) = self.receive().await else {
            panic!("no reason")
        };
        assert!(self.receive().await.is_none(), "the hub closes after its refusal");
        reason
    }

    pub(crate) async fn call(&mut self, number: u64, target: &str, source: Option<&str>) {
        let mut request = frame_request();
        request.body = Bytes::from_static(b"never");
        let part = Part::Request(request);
        self.send_frame(Frame::call(source.map(peer_id), Some(peer_id(target)), number, part)).await;
    }

    pub(crate) async fn failure(&mut self) -> (u64, Reason) {
        match self.receive().await.unwrap().kind {
            Kind::Call(number, Part::Reply(Reply { end: Some(frame::End::Failed(failure)), .. })) => {
                (number, failure.reason())
            }
            other => panic!("{other:?}"),
        }
    }
}

/// A session of the first instance of that name.
pub(crate) fn hello(name: &str, session: u64, min: u32, max: u32) -> Hello {
    let mut hello = Hello::new(peer_id(name), SessionId { instance: 1, number: session });
    (hello.version_min, hello.version_max) = (min, max);
    hello
}

pub(crate) fn frame_request() -> Request {
    let mut request = Request::new(service_name("echo"), Bytes::new());
    request.credit = 1024;
    request
}
