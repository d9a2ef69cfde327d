//! The dialling side: where the token comes from, and on which links it may go out.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::{MAX_TOKEN, Token};
use crate::link::{Credentials, Dialer, Link, LinkError, LinkKind};

/// Where the token of a peer comes from.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TokenSource {
    /// The token itself.
    Fixed(Token),
    /// A file with nothing but the token, read again for each link, so that a new token is used as soon as it is there.
    File(PathBuf),
}

impl TokenSource {
    /// The token as it is now.
    ///
    /// # Errors
    /// If the file cannot be read or holds no token; the text names the file and never holds what is in it.
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
    // A little more than a token, so that a file which is too long is told from one that fits.
    File::open(path)?.take(MAX_TOKEN as u64 + 64).read_to_end(&mut bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| bad(&"it is not text"))?;
    Token::new(text).map_err(|error| bad(&error))
}

/// A dialer whose links carry a token in their hello.
pub struct TokenDialer {
    dialer: Box<dyn Dialer>,
    source: TokenSource,
    anywhere: bool,
}

impl TokenDialer {
    /// Shows the token on links that nobody else can read, to a hub that has proven its name: `wss` and QUIC with verification,
    /// unix sockets and memory. Any other link is not used.
    #[must_use]
    pub fn new(dialer: Box<dyn Dialer>, source: TokenSource) -> Self {
        Self { dialer, source, anywhere: false }
    }

    /// Shows the token on any link, to whoever answers: for trials on one host only.
    #[must_use]
    pub const fn insecure(mut self) -> Self {
        self.anywhere = true;
        self
    }
}

#[async_trait::async_trait]
impl Dialer for TokenDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let token = self.source.token()?;
        let link = self.dialer.dial().await?;
        if self.anywhere || keeps_secrets(link.kind(), link.credentials()) {
            return Ok(link.with_token(token));
        }
        let cause = "the token is not sent: the link is not encrypted, or the hub is not verified; \
                     use wss:// or quic:// with the hub's authority, or choose insecure";
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

/// Whether only the hub, and the right one, reads what is sent.
fn keeps_secrets(kind: LinkKind, hub: &Credentials) -> bool {
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
    fn a_file_that_holds_no_token_is_named_and_not_quoted() {
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
    fn a_token_goes_out_only_where_nobody_else_reads() {
        let (nobody, hub) = (Credentials::None, Credentials::Certificate(Vec::new()));
        for (kind, credentials, expected) in [
            (LinkKind::Ws, &nobody, false),
            (LinkKind::Wss, &nobody, false),
            (LinkKind::Quic, &nobody, false),
            (LinkKind::Wss, &hub, true),
            (LinkKind::Quic, &hub, true),
            (LinkKind::Uds, &nobody, true),
            (LinkKind::Memory, &nobody, true),
        ] {
            assert_eq!(keeps_secrets(kind, credentials), expected, "{kind} {credentials:?}");
        }
    }
}
