//! The side of the caller.

use std::pin::Pin;

use bytes::Bytes;
use futures_core::Stream;
use futures_util::{StreamExt as _, stream};
use prost::Message as _;

use super::super::opened;
use super::{MAX_MESSAGE, MAX_REQUEST};
use crate::call::{Call, Fault, Outcome, Replies, Reply};
use crate::generated::call as pb;

/// Encodes a call as one payload.
///
/// # Errors
/// [`Fault::RequestTooLarge`] if the body has more than [`MAX_REQUEST`] bytes.
pub fn request(call: &Call) -> Result<Bytes, Fault> {
    let found = call.body.len();
    if found > MAX_REQUEST {
        return Err(Fault::RequestTooLarge { found: found as u64, max: MAX_REQUEST as u64 });
    }
    let request = pb::BusRequest { header: call.encode_header(), body: call.body.clone() };
    Ok(request.encode_to_vec().into())
}

/// Decodes the payloads of an answer, in the order in which the bus delivers them. An error of the bus is an item `Err`,
/// usually [`Fault::LinkLost`]; a stream that ends before the answer does is one too. The stream is dropped with the
/// answer.
///
/// `left` is called if the caller leaves, or the bus fails, before the last part has arrived: notify the node, so that a
/// queued call does not begin, and a stream ends. Use `|| ()` if the node notices that nothing receives any more.
///
/// # Errors
/// The fault that ended the answer before its first message.
pub async fn replies(
    parts: impl Stream<Item = Result<Bytes, Fault>> + Send + 'static,
    left: impl FnOnce() + Send + 'static,
) -> Result<Replies, Fault> {
    let answer = Answer { parts: Box::pin(parts), left: Some(left), answer: None, next: 0 };
    opened(stream::unfold(answer, |mut answer| async move { Some((answer.next().await, answer)) }).flatten())
        .await
}

/// The unread rest of an answer.
struct Answer<L: FnOnce()> {
    /// `None` once the last part has arrived.
    left: Option<L>,
    parts: Pin<Box<dyn Stream<Item = Result<Bytes, Fault>> + Send>>,
    /// The number of the answer that is read.
    answer: Option<u64>,
    /// The number of its next part.
    next: u64,
}

impl<L: FnOnce()> Drop for Answer<L> {
    fn drop(&mut self) {
        if let Some(left) = self.left.take() {
            left();
        }
    }
}

impl<L: FnOnce()> Answer<L> {
    /// The parts in the next payload: a message, an end, or both. The answer ends with an end.
    async fn next(&mut self) -> stream::Iter<std::vec::IntoIter<Reply>> {
        let parts = match self.payload().await {
            Ok((message, end)) => {
                message.map(Reply::Message).into_iter().chain(end.map(Reply::End)).collect()
            }
            Err(fault) => vec![Reply::End(fault.into())],
        };
        stream::iter(parts)
    }

    async fn payload(&mut self) -> Result<(Option<Bytes>, Option<Outcome>), Fault> {
        let invalid = |reason: String| Fault::Protocol { reason };
        loop {
            let payload = self.parts.next().await.ok_or_else(|| lost("the answer has no last part"))??;
            let pb::BusPart { answer, number, message, closing } = pb::BusPart::decode(payload)
                .map_err(|_| invalid("a payload of the answer is not a protobuf BusPart".to_owned()))?;
            if *self.answer.get_or_insert(answer) != answer || number < self.next {
                continue;
            }
            if number > self.next {
                return Err(lost(&format!("part {} of the answer is missing", self.next)));
            }
            self.next += 1;
            let found = message.as_ref().map_or(0, Bytes::len);
            if found > MAX_MESSAGE {
                return Err(Fault::ReplyTooLarge { found: found as u64, max: MAX_MESSAGE as u64 });
            }
            let Some(closing) = closing else {
                let reason =
                    || invalid("a part of the answer has neither a message nor a closing".to_owned());
                return Ok((Some(message.ok_or_else(reason)?), None));
            };
            self.left = None;
            let end = Outcome::decode(closing)
                .map_err(|error| invalid(format!("invalid closing of an answer: {error}")))?;
            return Ok((message, Some(end)));
        }
    }
}

