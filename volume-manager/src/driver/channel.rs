//! One unary call to a driver, with secrets stripped from the driver's messages.

use std::time::Duration;

use csi_proto::grpc::{self, Connection, UnaryError};
use csi_proto::{Delivery, Method};
use prost::Message;
use tokio::time::timeout;

use super::call_error::CallError;
use crate::excerpt::{chain, excerpt};

/// The size in bytes at which a driver's message is cut.
const MAX_MESSAGE: usize = 4096;

/// The size in bytes at which any other reason is cut.
const MAX_REASON: usize = 1024;

/// The timeout of a call, the same as kubelet's. It ends the wait, not the call: the driver receives the deadline in
/// `grpc-timeout`, and may continue.
pub(super) const CALL_TIMEOUT: Duration = Duration::from_secs(120);

/// The maximum size of one answer in bytes.
const MAX_ANSWER: usize = 1024 * 1024;

/// Makes a call that ends at its deadline.
pub(super) async fn call<Q: Message, A: Message + Default>(
    connection: &Connection,
    method: Method,
    request: Q,
    bound: Duration,
    stripper: &Stripper<'_>,
) -> Result<A, CallError> {
    let call = connection.unary(method.path(), request, bound, MAX_ANSWER);
    // The call may have waited for a free HTTP/2 stream the whole time, which is not distinguishable from a running call.
    let ended = timeout(bound, call).await.map_err(|_| CallError::Timeout { method, bound })?;
    ended.map_err(|error| {
        let delivery = error.delivery();
        let reason = stripper.strip(&chain(&error), MAX_REASON);
        match error {
            UnaryError::Status(status) => CallError::Status {
                method,
                code: i32::try_from(status.code.number()).unwrap_or(i32::MAX),
                message: stripper.strip(&status.message, MAX_MESSAGE),
            },
            _ if delivery == Delivery::NotSent => CallError::NotSent { method, reason },
            UnaryError::Decode(_)
            | UnaryError::Call(
                grpc::CallError::Message(_) | grpc::CallError::NoMessage | grpc::CallError::TwoMessages,
            ) => CallError::Answer { method, reason },
            _ => CallError::Broken { method, reason },
        }
    })
}

/// Removes sensitive values from a driver's messages.
pub(super) struct Stripper<'a>(Vec<&'a str>);

impl<'a> Stripper<'a> {
    /// The minimum size of a value in bytes to be stripped: a shorter one would match parts of ordinary words.
    const MIN_BYTES: usize = 4;

    pub(super) fn new(sensitive: impl IntoIterator<Item = &'a str>) -> Self {
        let mut texts: Vec<&str> =
            sensitive.into_iter().map(str::trim).filter(|text| text.len() >= Self::MIN_BYTES).collect();
        // Strips the longest first, so that a value that contains another is stripped as a whole.
        texts.sort_unstable_by_key(|text| std::cmp::Reverse(text.len()));
        Self(texts)
    }

    /// Returns the text without the sensitive values, on one line, cut at `max` bytes.
    pub(super) fn strip(&self, text: &str, max: usize) -> String {
        let mut text = text.to_owned();
        for sensitive in &self.0 {
            if text.contains(sensitive) {
                text = text.replace(sensitive, "***stripped***");
            }
        }
        excerpt(&text, max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strips_sensitive_values_before_cutting() {
        let stripper = Stripper::new(["hunter2", "hunter2-and-more", "ab"]);
        let text = "mount -o password=hunter2-and-more,user=ab: bad\nhunter2";
        assert_eq!(stripper.strip(text, 200), "mount -o password=***stripped***,user=ab: bad ***stripped***");
        for max in 0..text.len() {
            let cut = stripper.strip(text, max);
            assert!(!cut.contains("hunt") && cut.len() <= max + '…'.len_utf8(), "{cut}");
        }
    }
}
