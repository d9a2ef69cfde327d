//! The dialing side: the source of the token, and the links that may carry it.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use tokio::sync::Mutex;
use tokio::task::{JoinHandle, spawn_blocking};

use super::{MAX_TOKEN, Token};
use crate::link::{Dialer, Link, LinkError};

/// The source of a peer's token.
#[derive(Debug, Clone)]
pub(crate) enum TokenSource {
    /// The token itself.
    Fixed(Token),
    /// A file with only the token, read for each link, so that a new token is used at once.
    File(PathBuf),
}

impl TokenSource {
    /// Returns the current token. Blocks on file I/O. The error names the file and never contains its content.
    fn token(&self) -> Result<Token, LinkError> {
        match self {
            Self::Fixed(token) => Ok(token.clone()),
            Self::File(path) => read(path).map_err(unreadable(path)),
        }
    }
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> LinkError {
    let doing = format!("read token file {}", path.display());
    |source| LinkError::Io { doing, source }
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
pub(crate) struct TokenDialer {
    dialer: Box<dyn Dialer>,
    source: TokenSource,
    allow_insecure: bool,
    /// The running read of the token file. An abandoned attempt leaves it to the next one, so that a file system that hangs
    /// occupies one thread.
    reading: Mutex<Option<JoinHandle<Result<Token, LinkError>>>>,
}

impl TokenDialer {
    /// Sends the token only on confidential links to a verified hub.
    pub(crate) fn new(dialer: Box<dyn Dialer>, source: TokenSource) -> Self {
        Self { dialer, source, allow_insecure: false, reading: Mutex::default() }
    }

    /// Sends the token on any link.
    #[cfg(feature = "tls")]
    pub(crate) const fn insecure(mut self) -> Self {
        self.allow_insecure = true;
        self
    }

    /// Reads the token without blocking the thread.
    async fn token(&self) -> Result<Token, LinkError> {
        let TokenSource::File(path) = &self.source else { return self.source.token() };
        let mut reading = self.reading.lock().await;
        let running = reading.get_or_insert_with(|| {
            let source = self.source.clone();
            spawn_blocking(move || source.token())
        });
        let read = running.await;
        *reading = None;
        read.unwrap_or_else(|error| Err(unreadable(path)(io::Error::other(error))))
    }
}

#[async_trait::async_trait]
impl Dialer for TokenDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        let token = self.token().await?;
        let link = self.dialer.dial().await?;
        if self.allow_insecure || link.protection().is_confidential() {
            return Ok(link.with_token(token));
        }
        let cause = "the token is not sent: the link is not encrypted, or the hub is not verified; \
                     use wss:// or quic:// with the certificate authority of the hub, or choose insecure";
        Err(LinkError::Address { address: self.dialer.address().to_owned(), cause: cause.to_owned() })
    }

    fn address(&self) -> &str {
        self.dialer.address()
    }

    async fn resolve(&self) -> Result<Vec<Box<dyn Dialer>>, LinkError> {
        let Self { source, allow_insecure, .. } = self;
        let with_token = |dialer| {
            let token_dialer = Self { allow_insecure: *allow_insecure, ..Self::new(dialer, source.clone()) };
            Box::new(token_dialer) as Box<dyn Dialer>
        };
        Ok(self.dialer.resolve().await?.into_iter().map(with_token).collect())
    }
}

impl fmt::Debug for TokenDialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenDialer").field("address", &self.dialer.address()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::link::{Credentials, DEFAULT_MAX_FRAME, LinkKind, Protection, memory};

    /// The longest wait of a test; only a failure takes so long.
    const BOUND: Duration = Duration::from_secs(10);

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

    /// A token file on a file system that hangs, here a pipe without a writer, blocks no other task, and further attempts
    /// start no further reads.
    #[tokio::test]
    async fn hanging_token_file_blocks_no_other_task() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("token");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let (other_runs, runs) = mpsc::channel();
        let pipe = path.clone();
        // Writes after the other task has run, or after a bound, so that a blocked runtime fails and does not hang.
        let writer = std::thread::spawn(move || {
            let other_ran: Result<(), _> = runs.recv_timeout(BOUND);
            std::fs::write(pipe, "0123456789abcdef\n").unwrap();
            other_ran.is_ok()
        });
        let (_listener, hub) = memory::listen("hub", 4096);
        let dialer = TokenDialer::new(Box::new(hub), TokenSource::File(path));
        let mut reads = Vec::new();
        for _ in 0..3 {
            tokio::select! {
                biased;
                _ = dialer.dial() => panic!("the pipe is empty"),
                () = std::future::ready(()) => {}
            }
            reads.push(dialer.reading.lock().await.as_ref().map(JoinHandle::id));
        }
        other_runs.send(()).unwrap();
        let token = tokio::time::timeout(BOUND, dialer.token()).await.unwrap();
        assert_eq!(token.unwrap().secret(), "0123456789abcdef");
        assert!(writer.join().unwrap(), "the runtime was blocked");
        assert!(reads[0].is_some() && reads.iter().all(|read| *read == reads[0]), "{reads:?}");
    }

    /// A link of an own kind gets the token only if its builder has stated a protection that keeps it secret.
    #[tokio::test]
    async fn sends_tokens_only_on_confidential_links() {
        struct Own(Protection);

        #[async_trait::async_trait]
        impl Dialer for Own {
            async fn dial(&self) -> Result<Link, LinkError> {
                let (io, _) = tokio::io::duplex(64);
                let (kind, none) = (LinkKind::custom("own"), Credentials::None);
                Ok(Link::framed(io, kind, "hub", none, DEFAULT_MAX_FRAME).with_protection(self.0))
            }

            fn address(&self) -> &str {
                "own://hub"
            }
        }

        for (protection, expected) in [
            (Protection::None, false),
            (Protection::Encrypted, false),
            (Protection::Verified, true),
            (Protection::Private, true),
        ] {
            let source = TokenSource::Fixed(Token::new("0123456789abcdef").unwrap());
            let dialed = TokenDialer::new(Box::new(Own(protection)), source).dial().await;
            assert_eq!(dialed.is_ok_and(|link| link.has_token()), expected, "{protection:?}");
        }
    }
}
