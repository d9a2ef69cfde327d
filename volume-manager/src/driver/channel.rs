//! A call over a connection to a driver.

use std::time::Duration;

use csi_proto::grpc::{self, Connection, UnaryError};
use csi_proto::{Delivery, Method};
use prost::Message;
use tokio::time::timeout;

use super::call_error::CallError;
use super::strip::Stripper;

/// The most bytes of a driver's message that are kept.
const MAX_MESSAGE: usize = 4096;

/// The most bytes of any other reason that are kept.
const MAX_REASON: usize = 1024;

/// What one call may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// From the sending to the end of the answer.
    pub(super) bound: Duration,
    /// In bytes.
    pub(super) max_answer: usize,
}

/// Makes a call that ends at its deadline.
pub(super) async fn call<Q: Message, A: Message + Default>(
    connection: &Connection,
    method: Method,
    request: Q,
    limits: Limits,
    stripper: &Stripper<'_>,
) -> Result<A, CallError> {
    let Limits { bound, max_answer } = limits;
    let call = connection.unary(method.path(), request, bound, max_answer);
    // Until then it may have waited for other calls to end, which is not to be told from one that the driver works on.
    let ended = timeout(bound, call).await.map_err(|_| CallError::Late { method, bound })?;
    ended.map_err(|error| {
        let delivery = error.delivery();
        let reason = stripper.strip(&error.to_string(), MAX_REASON);
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
