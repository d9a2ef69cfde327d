//! Calling another peer.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;
use tokio::sync::mpsc;

use super::runtime::{Inbox, Note};
use crate::frame::{Failure, Reason, cost};

/// A call was not made: nothing of it has left this peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CallError {
    /// No hub is connected.
    #[error("not connected to a hub{}", last_error.as_ref().map_or_else(String::new, |error| format!("; last attempt: {error}")))]
    NotConnected {
        /// Why the last attempt to connect failed.
        last_error: Option<String>,
    },
    /// The peer or its hub takes no new calls.
    #[error("no new calls are taken: {reason}")]
    Draining {
        /// Why.
        reason: String,
    },
    /// The peer has been closed.
    #[error("this peer is closed")]
    Closed,
    /// The request does not fit into a frame.
    #[error("request of {found} bytes; at most {max} can be sent: raise max_frame at both ends or send less")]
    TooLarge {
        /// Bytes of body and metadata.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// The metadata does not fit into a header.
    #[error("metadata of {found} bytes; at most {max} are allowed")]
    MetadataTooLarge {
        /// Its bytes.
        found: usize,
        /// The bound.
        max: usize,
    },
    /// The time was over before the request could be sent.
    #[error("the time was over before the request could be sent")]
    Deadline,
}

/// A part of an answer.
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

/// The answer to a call: messages, then exactly one end, which is [`ReplyEvent::Finished`] or a [`Failure`].
///
/// Dropping it before the end tells the other side that nobody waits. Work that has begun there may go on. A request that waits on
/// its way by then, in this peer or at the hub, is not sent.
#[derive(Debug)]
#[must_use = "dropping the answer means that nobody waits for it"]
pub struct ReplyStream {
    number: u64,
    /// Bounded by the call's credit.
    parts: mpsc::UnboundedReceiver<Result<ReplyEvent, Failure>>,
    /// Bytes of credit that have been read and not given back; they are when there are so many.
    read: u64,
    threshold: u64,
    ended: bool,
    inbox: Inbox,
}

impl ReplyStream {
    pub(super) fn new(
        number: u64,
        parts: mpsc::UnboundedReceiver<Result<ReplyEvent, Failure>>,
        credit: u64,
        inbox: Inbox,
    ) -> Self {
        Self { number, parts, read: 0, threshold: (credit / 2).max(1), ended: false, inbox }
    }

    /// The next part; `None` after the end. Nothing is lost if the future is dropped.
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
        let stopped = || Err(Failure::new(Reason::LinkLost, "this peer has stopped; the work may go on"));
        let part = ready!(self.parts.poll_recv(cx)).unwrap_or_else(stopped);
        if let Ok(ReplyEvent::Message(message)) = &part {
            self.read += cost(message);
            if self.read >= self.threshold {
                let (number, bytes) = (self.number, std::mem::take(&mut self.read));
                // That the peer has stopped is found next.
                let _ = self.inbox.notes.send(Note::Credit { number, bytes });
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
            // First, so that a call that has not begun by the time of the note never does.
            self.parts.close();
            let _ = self.inbox.notes.send(Note::StopWaiting { number: self.number });
        }
    }
}
