//! Messages of one HTTP/2 stream.

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;

use super::message::{Deframer, MessageError};

/// Why reading stopped.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "the messages or the stream under them")]
pub enum ReadError {
    /// The messages cannot be read.
    Message(MessageError),
    /// The stream broke off.
    Http(h2::Error),
}

impl From<MessageError> for ReadError {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

impl From<h2::Error> for ReadError {
    fn from(error: h2::Error) -> Self {
        Self::Http(error)
    }
}

/// Reads messages; gives the sender new credit only for what has been taken in.
#[derive(Debug)]
pub struct Messages {
    stream: RecvStream,
    deframer: Deframer,
}

impl Messages {
    /// Reads a stream whose messages may have up to `max` bytes each.
    #[must_use]
    pub fn new(stream: RecvStream, max: usize) -> Self {
        Self { stream, deframer: Deframer::new(max) }
    }

    /// The next message; `None` at the end of the data.
    ///
    /// # Errors
    /// If the stream breaks off, or is not one of whole messages within the bound.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        loop {
            if let Some(message) = self.deframer.next()? {
                return Ok(Some(message));
            }
            match self.stream.data().await {
                Some(chunk) => {
                    let chunk = chunk?;
                    // Fails only for more than was received.
                    let _ = self.stream.flow_control().release_capacity(chunk.len());
                    self.deframer.push(chunk);
                }
                None => {
                    self.deframer.finish()?;
                    return Ok(None);
                }
            }
        }
    }

    /// The trailers, after the data.
    ///
    /// # Errors
    /// If the stream breaks off.
    pub async fn trailers(&mut self) -> Result<Option<HeaderMap>, h2::Error> {
        self.stream.trailers().await
    }
}
