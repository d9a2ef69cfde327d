//! Calls with arbitrary bytes as the body, which typed clients cannot send.

use std::path::Path;

use bytes::{Buf, BufMut, Bytes};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::{Request, Status};

use crate::csi;

/// A codec that passes messages unchanged.
#[derive(Debug, Clone, Copy, Default)]
#[allow(clippy::exhaustive_structs, reason = "it has no fields")]
pub struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;
    fn encoder(&mut self) -> Self {
        Self
    }
    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;
    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// Makes a unary call of any method with any body, and returns the body of the answer.
///
/// # Errors
/// Returns the status of the call if it is not OK.
///
/// # Panics
/// If `path` is not a method path.
pub async fn call(socket: &Path, path: &str, body: impl Into<Bytes>) -> Result<Bytes, Status> {
    let mut grpc = tonic::client::Grpc::new(csi::channel(socket)).max_decoding_message_size(64 << 20);
    grpc.ready().await.map_err(|cause| Status::unavailable(cause.to_string()))?;
    let path = path.parse().expect("a method path");
    Ok(grpc.unary(Request::new(body.into()), path, Raw).await?.into_inner())
}
