//! The side of the node.

use std::pin::pin;

use bytes::Bytes;
use prost::Message as _;

use super::super::refused::Refused;
use super::super::{Relay, until_left};
use super::{MAX_CLOSING, MAX_MESSAGE, MAX_REQUEST};
use crate::call::{Call, CallId, Fault, Outcome, Replies, Reply};
use crate::generated::call as pb;

/// Answers one request of a bus: passes its call to `relay`, usually a [`Dispatcher`](crate::Dispatcher), and each part of
/// the answer to `send`.
///
/// `left` resolves when the caller has left: then nothing more is sent, a queued call does not begin, a begun one that may
/// change something continues at the driver, and any other ends. Use `std::future::pending()` if the bus cannot report it:
/// then a queued call begins although its caller has left, unless it has a fence. The next part is read when `send` returns,
/// so a `send` that waits for the bus keeps memory small.
///
/// An undecodable request is answered with [`Fault::Protocol`], one that is too large with [`Fault::RequestTooLarge`], and
/// a Node call that mounts or unmounts with [`Fault::Forbidden`]: see [`MethodPath::is_remote`](crate::MethodPath::is_remote).
///
/// # Errors
/// The first error of `send`. Then the answer is lost; the dispatcher keeps the result for a copy of the call.
pub async fn serve<S, E>(
    relay: &(impl Relay + ?Sized),
    request: Bytes,
    left: impl Future<Output = ()>,
    mut send: impl FnMut(Bytes) -> S,
) -> Result<(), E>
where
    S: Future<Output = Result<(), E>>,
{
    let mut left = pin!(left);
    let answer = match decode(request) {
        Ok(call) => until_left(relay, call, left.as_mut()).await,
        Err(outcome) => Some(Replies::outcome(outcome)),
    };
    let Some(answer) = answer else { return Ok(()) };
    let id = CallId::new().as_bytes().last_chunk().map_or(0, |random| u64::from_le_bytes(*random));
    let mut parts = match answer.into_whole() {
        Ok((message, outcome)) => return send(encode(id, 0, message, Some(outcome))).await,
        Err(parts) => parts,
    };
    let mut number = 0;
    loop {
        let part = tokio::select! {
            biased;
            () = &mut left => return Ok(()),
            part = parts.next() => part,
        };
        let (payload, is_last) = match part {
            Some(Reply::Message(message)) => (encode(id, number, Some(message), None), false),
            Some(Reply::End(outcome)) => (encode(id, number, None, Some(outcome)), true),
            None => return Ok(()),
        };
        send(payload).await?;
        if is_last {
            return Ok(());
        }
        number += 1;
    }
}

/// Decodes a request.
///
/// # Errors
/// The outcome of a request that is refused.
fn decode(request: Bytes) -> Result<Call, Outcome> {
    let invalid = |reason: String| Outcome::from(Fault::Protocol { reason });
    let pb::BusRequest { header, body } = pb::BusRequest::decode(request)
        .map_err(|_| invalid("the request is not a protobuf BusRequest".to_owned()))?;
    if body.len() > MAX_REQUEST {
        return Err(Fault::RequestTooLarge { found: body.len() as u64, max: MAX_REQUEST as u64 }.into());
    }
    let call = Call::decode(header, body)
        .map_err(|error| invalid(format!("invalid header of a call: {error}; expected a CallHeader")))?;
    match Refused::of_method(&call.method) {
        // No warning, since nothing here lasts longer than a call and could limit them. The metric counts each refusal.
        Some(refused) => Err(refused.outcome(&"a bus", &call, false)),
        None => Ok(call),
    }
}

