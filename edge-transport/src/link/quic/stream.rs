//! A QUIC link, which consists of a sender and a receiver.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_core::Stream;
use futures_sink::Sink;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use quinn::Connection;
use rustls_pki_types::CertificateDer;

use super::code;
use super::config::ADMITTED_WINDOW;
use super::receive::Receiver;
use super::send::Sender;
use crate::link::{FrameLink, LinkError, MAX_UNADMITTED_FRAME, ReceiveLimits, WireFrame};

/// How long a dropped link stays open after an orderly close, until the other end has read everything.
const LINGER: Duration = Duration::from_secs(5);

/// Frames over a QUIC connection.
pub(super) struct QuicLink {
    connection: Connection,
    sender: Sender,
    receiver: Receiver,
    /// Completes when the connection is closed; set while this end is closing.
    closed: Option<BoxFuture<'static, ()>>,
    /// The receive window of an accepting end in bytes, once the other end is admitted.
    window: Option<u32>,
    /// Counts the link among those that are not admitted.
    unadmitted: Option<Arc<()>>,
}

impl QuicLink {
    /// Opens this end's streams and confirms that it has accepted the link.
    pub(super) async fn start(connection: Connection, max_frame: usize) -> Result<Self, LinkError> {
        let sender = Sender::start(connection.clone(), max_frame).await?;
        let receiver = Receiver::new(connection.clone(), max_frame);
        let mut link = Self { connection, sender, receiver, closed: None, window: None, unadmitted: None };
        std::future::poll_fn(|cx| link.sender.poll_flush(cx)).await?;
        Ok(link)
    }

    /// Holds a clone of this until the other end is admitted.
    pub(super) fn count_until_admitted(mut self, unadmitted: Arc<()>) -> Self {
        self.unadmitted = Some(unadmitted);
        self
    }

    /// Waits until the other end has accepted the link.
    pub(super) fn poll_greeted(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.receiver.poll_greeted(cx)
    }
}

impl Stream for QuicLink {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.sender.poll_keep_alive(cx).is_ready() {
            let _ = self.sender.poll_flush(cx)?;
        }
        Pin::new(&mut self.receiver).poll_next(cx)
    }
}

impl FrameLink for QuicLink {
    fn limit_receiving(&mut self, max_frame: usize, max_unfinished: usize) {
        self.receiver.unfinished().set_limits(ReceiveLimits { max_frame, max_unfinished });
        // An accepting end begins with a small window, because a window that was granted cannot be reduced.
        if max_frame <= MAX_UNADMITTED_FRAME || self.connection.side().is_client() {
            return;
        }
        self.unadmitted = None;
        let window = u32::try_from(max_unfinished).unwrap_or(u32::MAX);
        let window = window.clamp(*ADMITTED_WINDOW.start(), *ADMITTED_WINDOW.end());
        if self.window.replace(window) != Some(window) {
            self.connection.set_receive_window(window.into());
        }
    }

    fn unfinished(&self) -> usize {
        self.receiver.unfinished().bytes()
    }

    fn oldest_unfinished(&self) -> Option<Instant> {
        self.receiver.oldest_unfinished()
    }

    fn unwritten(&self) -> usize {
        self.sender.unwritten()
    }

    fn peer_chain(&self) -> Vec<CertificateDer<'static>> {
        super::chain(&self.connection)
    }
}

impl Sink<WireFrame> for QuicLink {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        if self.sender.has_room() {
            return Poll::Ready(Ok(()));
        }
        match self.sender.poll_flush(cx) {
            Poll::Pending if self.sender.has_room() => Poll::Ready(Ok(())),
            other => other,
        }
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        self.sender.push(frame)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.sender.poll_flush(cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        let this = self.get_mut();
        this.sender.end();
        ready!(this.sender.poll_flush(cx))?;
        // The connection may still have to send or retransmit written bytes. The other end drops the connection when it has
        // read the end mark, which confirms that everything has arrived.
        let connection = &this.connection;
        let closed = this.closed.get_or_insert_with(|| {
            let connection = connection.clone();
            async move { drop(connection.closed().await) }.boxed()
        });
        ready!(closed.poll_unpin(cx));
        Poll::Ready(Ok(()))
    }
}

impl Drop for QuicLink {
    fn drop(&mut self) {
        if self.sender.has_ended()
            && self.connection.close_reason().is_none()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let connection = self.connection.clone();
            runtime.spawn(async move {
                let _ = tokio::time::timeout(LINGER, connection.closed()).await;
                connection.close(code::CLOSED.into(), b"closed");
            });
            return;
        }
        self.connection.close(code::DROPPED.into(), b"dropped");
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use futures_util::{SinkExt, StreamExt};

    use super::super::QuicDialer;
    use super::super::config::STREAM_WINDOW;
    use super::*;
    use crate::link::{Dialer, Lane, Limits, Link, Listener, quic};
    use crate::tls::{ClientTls, ServerTls};

    const BOUND: Duration = Duration::from_secs(20);

    /// Writes until this number of bytes waits for the other end, which does not read.
    async fn written_down_to(link: &mut Link, left: usize) {
        let flushing = poll_fn(|cx| match Pin::new(&mut *link).poll_flush(cx) {
            _ if link.unwritten() <= left => Poll::Ready(()),
            Poll::Ready(outcome) => panic!("everything is written: {outcome:?}"),
            Poll::Pending => Poll::Pending,
        });
        tokio::time::timeout(BOUND, flushing).await.expect("the windows have room");
        assert_eq!(link.unwritten(), left);
    }

    /// A large answer takes minutes on a slow link, and no other call must wait for it.
    #[tokio::test]
    async fn small_frames_overtake_a_large_one() {
        const LARGE: usize = 4 << 20;
        let tls = ServerTls::insecure().unwrap();
        let mut hub = quic::bind("127.0.0.1:0", &tls, Limits::default()).await.unwrap();
        let (port, tls) = (hub.address().port(), ClientTls::insecure(None).unwrap());
        let dialer = QuicDialer::new("127.0.0.1", port, &tls, Limits::default()).unwrap();
        let accepting = async { hub.accept().await?.await };
        let (mut dialed, mut accepted) = tokio::try_join!(dialer.dial(), accepting).unwrap();
        accepted.limit_receiving(2 * LARGE, 2 * LARGE);
        let frame = |lane, size| WireFrame::new(Lane::Call(lane), true, vec![0; size].into(), Bytes::new());

        dialed.feed(frame(1, LARGE)).await.unwrap();
        let left = LARGE + 4 - STREAM_WINDOW.1 as usize;
        written_down_to(&mut dialed, left).await;
        for lane in 2..5 {
            tokio::time::timeout(BOUND, dialed.feed(frame(lane, 100))).await.expect("there is room").unwrap();
        }
        written_down_to(&mut dialed, left).await;

        let sizes = async {
            let mut sizes = Vec::new();
            while sizes.len() < 4 {
                sizes.push(accepted.next().await.unwrap().unwrap().len());
            }
            sizes
        };
        let (flushed, sizes) = tokio::join!(dialed.flush(), tokio::time::timeout(BOUND, sizes));
        flushed.unwrap();
        assert_eq!(sizes.expect("in time"), [100, 100, 100, LARGE]);
    }
}
