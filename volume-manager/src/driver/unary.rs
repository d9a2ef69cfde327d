//! One gRPC call over an HTTP/2 connection that is there.
//!
//! Written against HTTP/2 itself, since two things must be known of each failure that a gRPC client does not tell:
//! whether the call was sent, and whether the code is the driver's own.

use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use csi_proto::Method;
use h2::client::SendRequest;
use http::header::{CONTENT_TYPE, TE};
use http::{HeaderMap, Request, StatusCode, Uri};
use prost::Message;

/// The authority that the Kubernetes components send over unix sockets.
const AUTHORITY: &str = "localhost";

/// Bytes before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// How a call failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The driver did not see the call, and will see no other one over this connection.
    Closed(String),
    /// The driver did not see the call.
    NotSent(String),
    /// The answer is not whole.
    Broken(String),
    /// The answer is OK, and cannot be read.
    Answer(String),
    /// The answer is an error of the driver. The message is as the driver sent it.
    Status { code: i32, message: String },
}

/// Makes the call. More calls than the driver takes at once wait in line in the connection. Dropped, it resets the stream.
pub(super) async fn unary<Q: Message, A: Message + Default>(
    requests: SendRequest<Bytes>,
    method: Method,
    request: Q,
    bound: Duration,
    max_answer: usize,
) -> Result<A, Failure> {
    let head = head(method, bound).map_err(|error| Failure::NotSent(error.to_string()))?;
    let body = frame(&request)?;
    // Secrets go as soon as their copy is on its way.
    drop(request);
    let mut requests = requests.ready().await.map_err(|error| Failure::Closed(error.to_string()))?;
    let (response, mut upload) =
        requests.send_request(head, false).map_err(|error| Failure::Closed(error.to_string()))?;
    upload.send_data(body, true).map_err(|error| broken(&error))?;
    let (head, mut stream) = response.await.map_err(|error| broken(&error))?.into_parts();
    if head.status != StatusCode::OK {
        return Err(Failure::Broken(format!("the answer has HTTP status {}", head.status.as_u16())));
    }
    if let Some(status) = status(&head.headers) {
        // An OK in the header means that there is no message.
        return status.and_then(|()| Err(Failure::Answer("it is OK without a message".into())));
    }
    let mut body = BytesMut::new();
    while let Some(chunk) = stream.data().await {
        let chunk = chunk.map_err(|error| broken(&error))?;
        let found = body.len() + chunk.len();
        if found > max_answer + PREFIX {
            return Err(Failure::Answer(format!(
                "it has {found} bytes or more; at most {max_answer} are read"
            )));
        }
        body.extend_from_slice(&chunk);
        stream.flow_control().release_capacity(chunk.len()).map_err(|error| broken(&error))?;
    }
    let trailers = stream.trailers().await.map_err(|error| broken(&error))?.unwrap_or_default();
    match status(&trailers) {
        Some(Ok(())) => message(&body),
        Some(Err(failure)) => Err(failure),
        None => Err(Failure::Broken("the answer ends without a grpc-status".into())),
    }
}

fn head(method: Method, bound: Duration) -> Result<Request<()>, http::Error> {
    let uri = Uri::builder().scheme("http").authority(AUTHORITY).path_and_query(method.path()).build()?;
    Request::post(uri)
        .header(TE, "trailers")
        .header(CONTENT_TYPE, "application/grpc")
        .header("grpc-timeout", format!("{}m", bound.as_millis()))
        .body(())
}

fn frame(request: &impl Message) -> Result<Bytes, Failure> {
    let length = request.encoded_len();
    let prefix = u32::try_from(length).map_err(|_| {
        Failure::NotSent(format!("the request has {length} bytes; at most 4 GiB can be sent"))
    })?;
    let mut body = BytesMut::with_capacity(PREFIX + length);
    body.put_u8(0);
    body.put_u32(prefix);
    request.encode(&mut body).map_err(|error| Failure::NotSent(error.to_string()))?;
    Ok(body.freeze())
}

/// The driver's own status, if it is there and is a number.
fn status(fields: &HeaderMap) -> Option<Result<(), Failure>> {
    let code: i32 = fields.get("grpc-status")?.to_str().ok()?.trim().parse().ok()?;
    if code == 0 {
        return Some(Ok(()));
    }
    let message = fields.get("grpc-message").map(|text| percent_decoded(text.as_bytes())).unwrap_or_default();
    Some(Err(Failure::Status { code, message }))
}

/// The one message of an answer.
fn message<A: Message + Default>(body: &[u8]) -> Result<A, Failure> {
    let unreadable = |what: &str| Failure::Answer(what.to_owned());
    let Some((mut prefix, message)) = body.split_at_checked(PREFIX) else {
        return Err(unreadable("it is OK without a message"));
    };
    if prefix.get_u8() != 0 {
        return Err(unreadable("it is compressed, which was not asked for"));
    }
    if u32::try_from(message.len()) != Ok(prefix.get_u32()) {
        return Err(unreadable("it is not one whole message"));
    }
    A::decode(message).map_err(|error| Failure::Answer(error.to_string()))
}

fn broken(error: &h2::Error) -> Failure {
    // The one reason by which a server says that it has not touched the request (RFC 9113, section 8.7).
    if error.is_remote() && error.is_reset() && error.reason() == Some(h2::Reason::REFUSED_STREAM) {
        return Failure::NotSent("the driver refused to take the call".into());
    }
    Failure::Broken(error.to_string())
}

/// `grpc-message` in clear. What is no escape stays as it is.
fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, others)) = rest.split_first() {
        let digit = |at: usize| others.get(at).and_then(|byte| char::from(*byte).to_digit(16));
        let escaped = match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => u8::try_from(high * 16 + low).ok(),
            _ => None,
        };
        decoded.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &others[2..] } else { others };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_of_a_status_is_unescaped_and_never_fails() {
        for (text, decoded) in [
            ("a%20b%25", "a b%"),
            ("%", "%"),
            ("%2", "%2"),
            ("%zz%C3%A4", "%zzä"),
            ("%ff", "\u{fffd}"),
            ("", ""),
        ] {
            assert_eq!(percent_decoded(text.as_bytes()), decoded, "{text}");
        }
    }

    #[test]
    fn a_body_is_one_whole_message_and_nothing_else() {
        use csi_proto::csi::v1::ProbeResponse;
        assert!(message::<ProbeResponse>(&[0, 0, 0, 0, 0]).is_ok());
        let bad: [&[u8]; 6] = [
            &[],
            &[0, 0, 0, 0],
            &[0, 0, 0, 0, 1],
            &[0, 0, 0, 0, 0, 0],
            &[1, 0, 0, 0, 0],
            &[0, 0, 0, 0, 1, 0xff],
        ];
        for body in bad {
            assert!(matches!(message::<ProbeResponse>(body), Err(Failure::Answer(_))), "{body:?}");
        }
    }

    #[test]
    fn a_status_is_the_drivers_only_if_it_is_a_number() {
        let fields = |status: &'static str| {
            HeaderMap::from_iter([(
                http::HeaderName::from_static("grpc-status"),
                http::HeaderValue::from_static(status),
            )])
        };
        assert!(matches!(status(&fields("0")), Some(Ok(()))));
        assert!(matches!(status(&fields("14")), Some(Err(Failure::Status { code: 14, .. }))));
        assert!(status(&fields("UNAVAILABLE")).is_none() && status(&HeaderMap::new()).is_none());
    }
}