fn encode(answer: u64, number: u64, message: Option<Bytes>, outcome: Option<Outcome>) -> Bytes {
    let found = message.as_ref().map_or(0, Bytes::len);
    let too_large = || Fault::ReplyTooLarge { found: found as u64, max: MAX_MESSAGE as u64 };
    let (message, outcome) = match found > MAX_MESSAGE {
        true => (None, Some(too_large().into())),
        false => (message, outcome),
    };
    let closing = outcome.map(|outcome| outcome.encode_within(MAX_CLOSING));
    pb::BusPart { answer, number, message, closing }.encode_to_vec().into()
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use futures_util::stream;

    use super::super::{replies, request};
    use super::*;
    use crate::call::MethodPath;

    /// Answers with a stream that never ends after its first message, and counts its calls.
    #[derive(Clone, Default)]
    struct Endless(Arc<AtomicUsize>);

    #[async_trait]
    impl Relay for Endless {
        async fn relay(&self, call: Call) -> Result<Replies, Fault> {
            self.0.fetch_add(1, Ordering::SeqCst);
            if call.body.is_empty() {
                std::future::pending::<()>().await;
            }
            let first = stream::iter([Reply::Message(call.body)]);
            Ok(Replies::stream(futures_util::StreamExt::chain(first, stream::pending())))
        }
    }

    fn call(method: &str, body: &'static str) -> Call {
        let (node, driver) = ("n".parse().unwrap(), "d".parse().unwrap());
        Call::new(CallId::new(), node, driver, MethodPath::new(method).unwrap(), body.into())
    }

    async fn answer(request: Bytes) -> (usize, Outcome) {
        let (relay, mut sent) = (Endless::default(), Vec::new());
        let send = |part| {
            sent.push(Ok(part));
            std::future::ready(Ok::<(), Infallible>(()))
        };
        serve(&relay, request, std::future::pending(), send).await.unwrap();
        let outcome = match replies(stream::iter(sent), || ()).await {
            Ok(answer) => answer.collect().await.1,
            Err(fault) => fault.into(),
        };
        (relay.0.load(Ordering::SeqCst), outcome)
    }

    #[tokio::test]
    async fn a_request_that_is_no_call_gets_a_clear_answer() {
        let bad = pb::BusRequest { header: Bytes::from_static(b"\x0a\x01x"), body: Bytes::new() };
        for (request, expected) in [
            (Bytes::from_static(b"\xff"), "the request is not a protobuf BusRequest"),
            (bad.encode_to_vec().into(), "call id has 1 bytes; expected 16"),
            (Bytes::new(), "call id has 0 bytes; expected 16"),
        ] {
            let (calls, outcome) = answer(request).await;
            assert_eq!((calls, outcome.fault().unwrap().kind()), (0, "protocol"));
            assert!(outcome.message.contains(expected), "{}", outcome.message);
        }
    }

    #[tokio::test]
    async fn only_a_caller_on_the_node_may_mount() {
        let stage = request(&call("/csi.v1.Node/NodeStageVolume", "x")).unwrap();
        let (calls, outcome) = answer(stage).await;
        assert_eq!((calls, outcome.fault().unwrap().kind()), (0, "forbidden"));
        let (calls, outcome) = answer(request(&call("/vendor.Admin/Run", "x")).unwrap()).await;
        assert_eq!((calls, outcome.code), (0, csi_proto::Code::UNIMPLEMENTED));
    }

    #[tokio::test]
    async fn nothing_is_sent_after_the_caller_has_left() {
        for (body, expected) in [("", 0), ("x", 1)] {
            let relay = Endless::default();
            let request = request(&call("/csi.v1.SnapshotMetadata/GetMetadataDelta", body)).unwrap();
            let (leave, left) = tokio::sync::oneshot::channel::<()>();
            let mut sent = 0;
            let mut leave = Some(leave);
            if body.is_empty() {
                leave = None;
            }
            let send = |_| {
                sent += 1;
                leave = None;
                std::future::ready(Ok::<(), Infallible>(()))
            };
            serve(&relay, request, async { drop(left.await) }, send).await.unwrap();
            assert_eq!((sent, relay.0.load(Ordering::SeqCst)), (expected, 1));
        }
    }

    #[tokio::test]
    async fn an_error_of_the_bus_ends_the_answer() {
        let request = request(&call("/csi.v1.SnapshotMetadata/GetMetadataDelta", "x")).unwrap();
        let relay = Endless::default();
        let sent = serve(&relay, request, std::future::pending(), async |_| Err::<(), _>("full")).await;
        assert_eq!(sent, Err("full"));
    }

    #[tokio::test]
    async fn a_request_or_message_that_is_too_large_is_reported() {
        let mut large = call("/csi.v1.Controller/CreateVolume", "");
        large.body = vec![0; MAX_REQUEST + 1].into();
        let large = pb::BusRequest { header: large.encode_header(), body: large.body };
        let (calls, outcome) = answer(large.encode_to_vec().into()).await;
        assert_eq!((calls, outcome.fault().unwrap().kind()), (0, "frame_too_large"));
        let message = Bytes::from(vec![0; MAX_MESSAGE + 1]);
        let part = encode(1, 0, Some(message), Some(Outcome::ok()));
        let found = replies(stream::iter([Ok(part)]), || ()).await.unwrap_err();
        assert_eq!(found.kind(), "reply_too_large");
    }
}
