//! The dialing side: the source of the token, and the links that may carry it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{MAX_TOKEN, Token};
use crate::link::{Credentials, Dialer, Link, LinkError, LinkKind};

/// The source of a peer's token.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TokenSource {
    /// The token itself.
    Fixed(Token),
    /// A file with only the token, read for each link, so that a new token is used at once.
    File(PathBuf),
}

impl TokenSource {
    /// Returns the current token.
    ///
    /// # Errors
    /// If the file is not readable or contains no valid token. The error names the file and never contains its content.
    pub fn token(&self) -> Result<Token, LinkError> {
        match self {
            Self::Fixed(token) => Ok(token.clone()),
            Self::File(path) => read(path).map_err(|source| LinkError::Io {
                doing: format!("read token file {}", path.display()),
                source,
            }),
        }
    }
}

fn read(path: &Path) -> io::Result<Token> {
    let bad = |cause: &dyn fmt::Display| io::Error::new(io::ErrorKind::InvalidData, cause.to_string());
    let mut bytes = Vec::new();
    // Reads slightly more than a token, to detect files that are too long.
    File::open(path)?.take(MAX_TOKEN as u64 + 64).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| bad(&"the file is not UTF-8"))?;
    Token::new(text).map_err(|error| bad(&error))
}

/// A dialer whose links send a token in their hello.
pub struct TokenDialer {
    dialer: Box<dyn Dialer>,
    source: TokenSource,
    allow_insecure: bool,
}

impl TokenDialer {
    /// Sends the token only on confidential links to a verified hub: `wss` and QUIC with verification, unix sockets and memory.
    /// Dialing fails on other links.
    #[must_use]
    pub fn new(dialer: Box<dyn Dialer>, source: TokenSource) -> Self {
        Self { dialer, source, allow_insecure: false }
    }

    /// Sends the token on any link, also to an unverified hub: for experiments on one host only.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.allow_insecure = true;
        self
    }
}

#[async_trait::async_trait]
impl Dialer for TokenDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let token = self.source.token()?;
        let link = self.dialer.dial().await?;
        if self.allow_insecure || is_confidential(link.kind(), link.credentials()) {
            return Ok(link.with_token(token));
        }
        let cause = "the token is not sent: the link is not encrypted, or the hub is not verified; \
                     use wss:// or quic:// with the certificate authority of the hub, or choose insecure";
        Err(LinkError::Address { address: self.dialer.address().to_owned(), cause: cause.to_owned() })
    }

    fn address(&self) -> &str {
        self.dialer.address()
    }
}

impl fmt::Debug for TokenDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenDialer").field("address", &self.dialer.address()).finish_non_exhaustive()
    }
}

/// Whether only the intended hub can read sent data.
fn is_confidential(kind: LinkKind, hub: &Credentials) -> bool {
    match kind {
        LinkKind::Memory | LinkKind::Uds => true,
        LinkKind::Wss | LinkKind::Quic => matches!(hub, Credentials::Certificate(_)),
        LinkKind::Ws => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_invalid_token_files_without_quoting_them() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        let source = TokenSource::File(path.clone());
        assert!(source.token().unwrap_err().to_string().contains("read token file"), "a missing file");
        let secret = "se cret".repeat(10);
        for content in [secret.clone().into_bytes(), vec![0xff; 40], b"short".to_vec(), vec![b'x'; 9000]] {
            std::fs::write(&path, content).unwrap();
            let error = source.token().unwrap_err();
            assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
            assert!(!format!("{error} {error:?}").contains("cret"), "{error}");
        }
        std::fs::write(&path, "0123456789abcdef\n").unwrap();
        assert_eq!(source.token().unwrap().secret(), "0123456789abcdef");
    }

    #[test]
    fn sends_tokens_only_on_confidential_links() {
        let (anonymous, hub) = (Credentials::None, Credentials::Certificate(Vec::new()));
        for (kind, credentials, expected) in [
            (LinkKind::Ws, &anonymous, false),
            (LinkKind::Wss, &anonymous, false),
            (LinkKind::Quic, &anonymous, false),
            (LinkKind::Wss, &hub, true),
            (LinkKind::Quic, &hub, true),
            (LinkKind::Uds, &anonymous, true),
            (LinkKind::Memory, &anonymous, true),
        ] {
            assert_eq!(is_confidential(kind, credentials), expected, "{kind} {credentials:?}");
        }
    }
}
