//! Header fields of requests and trailers.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};

use super::status;
use crate::call::{AllowList, Metadata};
use crate::code::Code;
use crate::outcome::Outcome;

pub(crate) const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
pub(crate) const GRPC_MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
pub(crate) const GRPC_DETAILS: HeaderName = HeaderName::from_static("grpc-status-details-bin");
pub(crate) const GRPC_TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
pub(crate) const APPLICATION_GRPC: HeaderValue = HeaderValue::from_static("application/grpc");

/// Whether the content is gRPC with protobuf.
pub(crate) fn is_grpc(headers: &HeaderMap) -> bool {
    let value = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let rest = value.and_then(|value| value.strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"+proto") || rest.starts_with(b";"))
}

/// Writes an outcome as trailers.
pub(crate) fn write_outcome(outcome: &Outcome, trailers: &mut HeaderMap) {
    trailers.insert(GRPC_STATUS, HeaderValue::from(outcome.code.number()));
    if !outcome.message.is_empty() {
        // Percent-encoding leaves printable ASCII only, so this always holds.
        if let Ok(value) = HeaderValue::from_str(&status::encode_message(&outcome.message)) {
            trailers.insert(GRPC_MESSAGE, value);
        }
    }
    if !outcome.details.is_empty()
        && let Ok(value) = HeaderValue::from_str(&status::encode_binary(&outcome.details))
    {
        trailers.insert(GRPC_DETAILS, value);
    }
    write_metadata(&outcome.trailers, trailers);
}

/// Writes metadata as header fields.
pub(crate) fn write_metadata(metadata: &Metadata, headers: &mut HeaderMap) {
    for (name, value) in metadata.iter() {
        // `Metadata` accepts only what can stand here.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_maybe_shared(value.clone()))
        {
            headers.append(name, value);
        }
    }
}

/// Reads a driver's outcome out of trailers; `None` if there is no `grpc-status` that is a number.
pub(crate) fn read_outcome(trailers: &HeaderMap) -> Option<Outcome> {
    let code = trailers.get(GRPC_STATUS)?.to_str().ok()?.parse().ok()?;
    let message =
        trailers.get(GRPC_MESSAGE).map(|value| status::decode_message(value.as_bytes())).unwrap_or_default();
    let details = trailers.get(GRPC_DETAILS).and_then(|value| status::decode_binary(value.as_bytes()));
    let mut others = Metadata::default();
    for (name, value) in trailers {
        // What belongs to gRPC itself, or goes beyond the bound, stays behind.
        let _ = others.insert(name.as_str(), Bytes::copy_from_slice(value.as_bytes()));
    }
    Some(
        Outcome::from_driver(Code::new(code), message)
            .with_details(details.unwrap_or_default())
            .with_trailers(others),
    )
}

/// The request headers that travel on, as far as they fit.
pub(crate) fn read_metadata(headers: &HeaderMap, allowed: &AllowList) -> Metadata {
    let mut metadata = Metadata::default();
    for (name, value) in headers.iter().filter(|(name, _)| allowed.allows(name.as_str())) {
        if let Err(error) = metadata.insert(name.as_str(), Bytes::copy_from_slice(value.as_bytes())) {
            tracing::debug!(%error, "a request header does not travel");
        }
    }
    metadata
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_survives_as_trailers() {
        let mut extra = Metadata::default();
        extra.insert("x-vendor", "v").unwrap();
        extra.insert("x-vendor-bin", "AAEC").unwrap();
        for number in (0..=16).chain([99]) {
            let outcome = Outcome::from_driver(Code::new(number), "größe %\n盤".repeat(100))
                .with_details(vec![0, 1, 255])
                .with_trailers(extra.clone());
            let mut trailers = HeaderMap::new();
            write_outcome(&outcome, &mut trailers);
            assert_eq!(read_outcome(&trailers), Some(outcome));
        }
    }

    #[test]
    fn trailers_without_a_numeric_status_are_no_outcome() {
        let mut trailers = HeaderMap::new();
        assert_eq!(read_outcome(&trailers), None);
        trailers.insert(GRPC_STATUS, HeaderValue::from_static("fine"));
        assert_eq!(read_outcome(&trailers), None);
    }

    #[test]
    fn only_the_content_types_of_grpc_with_protobuf_pass() {
        let table = [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc;charset=utf-8", true),
            ("application/grpc+json", false),
            ("application/grpc-web", false),
            ("application/json", false),
        ];
        for (value, expected) in table {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!(is_grpc(&headers), expected, "{value}");
        }
    }
}
