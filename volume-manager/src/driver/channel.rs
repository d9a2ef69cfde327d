//! One lasting connection to a driver.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::Method;
use h2::client::SendRequest;
use prost::Message;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio::time::timeout;

use super::call_error::CallError;
use super::process::Process;
use super::strip::Stripper;
use super::unary::{Failure, unary};
use crate::registry::DriverEndpoint;

/// The most bytes of the headers of one answer, its message included.
const MAX_HEADERS: u32 = 1024 * 1024;

/// The most bytes of a driver's message that are kept.
const MAX_MESSAGE: usize = 4096;

/// The most bytes of any other reason that are kept.
const MAX_REASON: usize = 1024;

/// A connection, with the task that drives it. Dropped, it hangs up.
#[derive(Debug)]
pub(super) struct Channel {
    requests: SendRequest<Bytes>,
    closed: watch::Sender<bool>,
    task: AbortHandle,
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum DialError {
    Io(io::Error),
    Http2(h2::Error),
    Late,
}

impl Channel {
    /// Dials, and says who listens there.
    pub(super) async fn dial(
        endpoint: &DriverEndpoint,
        bound: Duration,
    ) -> Result<(Self, Option<Process>), DialError> {
        let dial = async {
            let stream = UnixStream::connect(endpoint.path()).await.map_err(DialError::Io)?;
            let process = stream.peer_cred().ok().and_then(|peer| peer.pid()).and_then(Process::find);
            let mut builder = h2::client::Builder::new();
            builder.max_header_list_size(MAX_HEADERS).enable_push(false);
            let (requests, connection) = builder.handshake(stream).await.map_err(DialError::Http2)?;
            Ok((requests, connection, process))
        };
        let (requests, connection, process) = timeout(bound, dial).await.map_err(|_| DialError::Late)??;
        let closed = watch::Sender::new(false);
        let closing = closed.clone();
        let task = tokio::spawn(async move {
            // Its calls hear of an error themselves.
            let _ = connection.await;
            closing.send_replace(true);
        });
        Ok((Self { requests, closed, task: task.abort_handle() }, process))
    }

    /// Whether it takes no more calls. Those that are under way may still end well.
    pub(super) fn is_closed(&self) -> bool {
        *self.closed.borrow()
    }

    /// Waits until it takes no more calls.
    pub(super) async fn closed(&self) {
        // It cannot fail: the sender is here.
        let _ = self.closed.subscribe().wait_for(|closed| *closed).await;
    }

    /// Makes a call that ends at its deadline.
    pub(super) async fn call<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: Q,
        limits: Limits,
        stripper: &Stripper<'_>,
    ) -> Result<A, CallError> {
        let Limits { bound, max_answer } = limits;
        let call = unary(self.requests.clone(), method, request, bound, max_answer);
        let ended = timeout(bound, call).await;
        let reason = |text: &str| stripper.strip(text, MAX_REASON);
        match ended {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Failure::Closed(text))) => {
                // A driver that is about to leave says so, and keeps the connection for the calls that are under way.
                self.closed.send_replace(true);
                Err(CallError::NotSent { method, reason: reason(&text) })
            }
            Ok(Err(Failure::NotSent(text))) => Err(CallError::NotSent { method, reason: reason(&text) }),
            Ok(Err(Failure::Broken(text))) => Err(CallError::Broken { method, reason: reason(&text) }),
            Ok(Err(Failure::Answer(text))) => Err(CallError::Answer { method, reason: reason(&text) }),
            Ok(Err(Failure::Status { code, message })) => {
                Err(CallError::Status { method, code, message: stripper.strip(&message, MAX_MESSAGE) })
            }
            // It may still have been in line behind other calls. That is not to be told from one that the driver works on.
            Err(_) => Err(CallError::Late { method, bound }),
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What one call may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// From the sending to the end of the answer.
    pub(super) bound: Duration,
    /// In bytes.
    pub(super) max_answer: usize,
}
