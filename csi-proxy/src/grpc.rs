//! Metadata and outcomes as gRPC header fields. Framing, sockets and the client are in csi-proto.

use std::future::poll_fn;
use std::task::{Poll, ready};

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use bytes::Bytes;
use csi_proto::grpc::{Framed, GRPC_MESSAGE, GRPC_STATUS, Status, encode_message};
use h2::SendStream;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::call::{Metadata, Outcome};

const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
/// Accepts base64 with and without padding; gRPC writes none.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_encode_padding(false)
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Writes an outcome as trailers.
pub(crate) fn write_outcome(outcome: &Outcome, trailers: &mut HeaderMap) {
    trailers.insert(GRPC_STATUS, HeaderValue::from(outcome.code.number()));
    if !outcome.message.is_empty() {
        // Percent-encoding leaves printable ASCII only, so this never fails.
        if let Ok(value) = HeaderValue::from_str(&encode_message(&outcome.message)) {
            trailers.insert(GRPC_MESSAGE, value);
        }
    }
    if !outcome.details.is_empty()
        && let Ok(value) = HeaderValue::from_str(&BASE64.encode(&outcome.details))
    {
        trailers.insert(GRPC_DETAILS, value);
    }
    write_metadata(&outcome.trailers, trailers);
}

/// Writes metadata as header fields.
pub(crate) fn write_metadata(metadata: &Metadata, headers: &mut HeaderMap) {
    for (name, value) in metadata.iter() {
        // `Metadata` holds only valid header names and values, so this never fails.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        {
            headers.append(name, value);
        }
    }
}

/// Converts the status of a driver to an outcome.
pub(crate) fn read_outcome(status: Status) -> Outcome {
    let Status { code, message, fields, .. } = status;
    let details = fields.get(GRPC_DETAILS).and_then(|value| BASE64.decode(value.as_bytes()).ok());
    let mut others = Metadata::default();
    for (name, value) in &fields {
        // Skips header fields of gRPC itself and those that exceed the limit.
        let _ = others.insert(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
    }
    Outcome::from_driver(code, message).with_details(details.unwrap_or_default()).with_trailers(others)
}

/// The request headers that are forwarded with a call: the trace context (W3C). The endpoint drops all others.
const FORWARDED: [&str; 3] = ["traceparent", "tracestate", "baggage"];

/// Reads the request headers that are forwarded, as many as fit.
pub(crate) fn read_metadata(headers: &HeaderMap) -> Metadata {
    let mut metadata = Metadata::default();
    for (name, value) in headers.iter().filter(|(name, _)| FORWARDED.contains(&name.as_str())) {
        if let Err(error) = metadata.insert(name.as_str(), Bytes::copy_from_slice(value.as_bytes())) {
            tracing::debug!(%error, "request header not forwarded");
        }
    }
    metadata
}

/// Waits until the data sent before fits into the peer's window and the send buffer, so that a slow reader slows its
/// sender instead of growing our memory.
pub(crate) async fn reserve_capacity(stream: &mut SendStream<Framed>) -> Result<(), h2::Error> {
    // h2 grants capacity only after all buffered data: one granted byte means that the buffer is empty.
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

#[cfg(test)]
mod tests {
    use super::*;
    use csi_proto::Code;

    #[test]
    fn outcome_round_trips_through_trailers() {
        let mut extra = Metadata::default();
        extra.insert("x-vendor", "v").unwrap();
        extra.insert("x-vendor-bin", "AAEC").unwrap();
        for number in (0..=16).chain([99]) {
            let outcome = Outcome::from_driver(Code::new(number), "größe %\n盤".repeat(100))
                .with_details(vec![0, 1, 255])
                .with_trailers(extra.clone());
            let mut trailers = HeaderMap::new();
            write_outcome(&outcome, &mut trailers);
            assert_eq!(read_outcome(Status::read(trailers).unwrap()), outcome);
        }
    }

    #[test]
    fn reads_details_with_or_without_padding() {
        for (value, details) in [("AAE=", &[0, 1][..]), ("AAE", &[0, 1]), ("*", &[])] {
            let mut trailers = HeaderMap::new();
            trailers.insert(GRPC_STATUS, HeaderValue::from_static("5"));
            trailers.insert(GRPC_DETAILS, HeaderValue::from_static(value));
            assert_eq!(read_outcome(Status::read(trailers).unwrap()).details, details, "{value}");
        }
    }
}
