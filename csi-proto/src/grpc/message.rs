//! Length-prefixed messages: a flag byte, four bytes of length, the message.

use std::fmt;

use bytes::{Buf, Bytes, BytesMut};

const PREFIX: usize = 5;

/// The maximum number of bytes that are allocated for an announced length before the message arrives.
const MAX_RESERVED: usize = 1024 * 1024;

/// An error in a stream of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The message is compressed.
    #[error("a message is compressed, though no compression was agreed")]
    Compressed,
    /// The flag is neither plain nor compressed.
    #[error("a message starts with flag {found}; expected 0")]
    Flag {
        /// The flag.
        found: u8,
    },
    /// The message is larger than the limit.
    #[error("a message has {found} bytes; at most {max} are accepted")]
    TooLarge {
        /// The message's length in bytes.
        found: usize,
        /// The bound in bytes.
        max: usize,
    },
    /// The stream ended within a message.
    #[error("the stream ends within a message; {missing} bytes are missing")]
    Truncated {
        /// Number of missing bytes of the message or its prefix.
        missing: usize,
    },
}

/// Extracts messages from a stream of chunks. Buffers at most one message and one chunk.
pub(super) struct Deframer {
    buffer: BytesMut,
    chunk: Bytes,
    max: usize,
}

impl Deframer {
    /// Creates a deframer for messages of at most `max` bytes.
    pub(super) fn new(max: usize) -> Self {
        Self { buffer: BytesMut::new(), chunk: Bytes::new(), max }
    }

    /// Adds the next chunk. All messages of the previous chunk must have been read.
    pub(super) fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty(), "messages of the previous chunk were not read");
        self.chunk = chunk;
    }

    /// Returns the size of the next message, once its prefix is there.
    pub(super) fn announced(&mut self) -> Result<Option<usize>, MessageError> {
        if self.buffer.is_empty() {
            let length = self.length(&self.chunk)?;
            if length.is_none() {
                self.buffer_chunk();
            }
            return Ok(length);
        }
        if self.buffer.len() < PREFIX {
            self.fill(PREFIX);
        }
        self.length(&self.buffer)
    }

    /// Returns the next complete message, if there is one.
    pub(super) fn next(&mut self) -> Result<Option<Bytes>, MessageError> {
        let Some(length) = self.announced()? else { return Ok(None) };
        if self.buffer.is_empty() {
            if self.chunk.len() >= PREFIX + length {
                self.chunk.advance(PREFIX);
                return Ok(Some(self.chunk.split_to(length)));
            }
            self.buffer.reserve((PREFIX + length).min(MAX_RESERVED));
            self.buffer_chunk();
            return Ok(None);
        }
        self.fill(PREFIX + length);
        if self.buffer.len() < PREFIX + length {
            return Ok(None);
        }
        let mut message = std::mem::take(&mut self.buffer).freeze();
        message.advance(PREFIX);
        Ok(Some(message))
    }

    /// Checks that the stream does not end within a message.
    pub(super) fn finish(&self) -> Result<(), MessageError> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let whole = self.length(&self.buffer)?.map_or(PREFIX, |length| PREFIX + length);
        Err(MessageError::Truncated { missing: whole - self.buffer.len() })
    }

    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, MessageError> {
        let Some((&[flag, a, b, c, d], _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
        match flag {
            0 => {}
            1 => return Err(MessageError::Compressed),
            found => return Err(MessageError::Flag { found }),
        }
        let found = u32::from_be_bytes([a, b, c, d]) as usize;
        if found > self.max {
            return Err(MessageError::TooLarge { found, max: self.max });
        }
        Ok(Some(found))
    }

    fn buffer_chunk(&mut self) {
        let rest = std::mem::take(&mut self.chunk);
        self.buffer.extend_from_slice(&rest);
    }

    fn fill(&mut self, upto: usize) {
        let more = upto.saturating_sub(self.buffer.len()).min(self.chunk.len());
        self.buffer.extend_from_slice(&self.chunk.split_to(more));
    }
}

/// A message with its prefix, without copying it.
pub struct Framed {
    prefix: [u8; PREFIX],
    sent: usize,
    message: Bytes,
}

impl Framed {
    /// Frames a message of less than 4 GiB; callers use a much lower limit.
    #[must_use]
    pub fn new(message: Bytes) -> Self {
        let [a, b, c, d] = u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes();
        Self { prefix: [0, a, b, c, d], sent: 0, message }
    }
}

impl Buf for Framed {
    fn remaining(&self) -> usize {
        PREFIX - self.sent + self.message.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.sent < PREFIX { &self.prefix[self.sent..] } else { &self.message }
    }

    fn advance(&mut self, count: usize) {
        let of_prefix = count.min(PREFIX - self.sent);
        self.sent += of_prefix;
        self.message.advance(count - of_prefix);
    }
}

impl fmt::Debug for Deframer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Deframer({} bytes)", self.buffer.len() + self.chunk.len())
    }
}

// h2 requires `Debug` and logs frames at trace level.
impl fmt::Debug for Framed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Framed({} bytes)", self.message.len())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn framed(messages: &[Vec<u8>]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            let mut framed = Framed::new(message.clone().into());
            bytes.extend_from_slice(&framed.copy_to_bytes(framed.remaining()));
        }
        bytes
    }

    proptest! {
        #[test]
        fn messages_survive_any_cut_into_chunks(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            size in 1_usize..64,
        ) {
            let mut deframer = Deframer::new(64);
            let mut found = Vec::new();
            for chunk in framed(&messages).chunks(size) {
                deframer.push(Bytes::copy_from_slice(chunk));
                loop {
                    let announced = deframer.announced().unwrap();
                    let Some(message) = deframer.next().unwrap() else { break };
                    prop_assert_eq!(announced, Some(message.len()));
                    found.push(message.to_vec());
                }
            }
            prop_assert_eq!(deframer.finish(), Ok(()));
            prop_assert_eq!(found, messages);
        }
    }

    #[test]
    fn a_bad_prefix_or_end_is_named() {
        let first = |bytes: &'static [u8]| {
            let mut deframer = Deframer::new(8);
            deframer.push(Bytes::from_static(bytes));
            deframer.next().and_then(|message| deframer.finish().map(|()| message))
        };
        assert_eq!(first(&[1, 0, 0, 0, 0]), Err(MessageError::Compressed));
        assert_eq!(first(b"HTTP/1.1"), Err(MessageError::Flag { found: b'H' }));
        assert_eq!(first(&[0, 0, 0, 0, 9]), Err(MessageError::TooLarge { found: 9, max: 8 }));
        assert_eq!(first(&[0, 0, 0, 0, 2, 7]), Err(MessageError::Truncated { missing: 1 }));
        assert_eq!(first(&[0, 0]), Err(MessageError::Truncated { missing: 3 }));
        assert_eq!(first(&[0, 0, 0, 0, 1, 7]), Ok(Some(Bytes::from_static(&[7]))));
    }
}
