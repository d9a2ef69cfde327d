//! Calling another peer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::Refusal;
use super::runtime::{ControlMessage, DriverHandle};
use crate::frame::{Failure, Reason, cost};

/// Why a call was not made. No request was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No hub is connected.
    #[error("not connected to a hub{}", last_error.as_ref().map_or_else(String::new, |error| format!("; last attempt: {error}")))]
    NotConnected {
        /// Why the last attempt to connect failed.
        last_error: Option<String>,
        /// What was refused, if the last attempt was refused.
        refusal: Option<Refusal>,
    },
    /// The peer or its hub is draining.
    #[error("draining, no new calls are accepted: {reason}")]
    Draining {
        /// The reason of the drain.
        reason: String,
    },
    /// The peer has been closed.
    #[error("this peer is closed")]
    Closed,
    /// The request exceeds the frame size.
    #[error("request of {found} bytes; at most {max} can be sent: raise max_frame at both ends or send less")]
    TooLarge {
        /// Bytes of body and metadata.
        found: usize,
        /// Largest allowed size in bytes.
        max: usize,
    },
    /// The metadata exceeds the header size.
    #[error("metadata of {found} bytes; at most {max} are allowed")]
    MetadataTooLarge {
        /// Bytes of metadata.
        found: usize,
        /// Largest allowed size in bytes.
        max: usize,
    },
    /// The deadline passed before the request was sent.
    #[error("the deadline passed before the request was sent")]
    Deadline,
}

/// Part of a response.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReplyEvent {
    /// A message.
    Message(Bytes),
    /// The service ended the call, with closing bytes of its own. Nothing follows.
    Finished(Bytes),
}

impl std::fmt::Debug for ReplyEvent {
    // Messages may hold secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (name, bytes) = match self {
            Self::Message(bytes) => ("Message", bytes),
            Self::Finished(bytes) => ("Finished", bytes),
        };
        f.debug_tuple(name).field(&format_args!("{} bytes", bytes.len())).finish()
    }
}

/// The response to a call: messages, then exactly one end, which is [`ReplyEvent::Finished`] or a [`Failure`].
///
/// Dropping the stream before the end cancels the call. A service that has started may continue. A request that is
/// still queued in this peer or in the hub is not sent.
#[derive(Debug)]
#[must_use = "dropping the stream cancels the call"]
pub struct ReplyStream {
    number: u64,
    /// The channel is unbounded; the call's credit limits its messages.
    parts: mpsc::UnboundedReceiver<Result<ReplyEvent, Failure>>,
    /// Credit in bytes of read messages that was not yet returned to the service. The credit is returned at
    /// `threshold`.
    read: u64,
    threshold: u64,
    ended: bool,
    handle: DriverHandle,
}

impl ReplyStream {
    pub(super) fn new(
        number: u64,
        parts: mpsc::UnboundedReceiver<Result<ReplyEvent, Failure>>,
        credit: u64,
        handle: DriverHandle,
    ) -> Self {
        Self { number, parts, read: 0, threshold: (credit / 2).max(1), ended: false, handle }
    }

    /// Returns the next part; `None` after the end. Cancel safe.
    pub async fn next(&mut self) -> Option<Result<ReplyEvent, Failure>> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }
}

impl Stream for ReplyStream {
    type Item = Result<ReplyEvent, Failure>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let stopped = || Err(Failure::new(Reason::LinkLost, "this peer has stopped; the work may continue"));
        let part = ready!(self.parts.poll_recv(cx)).unwrap_or_else(stopped);
        if let Ok(ReplyEvent::Message(message)) = &part {
            self.read += cost(message);
            if self.read >= self.threshold {
                let (number, bytes) = (self.number, std::mem::take(&mut self.read));
                // Fails if the peer has stopped, which the next poll reports.
                let _ = self.handle.control.send(ControlMessage::Credit { number, bytes });
            }
        } else {
            self.ended = true;
        }
        Poll::Ready(Some(part))
    }
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        if !self.ended {
            // The stream is closed first, so that a call that is still queued when the cancel arrives is never
            // opened.
            self.parts.close();
            let _ = self.handle.control.send(ControlMessage::Cancel { number: self.number });
        }
    }
}
