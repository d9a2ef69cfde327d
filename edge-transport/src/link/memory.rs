//! Links inside the process: for tests, and for peers in one process.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_sink::Sink;
use tokio::sync::mpsc;
use tokio_util::sync::PollSender;

use super::{
    Credentials, Dialer, FrameLink, Incoming, Link, LinkError, LinkKind, LinkSender, Listener, Protection,
    WireFrame, queue,
};
use crate::name::PeerId;

/// Maximum number of frames queued in each direction of a memory link.
pub const FRAMES_IN_FLIGHT: usize = 64;

/// Maximum number of links that wait to be accepted.
const BACKLOG: usize = 128;

enum Item {
    Frame(Bytes),
    End,
}

struct MemoryLink {
    sender: PollSender<Item>,
    receiver: mpsc::Receiver<Item>,
    max_frame: usize,
    closed: bool,
    ended: bool,
}

/// Creates both ends of a link, connected by queues of [`FRAMES_IN_FLIGHT`] frames of at most `max_frame` bytes.
#[must_use]
pub fn pair(max_frame: usize) -> (Link, Link) {
    pair_with(max_frame, Credentials::None)
}

/// Creates both ends of a link whose left end presents `left` to the right one.
fn pair_with(max_frame: usize, left: Credentials) -> (Link, Link) {
    let (to_right, from_left) = mpsc::channel(FRAMES_IN_FLIGHT);
    let (to_left, from_right) = mpsc::channel(FRAMES_IN_FLIGHT);
    let end = |sender, receiver, remote: &str, credentials| {
        let io =
            MemoryLink { sender: PollSender::new(sender), receiver, max_frame, closed: false, ended: false };
        Link::new(io, LinkKind::MEMORY, remote, credentials).with_protection(Protection::Private)
    };
    let near = end(to_right, from_right, "memory:right", Credentials::None);
    (near, end(to_left, from_left, "memory:left", left))
}

impl Stream for MemoryLink {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        match ready!(self.receiver.poll_recv(cx)) {
            Some(Item::Frame(frame)) => Poll::Ready(Some(Ok(frame))),
            Some(Item::End) => {
                self.ended = true;
                Poll::Ready(None)
            }
            None => {
                self.ended = true;
                Poll::Ready(Some(Err(LinkError::Lost)))
            }
        }
    }
}

impl FrameLink for MemoryLink {}

impl Sink<WireFrame> for MemoryLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.sender.poll_reserve(cx).map_err(|_| LinkError::Lost)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        if frame.len() > self.max_frame {
            return Err(LinkError::TooLarge { found: frame.len(), max: self.max_frame });
        }
        self.sender.send_item(Item::Frame(into_bytes(frame))).map_err(|_| LinkError::Lost)
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if !self.closed {
            ready!(self.sender.poll_reserve(cx)).map_err(|_| LinkError::Lost)?;
            self.sender.send_item(Item::End).map_err(|_| LinkError::Lost)?;
            self.closed = true;
            self.sender.close();
        }
        Poll::Ready(Ok(()))
    }
}

/// Joins header and body; copies only if both are non-empty.
pub(super) fn into_bytes(frame: WireFrame) -> Bytes {
    match (frame.head.is_empty(), frame.body.is_empty()) {
        (_, true) => frame.head,
        (true, false) => frame.body,
        (false, false) => {
            let mut whole = BytesMut::with_capacity(frame.len());
            whole.extend_from_slice(&frame.head);
            whole.extend_from_slice(&frame.body);
            whole.freeze()
        }
    }
}

/// Dials the listener that was created with it.
struct MemoryDialer {
    listener: LinkSender,
    name: String,
    max_frame: usize,
    proof: Proof,
}

/// What the dialing end proves.
enum Proof {
    None,
    Name(PeerId),
    /// That it is the hub itself.
    OfHub(PeerId),
}

/// Creates a listener whose links prove this name, for the peer of a hub's own services.
pub(crate) fn listen_of_hub(name: PeerId, max_frame: usize) -> (Box<dyn Listener>, Arc<dyn Dialer>) {
    ends(name.as_str(), max_frame, Proof::OfHub(name.clone()))
}

/// Creates a listener and its dialer, whose links prove this name to the hub as a certificate for it would. Keep the dialer
/// in the component that is this peer.
#[must_use]
pub fn listen_proven(name: &PeerId, max_frame: usize) -> (Box<dyn Listener>, Arc<dyn Dialer>) {
    ends(name.as_str(), max_frame, Proof::Name(name.clone()))
}

/// Creates a listener and its dialer. The name is for logs. Dialing fails once the listener is dropped.
#[must_use]
pub fn listen(name: impl AsRef<str>, max_frame: usize) -> (Box<dyn Listener>, Arc<dyn Dialer>) {
    ends(name.as_ref(), max_frame, Proof::None)
}

fn ends(name: &str, max_frame: usize, proof: Proof) -> (Box<dyn Listener>, Arc<dyn Dialer>) {
    let name = format!("memory:{name}");
    let (sender, listener) = queue(LinkKind::MEMORY, name.clone(), BACKLOG);
    (listener, Arc::new(MemoryDialer { listener: sender, name, max_frame, proof }))
}

#[async_trait::async_trait]
impl Dialer for MemoryDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let (near, far) = match &self.proof {
            Proof::None => pair(self.max_frame),
            Proof::Name(name) => pair_with(self.max_frame, name.clone().into()),
            Proof::OfHub(name) => {
                let (near, far) = pair_with(self.max_frame, name.clone().into());
                (near, far.of_hub())
            }
        };
        let incoming = Incoming::new(std::future::ready(Ok(far)));
        self.listener.send(incoming).await.map_err(|_| LinkError::Handshake {
            kind: LinkKind::MEMORY,
            remote: self.name.clone(),
            cause: "the listener was dropped".to_owned(),
        })?;
        Ok(near)
    }

    fn address(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use futures_util::{SinkExt, StreamExt};

    use super::*;
    use crate::link::Lane;

    fn frame(body: &'static [u8]) -> WireFrame {
        WireFrame::new(Lane::Control, false, Bytes::from_static(b"h"), Bytes::from_static(body))
    }

    #[tokio::test]
    async fn dials_until_the_listener_is_dropped() {
        let (mut listener, dialer) = listen("hub", 100);
        let mut near = dialer.dial().await.unwrap();
        let mut far = listener.accept().await.unwrap().await.unwrap();
        near.send(frame(b"ello")).await.unwrap();
        assert_eq!(far.next().await.unwrap().unwrap(), "hello");
        drop(listener);
        assert!(matches!(dialer.dial().await, Err(LinkError::Handshake { .. })));
    }
}
