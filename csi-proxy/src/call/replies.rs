//! The answer to a call: messages, then exactly one outcome.

use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_core::Stream;

use crate::call::{Fault, Outcome};

/// One part of an answer.
#[derive(Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "an answer is messages and an end")]
pub enum Reply {
    /// A response message, byte for byte as the driver sent it.
    Message(Bytes),
    /// The outcome, which is the last part.
    End(Outcome),
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => write!(f, "Message({} bytes)", message.len()),
            Self::End(outcome) => f.debug_tuple("End").field(outcome).finish(),
        }
    }
}

/// The answer to a call: a stream of messages that always ends with an [`Outcome`].
///
/// A unary answer holds its parts and costs no task, channel or allocation. Dropping an answer ends the wait; it does
/// not stop the work. A source that ends without an outcome is completed with [`Fault::ServiceLost`].
#[must_use = "an answer that is not read is lost"]
pub struct Replies(Source);

enum Source {
    Unary { message: Bytes, outcome: Outcome },
    Outcome(Outcome),
    Stream(Pin<Box<dyn Stream<Item = Reply> + Send>>),
    Ended,
}

impl Replies {
    /// Creates an answer of one message and its outcome, as most CSI answers are.
    pub fn unary(message: impl Into<Bytes>, outcome: Outcome) -> Self {
        Self(Source::Unary { message: message.into(), outcome })
    }

    /// Creates an answer of an outcome only, as most failures are.
    pub fn outcome(outcome: impl Into<Outcome>) -> Self {
        Self(Source::Outcome(outcome.into()))
    }

    #[cfg(feature = "runtime")]
    pub(crate) fn whole(message: Option<Bytes>, outcome: Outcome) -> Self {
        match message {
            Some(message) => Self::unary(message, outcome),
            None => Self::outcome(outcome),
        }
    }

    /// Creates an answer from a stream of parts. The first [`Reply::End`] is the last part that is read.
    pub fn stream(parts: impl Stream<Item = Reply> + Send + 'static) -> Self {
        Self(Source::Stream(Box::pin(parts)))
    }

    /// The next part; `None` after the end.
    pub async fn next(&mut self) -> Option<Reply> {
        poll_fn(|cx| Pin::new(&mut *self).poll_next(cx)).await
    }

    /// Reads the whole answer to a unary method. gRPC clients report a final code for an OK with no message or
    /// with two, so both become a [`Fault::Protocol`].
    #[cfg(feature = "runtime")]
    pub(crate) async fn read_unary(mut self) -> (Option<Bytes>, Outcome) {
        let broken = |found: &str| {
            let expected = "an OK answer to a unary method has exactly one message";
            (None, Fault::Protocol { reason: format!("{expected}; this one has {found}") }.into())
        };
        let mut message = None;
        loop {
            match self.next().await {
                Some(Reply::Message(_)) if message.is_some() => return broken("more"),
                Some(Reply::Message(first)) => message = Some(first),
                Some(Reply::End(outcome)) if message.is_none() && outcome.is_ok() => return broken("none"),
                Some(Reply::End(outcome)) => return (message, outcome),
                None => return (message, lost()),
            }
        }
    }

    /// Collects all messages and the outcome in memory.
    pub async fn collect(mut self) -> (Vec<Bytes>, Outcome) {
        let mut messages = Vec::new();
        loop {
            match self.next().await {
                Some(Reply::Message(message)) => messages.push(message),
                Some(Reply::End(outcome)) => return (messages, outcome),
                None => return (messages, lost()),
            }
        }
    }

    /// Returns the unread rest of an answer that is unary or only an outcome: after the message of a unary answer has
    /// been read, only its outcome.
    ///
    /// Lets a relay send such an answer in one frame.
    ///
    /// # Errors
    /// Returns the answer if its parts are a stream, or its outcome has been read.
    #[allow(clippy::result_large_err, reason = "moved here, not propagated through callers")]
    pub fn into_whole(mut self) -> Result<(Option<Bytes>, Outcome), Self> {
        match std::mem::replace(&mut self.0, Source::Ended) {
            Source::Unary { message, outcome } => Ok((Some(message), outcome)),
            Source::Outcome(outcome) => Ok((None, outcome)),
            source @ (Source::Stream(_) | Source::Ended) => Err(Self(source)),
        }
    }
}

impl Stream for Replies {
    type Item = Reply;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Reply>> {
        if let Source::Stream(stream) = &mut self.0 {
            let part = ready!(stream.as_mut().poll_next(cx)).unwrap_or_else(|| Reply::End(lost()));
            if matches!(part, Reply::End(_)) {
                self.0 = Source::Ended;
            }
            return Poll::Ready(Some(part));
        }
        Poll::Ready(match std::mem::replace(&mut self.0, Source::Ended) {
            Source::Unary { message, outcome } => {
                self.0 = Source::Outcome(outcome);
                Some(Reply::Message(message))
            }
            Source::Outcome(outcome) => Some(Reply::End(outcome)),
            Source::Stream(_) | Source::Ended => None,
        })
    }
}

impl fmt::Debug for Replies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::Unary { message, outcome } => {
                write!(f, "Unary({} bytes, {outcome:?})", message.len())
            }
            Source::Outcome(outcome) => f.debug_tuple("Outcome").field(outcome).finish(),
            Source::Stream(_) => f.write_str("Stream"),
            Source::Ended => f.write_str("Ended"),
        }
    }
}

fn lost() -> Outcome {
    Fault::ServiceLost { what: "the relay".to_owned() }.into()
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use super::*;

    fn parts(mut replies: Replies) -> Vec<Reply> {
        let mut cx = Context::from_waker(Waker::noop());
        let mut parts = Vec::new();
        while let Poll::Ready(Some(part)) = Pin::new(&mut replies).poll_next(&mut cx) {
            parts.push(part);
        }
        parts
    }

    struct Once(Option<Reply>);

    impl Stream for Once {
        type Item = Reply;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Reply>> {
            Poll::Ready(self.0.take())
        }
    }

    #[test]
    fn unary_answer_is_a_message_and_its_end() {
        let expected = [Reply::Message(Bytes::from_static(b"x")), Reply::End(Outcome::ok())];
        assert_eq!(parts(Replies::unary("x", Outcome::ok())), expected);
    }

    #[test]
    fn whole_answer_is_what_is_unread() {
        let mut cx = Context::from_waker(Waker::noop());
        let answer = || Replies::unary("x", Outcome::ok());
        assert_eq!(answer().into_whole().unwrap(), (Some(Bytes::from_static(b"x")), Outcome::ok()));
        let mut read = answer();
        assert!(Pin::new(&mut read).poll_next(&mut cx).is_ready());
        let (message, outcome) = read.into_whole().unwrap();
        assert_eq!((message, outcome.is_ok()), (None, true));
        let mut ended = Replies::outcome(Outcome::ok());
        assert!(Pin::new(&mut ended).poll_next(&mut cx).is_ready());
        assert!(ended.into_whole().is_err());
        assert!(Replies::stream(Once(None)).into_whole().is_err());
    }

    #[test]
    fn source_without_an_outcome_ends_with_a_fault() {
        let found = parts(Replies::stream(Once(Some(Reply::Message(Bytes::new())))));
        assert_eq!(found, [Reply::Message(Bytes::new()), Reply::End(lost())]);
    }
}
