//! Streams of block metadata, which continue after a loss from the last offset received.

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use futures_util::stream;
use prost::Message as _;

use super::sending::Sending;
use crate::call::{Fault, Replies, Reply};
use crate::relay::Relay;

/// Whether the answer can be continued, by `starting_offset`.
const fn continues(method: Method) -> bool {
    matches!(method, Method::GetMetadataAllocated | Method::GetMetadataDelta)
}

/// The answer in parts, with what follows after each loss if it can be continued.
pub(super) fn continued<R: Relay + 'static>(sending: Sending<R>, replies: Replies) -> Replies {
    let method = sending.method.filter(|method| continues(*method));
    let request = sending.call.body.clone();
    let reading = Reading { sending, method, request, replies, offset: None };
    Replies::stream(stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading?;
        match reading.next().await {
            message @ Reply::Message(_) => Some((message, Some(reading))),
            end @ Reply::End(_) => Some((end, None)),
        }
    }))
}

struct Reading<R> {
    sending: Sending<R>,
    /// `None` if the answer cannot be continued.
    method: Option<Method>,
    request: Bytes,
    replies: Replies,
    /// Where what was received ends, in bytes of the volume; `None` before anything was.
    offset: Option<i64>,
}

impl<R: Relay> Reading<R> {
    async fn next(&mut self) -> Reply {
        loop {
            let fault = match self.replies.next().await {
                Some(Reply::Message(message)) => {
                    if let Some(offset) = self.method.and_then(|_| end_of(&message)) {
                        self.offset = Some(offset);
                        self.sending.progressed();
                    }
                    return Reply::Message(message);
                }
                Some(Reply::End(outcome)) => match outcome.fault() {
                    Some(fault) => fault.clone(),
                    None => {
                        self.sending.open.answered();
                        return Reply::End(outcome);
                    }
                },
                None => Fault::ServiceLost { what: "the answer".to_owned() },
            };
            if let Err(fault) = self.go_on(fault).await {
                return Reply::End(fault.into());
            }
        }
    }

    /// Sends for the rest.
    async fn go_on(&mut self, fault: Fault) -> Result<(), Fault> {
        let (Some(method), Some(offset)) = (self.method, self.offset) else { return Err(fault) };
        self.sending.lost(fault, starting_at(method, &self.request, offset))?;
        self.replies = self.sending.send().await?;
        Ok(())
    }
}

/// Where the ranges of a message end, if it has any. The answers of both methods have the same fields.
fn end_of(message: &Bytes) -> Option<i64> {
    let ranges = csi::GetMetadataAllocatedResponse::decode(message.clone()).ok()?.block_metadata;
    ranges.last().map(|range| range.byte_offset.saturating_add(range.size_bytes))
}

/// The request for the rest: the same bytes, and a field behind them that counts in the place of the one that is there.
fn starting_at(method: Method, body: &Bytes, starting_offset: i64) -> Bytes {
    let more = match method {
        Method::GetMetadataAllocated => {
            csi::GetMetadataAllocatedRequest { starting_offset, ..Default::default() }.encode_to_vec()
        }
        _ => csi::GetMetadataDeltaRequest { starting_offset, ..Default::default() }.encode_to_vec(),
    };
    [body, &*more].concat().into()
}

#[cfg(test)]
mod tests;
