//! Streams of block metadata, which resume after a loss from the last offset received.

use bytes::Bytes;
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use futures_util::stream;
use prost::Message as _;

use super::sending::Sending;
use crate::call::protobuf::last_field;
use crate::call::{Fault, Replies, Reply};
use crate::relay::Relay;

/// The number of the field with the ranges, in the responses of both methods.
const BLOCK_METADATA: u32 = 3;

/// Whether the answer can resume at a `starting_offset`.
const fn continues(method: Method) -> bool {
    matches!(method, Method::GetMetadataAllocated | Method::GetMetadataDelta)
}

/// The answer in parts, resumed after each loss if possible.
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
    /// `None` if the answer cannot resume.
    method: Option<Method>,
    request: Bytes,
    replies: Replies,
    /// The end of the received ranges, in bytes of the volume; `None` before the first.
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
            if let Err(fault) = self.resume(fault).await {
                return Reply::End(fault.into());
            }
        }
    }

    /// Requests the rest of the stream after a loss.
    async fn resume(&mut self, fault: Fault) -> Result<(), Fault> {
        let (Some(method), Some(offset)) = (self.method, self.offset) else { return Err(fault) };
        self.sending.lost(fault, starting_at(method, &self.request, offset))?;
        self.replies = self.sending.send().await?;
        Ok(())
    }
}

/// The end of the last range of a message, if any.
fn end_of(message: &Bytes) -> Option<i64> {
    let last = csi::BlockMetadata::decode(last_field(message, BLOCK_METADATA)?.bytes()?).ok()?;
    Some(last.byte_offset.saturating_add(last.size_bytes))
}

/// The request for the rest: the same bytes, with an appended field that overrides the existing one.
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
