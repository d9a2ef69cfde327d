//! Bearer tokens: how a peer without a certificate proves its name.
//!
//! A token is a secret that a peer and the hub share. The peer sends it in its hello, on links that hide it from others (TLS,
//! QUIC, unix sockets) and to a hub that it has verified, and the hub's [`TokenVerifier`] checks it. Tokens are never printed,
//! and the session never handles them: the link inserts the token into the hello, and the hub removes it.

#[cfg(feature = "runtime")]
mod dial;
#[cfg(all(feature = "tls", feature = "runtime"))]
mod file;

use std::fmt;
use std::hint::black_box;
use std::sync::Arc;

#[cfg(feature = "runtime")]
pub(crate) use self::dial::{TokenDialer, TokenSource};
#[cfg(all(feature = "tls", feature = "runtime"))]
pub use self::file::{TokenFile, token_digest};
#[cfg(feature = "runtime")]
use crate::name::PeerId;

/// Shortest token in bytes: shorter ones could be guessed.
pub const MIN_TOKEN: usize = 16;

/// Longest token in bytes: room for a signed one with its claims.
pub const MAX_TOKEN: usize = 8 * 1024;

/// Why a text is not a valid token. The error does not contain the text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidToken {
    /// The token is too short or too long.
    #[error(
        "token of {found} bytes; {MIN_TOKEN} to {MAX_TOKEN} are allowed: create one with `openssl rand -hex 32`"
    )]
    Length {
        /// Length of the token in bytes.
        found: usize,
    },
    /// The token contains a character that is not allowed.
    #[error("token with a byte at {at} that is not allowed: visible ASCII characters only, without spaces")]
    Character {
        /// The offset of the byte.
        at: usize,
    },
}

/// A bearer token: 16 to 8192 visible ASCII characters. Never printed. [`PartialEq`] compares in constant time for tokens of
/// one length.
#[derive(Clone)]
pub struct Token(Arc<str>);

impl Token {
    /// Validates a token. Surrounding white space, such as the newline of a file, is removed.
    ///
    /// # Errors
    /// If the token is too short or too long, or contains other characters.
    pub fn new(text: impl AsRef<str>) -> Result<Self, InvalidToken> {
        let text = text.as_ref().trim_ascii();
        if !(MIN_TOKEN..=MAX_TOKEN).contains(&text.len()) {
            return Err(InvalidToken::Length { found: text.len() });
        }
        match text.bytes().position(|byte| !byte.is_ascii_graphic()) {
            Some(at) => Err(InvalidToken::Character { at }),
            None => Ok(Self(text.into())),
        }
    }

    /// The secret itself, for its verification. Must not be written to logs, errors or files.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Token {
    fn eq(&self, other: &Self) -> bool {
        ct_eq(self.0.as_bytes(), other.0.as_bytes())
    }
}

impl Eq for Token {}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// Whether two byte strings are equal, in a time that depends on their lengths alone.
pub(crate) fn ct_eq(one: &[u8], other: &[u8]) -> bool {
    let differing = one.iter().zip(other).fold(0_u8, |sum, (a, b)| black_box(sum | (a ^ b)));
    one.len() == other.len() && black_box(differing) == 0
}

/// Why a token is refused.
#[cfg(feature = "runtime")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenRefused {
    /// The token is not registered for this name. Whether another token is registered is not disclosed.
    #[error(
        "its token is not registered for this name: use the registered token, or register this one at the hub"
    )]
    Unknown,
    /// The token cannot be verified now; the peer should try again.
    #[error("its token cannot be verified now, try again later: {cause}")]
    Unavailable {
        /// What is missing.
        cause: String,
    },
}

/// Verifies tokens. The reference implementation is [`TokenFile`]; a custom one may query a server.
#[cfg(feature = "runtime")]
#[async_trait::async_trait]
pub trait TokenVerifier: Send + Sync {
    /// Checks whether the bearer of the token may use this name. A token of one of the names that [cover](PeerId::covered_by) it
    /// should suffice, as with certificates. The hub waits for 2.5 s, and drops the future if the link ends earlier. Checks of
    /// several links run at the same time, at most as many as there are handshake slots. Do not block.
    ///
    /// # Errors
    /// Why the token is refused. The text is logged and sent to the other end: it must not contain the token.
    async fn check(&self, claimed: &PeerId, token: &Token) -> Result<(), TokenRefused>;

    /// Returns a number that rises when tokens may have been withdrawn. Within a second the hub then verifies the tokens of
    /// open sessions again, and ends those with [`TokenRefused::Unknown`]. After [`TokenRefused::Unavailable`], or without an
    /// answer in time, the session continues, and the hub asks again until there is an answer: after 10 s at most, then after
    /// twice as long each time, at most 5 minutes. Default: 0, tokens are verified only once.
    fn generation(&self) -> u64 {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_prints_tokens() {
        let token = Token::new("0123456789abcdef").unwrap();
        assert_eq!(format!("{token:?} {token:#?}"), "Token(..) Token(..)");
        let error = Token::new("0123456789 abcdef").unwrap_err();
        assert_eq!(error, InvalidToken::Character { at: 10 });
        assert!(!format!("{error} {error:?}").contains("0123456789a"));
    }

    #[test]
    fn rejects_tokens_outside_the_length_limits() {
        for (length, good) in [(0, false), (15, false), (16, true), (8192, true), (8193, false)] {
            let token = Token::new("x".repeat(length));
            assert_eq!(token.is_ok(), good, "{length}");
            assert!(good || token.unwrap_err().to_string().contains("16 to 8192"));
        }
        assert_eq!(Token::new(" 0123456789abcdef\n").unwrap().secret(), "0123456789abcdef");
    }

    #[test]
    fn compares_whole_tokens() {
        for (one, other, equal) in [
            ("0123456789abcdef", "0123456789abcdef", true),
            ("0123456789abcdef", "0123456789abcdeg", false),
            ("1123456789abcdef", "0123456789abcdef", false),
            ("0123456789abcdef", "0123456789abcdef0", false),
        ] {
            assert_eq!(Token::new(one).unwrap() == Token::new(other).unwrap(), equal, "{one} {other}");
        }
    }
}
