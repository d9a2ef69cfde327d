//! Messages of one HTTP/2 stream, in and out.

use std::future::poll_fn;
use std::task::{Poll, ready};

use bytes::Bytes;
use h2::{RecvStream, SendStream};
use http::HeaderMap;

use super::message::{Deframer, Framed, MessageError};

/// Why reading stopped.
#[derive(Debug)]
pub(crate) enum ReadError {
    Message(MessageError),
    Http(h2::Error),
}

impl From<MessageError> for ReadError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

impl From<h2::Error> for ReadError {
    fn from(error: h2::Error) -> Self {
        Self::Http(error)
    }
}

/// Reads messages; gives the sender new credit only for what has been taken in.
#[derive(Debug)]
pub(crate) struct Messages {
    stream: RecvStream,
    deframer: Deframer,
}

impl Messages {
    pub(crate) fn new(stream: RecvStream, max: usize) -> Self {
        Self { stream, deframer: Deframer::new(max) }
    }

    /// The next message; `None` at the end of the data.
    pub(crate) async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(message) = self.deframer.next()? {
                return Ok(Some(message));
            }
            match self.stream.data().await {
                Some(chunk) => {
                    let chunk = chunk?;
                    // Fails only for more than was received.
                    let _ = self.stream.flow_control().release_capacity(chunk.len());
                    self.deframer.push(chunk);
                }
                None => {
                    self.deframer.finish()?;
                    return Ok(None);
                }
            }
        }
    }

    /// The trailers, after the data.
    pub(crate) async fn trailers(&mut self) -> Result<Option<HeaderMap>, h2::Error> {
        self.stream.trailers().await
    }
}

/// Waits until what was sent before fits into the peer's window and the send buffer, so that a slow reader holds up its
/// sender and not our memory.
pub(crate) async fn room(stream: &mut SendStream<Framed>) -> Result<(), h2::Error> {
    // h2 adds what is still buffered to the request: one byte is granted only after all of that.
    stream.reserve_capacity(1);
    poll_fn(|cx| {
        while stream.capacity() == 0 {
            match ready!(stream.poll_capacity(cx)) {
                Some(Ok(_)) => {}
                Some(Err(error)) => return Poll::Ready(Err(error)),
                None => return Poll::Ready(Err(h2::Reason::CANCEL.into())),
            }
        }
        Poll::Ready(Ok(()))
    })
    .await
}