fn lost(reason: &str) -> Fault {
    Fault::LinkLost { reason: reason.to_owned() }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    use super::*;

    fn part(answer: u64, number: u64, message: Option<&str>, closing: bool) -> Result<Bytes, Fault> {
        let message = message.map(|text| Bytes::copy_from_slice(text.as_bytes()));
        let closing = closing.then(|| Outcome::ok().encode());
        Ok(pb::BusPart { answer, number, message, closing }.encode_to_vec().into())
    }

    async fn read(parts: Vec<Result<Bytes, Fault>>) -> Result<(Vec<Bytes>, Outcome), Fault> {
        Ok(replies(stream::iter(parts), || ()).await?.collect().await)
    }

    #[tokio::test]
    async fn the_node_is_notified_if_the_answer_has_not_ended() {
        let [first, last] = [part(1, 0, Some("a"), false), part(1, 1, Some("b"), true)];
        for (parts, read, expected) in [
            (vec![part(1, 0, Some("a"), true)], 0, 0),
            (vec![first.clone(), last.clone()], 2, 0),
            (vec![first.clone(), last], 1, 1),
            (vec![first], 3, 1),
            (vec![], 0, 1),
        ] {
            let left = Arc::new(AtomicUsize::new(0));
            let count = Arc::clone(&left);
            let parts = stream::iter(parts).chain(stream::pending());
            let mut answer = Box::pin(replies(parts, move || {
                count.fetch_add(1, Ordering::SeqCst);
            }));
            if let Poll::Ready(Ok(mut answer)) = futures_util::poll!(&mut answer) {
                for _ in 0..read {
                    let _ = futures_util::poll!(Box::pin(answer.next()));
                }
            }
            drop(answer);
            assert_eq!(left.load(Ordering::SeqCst), expected);
        }
    }

    #[tokio::test]
    async fn repeated_parts_and_other_answers_are_ignored() {
        let parts = [(7, 0, "a"), (8, 0, "x"), (7, 0, "a"), (7, 1, "b"), (8, 1, "y"), (7, 0, "a")];
        let mut parts: Vec<_> =
            parts.map(|(answer, number, text)| part(answer, number, Some(text), false)).into();
        parts.extend([part(8, 2, None, true), part(7, 2, Some("c"), true), part(7, 3, Some("d"), false)]);
        assert_eq!(read(parts).await, Ok((vec!["a".into(), "b".into(), "c".into()], Outcome::ok())));
    }

    #[tokio::test]
    async fn an_incomplete_answer_ends_with_a_fault() {
        let cut = Fault::LinkLost { reason: "cut".to_owned() };
        for (parts, messages, kind) in [
            (vec![], None, "link_lost"),
            (vec![Err(cut.clone())], None, "link_lost"),
            (vec![part(1, 0, Some("a"), false)], Some(1), "link_lost"),
            (vec![part(1, 0, Some("a"), false), Err(cut)], Some(1), "link_lost"),
            (vec![part(1, 0, Some("a"), false), part(1, 2, Some("c"), true)], Some(1), "link_lost"),
            (vec![part(1, 1, Some("b"), true)], None, "link_lost"),
            (vec![part(1, 0, None, false)], None, "protocol"),
            (vec![Ok(Bytes::new())], None, "protocol"),
            (vec![Ok(Bytes::from_static(b"\xff"))], None, "protocol"),
        ] {
            let found = match read(parts.clone()).await {
                Ok((found, outcome)) => (Some(found.len()), outcome.fault().unwrap().kind()),
                Err(fault) => (None, fault.kind()),
            };
            assert_eq!(found, (messages, kind), "{parts:?}");
        }
    }

    #[tokio::test]
    async fn sizes_are_bounded() {
        let method = crate::MethodPath::new("/a/b").unwrap();
        let call = |bytes: usize| {
            let (node, driver) = ("n".parse().unwrap(), "d".parse().unwrap());
            Call::new(crate::CallId::new(), node, driver, method.clone(), vec![0; bytes].into())
        };
        let payload = request(&call(MAX_REQUEST)).unwrap();
        assert!(payload.len() < MAX_REQUEST + super::super::MAX_OVERHEAD);
        let found = request(&call(MAX_REQUEST + 1)).unwrap_err();
        assert_eq!(found.kind(), "request_too_large");
        let large = "x".repeat(MAX_MESSAGE + 1);
        let found = read(vec![part(1, 0, Some(&large), true)]).await.unwrap_err();
        assert_eq!(found.kind(), "reply_too_large");
    }
}
