//! Messages of one HTTP/2 stream.

use bytes::Bytes;
use h2::RecvStream;
use http::HeaderMap;

use super::message::{Deframer, MessageError};

/// Why reading failed.
#[derive(Debug)]
#[allow(clippy::exhaustive_enums, reason = "either the messages or their stream fail")]
pub enum ReadError {
    /// The messages cannot be read.
    Message(MessageError),
    /// The stream was interrupted.
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

/// Reads messages; releases flow control capacity only for consumed data.
#[derive(Debug)]
pub struct Messages {
    stream: RecvStream,
    deframer: Deframer,
}

impl Messages {
    /// Creates a reader of messages of up to `max` bytes each.
    #[must_use]
    pub fn new(stream: RecvStream, max: usize) -> Self {
        Self { stream, deframer: Deframer::new(max) }
    }

    /// The next message; `None` at the end of the data.
    ///
    /// # Errors
    /// If the stream is interrupted, or does not consist of complete messages within the limit.
    pub async fn next(&mut self) -> Result<Option<Bytes>, ReadError> {
        self.read_until(Deframer::next).await
    }

    /// The size of the next message in bytes, known before its bytes are read; `None` at the end of the data.
    ///
    /// # Errors
    /// As [`next`](Self::next).
    pub async fn announced(&mut self) -> Result<Option<usize>, ReadError> {
        self.read_until(Deframer::announced).await
    }

    /// Reads chunks until the deframer has what is wanted; `None` at the end of the data.
    async fn read_until<T>(
        &mut self,
        wanted: fn(&mut Deframer) -> Result<Option<T>, MessageError>,
    ) -> Result<Option<T>, ReadError> {
        loop {
            if let Some(found) = wanted(&mut self.deframer)? {
                return Ok(Some(found));
            }
            let Some(chunk) = self.stream.data().await else {
                self.deframer.finish()?;
                return Ok(None);
            };
            let chunk = chunk?;
            // The release fails only for more capacity than was received.
            let _ = self.stream.flow_control().release_capacity(chunk.len());
            self.deframer.push(chunk);
        }
    }

    /// The trailers, which follow the last message.
    ///
    /// # Errors
    /// If the stream is interrupted.
    pub async fn trailers(&mut self) -> Result<Option<HeaderMap>, h2::Error> {
        self.stream.trailers().await
    }
}
