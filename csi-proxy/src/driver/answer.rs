//! Reading a driver's answer, and telling what the driver said from what happened to the connection.

use bytes::Bytes;
use csi_proto::DriverName;
use h2::{Reason, RecvStream};
use http::header::CONTENT_TYPE;
use http::{Response, StatusCode};

use crate::fault::Fault;
use crate::grpc::body::{Messages, ReadError};
use crate::grpc::fields::{is_grpc, read_outcome};
use crate::grpc::message::MessageError;
use crate::outcome::Outcome;
use crate::replies::Reply;

/// A call has no answer.
#[derive(Debug)]
pub(super) enum Failure {
    /// The driver provably never saw it.
    NotSent(Fault),
    /// The driver may have seen it.
    Uncertain(Fault),
}

/// What an HTTP/2 error on a call means.
pub(super) fn failure_of(driver: &DriverName, error: &h2::Error) -> Failure {
    let (driver, reason) = (driver.clone(), error.to_string());
    // Both say in so many words that the stream was not processed (RFC 9113, sections 6.8 and 8.7).
    let refused = error.is_reset() && error.reason() == Some(Reason::REFUSED_STREAM);
    let shut_down = error.is_go_away() && error.is_remote() && error.reason() == Some(Reason::NO_ERROR);
    if refused || shut_down {
        return Failure::NotSent(Fault::DriverGone { driver, reason });
    }
    let of_the_protocol = matches!(
        error.reason(),
        Some(
            Reason::PROTOCOL_ERROR
                | Reason::FRAME_SIZE_ERROR
                | Reason::COMPRESSION_ERROR
                | Reason::FLOW_CONTROL_ERROR
                | Reason::STREAM_CLOSED
                | Reason::HTTP_1_1_REQUIRED
                | Reason::INTERNAL_ERROR
        )
    );
    Failure::Uncertain(if of_the_protocol {
        Fault::DriverProtocol { driver, reason }
    } else {
        Fault::DriverGone { driver, reason }
    })
}

/// An answer whose head has come.
#[derive(Debug)]
pub(super) struct Answer {
    driver: DriverName,
    state: State,
    /// The outcome in the head, for an end without one.
    head: Option<Outcome>,
}

#[derive(Debug)]
enum State {
    /// The head was the whole answer.
    TrailersOnly,
    Messages(Messages),
}

impl Answer {
    pub(super) fn begin(
        driver: DriverName,
        response: Response<RecvStream>,
        max_reply: usize,
    ) -> Result<Self, Fault> {
        let (head, stream) = response.into_parts();
        if head.status != StatusCode::OK {
            let reason = format!("HTTP status {}; expected 200", head.status.as_u16());
            return Err(Fault::DriverProtocol { driver, reason });
        }
        let outcome = read_outcome(&head.headers);
        let says_so = outcome.is_some() && !head.headers.contains_key(CONTENT_TYPE);
        if !is_grpc(&head.headers) && !says_so {
            let reason = "the content type is not application/grpc".to_owned();
            return Err(Fault::DriverProtocol { driver, reason });
        }
        let state = if stream.is_end_stream() {
            State::TrailersOnly
        } else {
            State::Messages(Messages::new(stream, max_reply))
        };
        Ok(Self { driver, state, head: outcome })
    }

    /// The next part.
    pub(super) async fn next(&mut self) -> Result<Reply, Fault> {
        let outcome = match &mut self.state {
            State::TrailersOnly => None,
            State::Messages(messages) => match messages.next().await {
                Ok(Some(message)) => return Ok(Reply::Message(message)),
                Ok(None) => {
                    let trailers = messages.trailers().await;
                    trailers
                        .map_err(|error| self.fault(ReadError::Http(error)))?
                        .as_ref()
                        .and_then(read_outcome)
                }
                Err(error) => return Err(self.fault(error)),
            },
        };
        let outcome = outcome.or_else(|| self.head.take());
        outcome.map(Reply::End).ok_or_else(|| self.protocol("the answer ends without a grpc-status"))
    }

    /// The whole of a unary answer.
    pub(super) async fn whole(mut self) -> Result<(Option<Bytes>, Outcome), Fault> {
        let message = match self.next().await? {
            Reply::End(outcome) if outcome.is_ok() => {
                return Err(self.protocol("the answer is OK but holds no message"));
            }
            Reply::End(outcome) => return Ok((None, outcome)),
            Reply::Message(message) => message,
        };
        match self.next().await? {
            Reply::End(outcome) => Ok((Some(message), outcome)),
            Reply::Message(_) => Err(self.protocol("a unary method was answered with two messages")),
        }
    }

    fn fault(&self, error: ReadError) -> Fault {
        match error {
            ReadError::Message(MessageError::TooLarge { found, max }) => {
                Fault::ReplyTooLarge { found: found as u64, max: max as u64 }
            }
            ReadError::Message(error) => self.protocol(error),
            ReadError::Http(error) => match failure_of(&self.driver, &error) {
                Failure::NotSent(fault) | Failure::Uncertain(fault) => fault,
            },
        }
    }

    fn protocol(&self, reason: impl ToString) -> Fault {
        Fault::DriverProtocol { driver: self.driver.clone(), reason: reason.to_string() }
    }
}
