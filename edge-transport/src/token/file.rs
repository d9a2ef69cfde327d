//! Digests of tokens in a file: the reference implementation of [`TokenVerifier`].

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::{Token, TokenRefused, TokenVerifier, ct_eq};
use crate::name::{InvalidName, PeerId};
use crate::reload::lines::{self, hex};
use crate::reload::{FileError, Input, Reloading};
use crate::tls::sha256;

/// Hexadecimal digits of a SHA-256.
const DIGEST_DIGITS: usize = 64;

/// Kind of the file, in errors.
const KIND: &str = "token file";

/// Returns the digest of a token for a token file: SHA-256 in hexadecimal.
#[must_use]
pub fn token_digest(token: &Token) -> String {
    sha256(token.secret().as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

type Digests = HashMap<PeerId, Vec<[u8; 32]>>;

/// A file with the digests of tokens. Each line contains a peer's name, white space, and the SHA-256 of its token in
/// hexadecimal. Empty lines and lines that begin with `#` are ignored. A name may have several lines, so that a token can be
/// replaced without an interruption. As with certificates, a token of `proxy` is also valid for `proxy/replica-2`.
///
/// Tokens must be random, as from `openssl rand -hex 32`: then their digests need no salt.
///
/// The file is read at the start and reloaded by a [`FileWatch`](crate::reload::FileWatch). The sessions of a removed token end
/// within a second after the reload. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TokenFile {
    pub(crate) digests: Arc<Reloading<Digests, FileError>>,
}

impl TokenFile {
    /// Reads the file.
    ///
    /// # Errors
    /// If the file is not readable, or a line is not a name and a digest.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FileError> {
        let (file, outcome) = Self::read(path.as_ref());
        outcome.map(|()| file)
    }

    /// Reads a file that may be missing or invalid for now: tokens cannot be verified until a
    /// [`FileWatch`](crate::reload::FileWatch) has found a valid one.
    #[must_use]
    pub fn open_when_valid(path: impl AsRef<Path>) -> Self {
        Self::read(path.as_ref()).0
    }

    fn read(path: &Path) -> (Self, Result<(), FileError>) {
        let path = path.to_owned();
        let input = Input { kind: "tokens", path: path.clone() };
        let make = move |contents: &[Vec<u8>]| {
            contents.first().map_or_else(|| Ok(Digests::new()), |text| parse(text, &path))
        };
        let (digests, outcome) = Reloading::open((vec![input], Box::new(make)), |_| Vec::new());
        (Self { digests: Arc::new(digests) }, outcome)
    }

    /// Number of names with a token.
    #[must_use]
    pub fn names(&self) -> usize {
        self.digests.current().map_or(0, |digests| digests.len())
    }
}

#[async_trait::async_trait]
impl TokenVerifier for TokenFile {
    async fn check(&self, claimed: &PeerId, token: &Token) -> Result<(), TokenRefused> {
        let digest = sha256(token.secret().as_bytes());
        // The cause names a file of this host, which a peer must not learn; the watch logs it.
        let digests = self
            .digests
            .current()
            .map_err(|_| TokenRefused::Unavailable { cause: "the hub has no valid token file".to_owned() })?;
        let name_digests = claimed.covered_by().filter_map(|name| digests.get(name)).flatten();
        // All digests are compared, so that the time does not reveal which one matches.
        match name_digests.fold(false, |found, known| found | ct_eq(known, &digest)) {
            true => Ok(()),
            false => Err(TokenRefused::Unknown),
        }
    }

    fn generation(&self) -> u64 {
        self.digests.generation()
    }
}

fn parse(text: &[u8], path: &Path) -> Result<Digests, FileError> {
    let mut digests = Digests::new();
    for line in lines::entries(KIND, path, text) {
        let line = line?;
        let mut words = line.text.split_ascii_whitespace();
        let name = words.next().unwrap_or_default();
        let name = PeerId::new(name).map_err(|cause: InvalidName| {
            // The first word may be a token by mistake: the error must not contain its characters.
            let problem = match cause {
                InvalidName::TooLong { found, max, .. } => {
                    format!("{found} bytes; at most {max} are allowed")
                }
                _ => "a character other than letters, digits and any of `-_.:/@`".to_owned(),
            };
            line.refused(format!("the first word is not a peer's name: it has {problem}"))
        })?;
        let digest = match (words.next(), words.next()) {
            (Some(digest), None) if digest.len() == DIGEST_DIGITS => {
                hex(digest).and_then(|bytes| bytes.try_into().ok())
            }
            _ => None,
        };
        let digest = digest.ok_or_else(|| {
            let expected = "a name, a space, and the SHA-256 of the token as 64 hexadecimal digits: printf %s TOKEN | sha256sum";
            line.refused(format!("expected {expected}"))
        })?;
        digests.entry(name).or_default().push(digest);
    }
    Ok(digests)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(text: &str) -> Token {
        Token::new(format!("{text}-0123456789abcdef")).unwrap()
    }

    fn open(text: &str) -> Result<TokenFile, FileError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tokens");
        std::fs::write(&path, text).unwrap();
        TokenFile::open(path)
    }

    #[test]
    fn digest_matches_sha256sum() {
        let token = Token::new("0123456789abcdef").unwrap();
        let expected = "9f9f5111f7b27a781f1f1ddde5ebc2dd2b796bfc7365c9c28b548e564176929f";
        assert_eq!(token_digest(&token), expected);
    }

    #[tokio::test]
    async fn token_covers_its_name_and_names_below() {
        let (one, two, other) = (token("one"), token("two"), token("other"));
        let text = format!(
            "# tokens\n\nproxy {}\nproxy\t{} \nedge-1 {}\n",
            token_digest(&one),
            token_digest(&two).to_uppercase(),
            token_digest(&other)
        );
        let file = open(&text).unwrap();
        assert_eq!(file.names(), 2);
        for (claimed, token, good) in [
            ("proxy", &one, true),
            ("proxy", &two, true),
            ("proxy/replica-2", &two, true),
            ("proxy2", &one, false),
            ("proxy", &other, false),
            ("edge-1", &other, true),
            ("edge-1", &one, false),
            ("edge-2", &other, false),
        ] {
            let checked = file.check(&PeerId::new(claimed).unwrap(), token).await;
            assert_eq!(checked.is_ok(), good, "{claimed}");
        }
    }

    #[tokio::test]
    async fn verifies_tokens_once_the_file_is_valid() {
        let (directory, one) = (tempfile::tempdir().unwrap(), token("one"));
        let path = directory.path().join("tokens");
        let file = TokenFile::open_when_valid(&path);
        let watch = crate::reload::FileWatch::new().tokens(&file);
        let name = PeerId::new("edge-1").unwrap();
        let refused = file.check(&name, &one).await.unwrap_err();
        assert!(matches!(refused, TokenRefused::Unavailable { .. }), "{refused}");
        assert!(watch.unusable().unwrap().contains("cannot read tokens"));
        std::fs::write(&path, format!("edge-1 {}\n", token_digest(&one))).unwrap();
        watch.check(std::time::SystemTime::now());
        assert_eq!(watch.unusable(), None);
        file.check(&name, &one).await.unwrap();
    }

    /// The hour between two checks does not end here.
    #[tokio::test(start_paused = true)]
    async fn file_is_read_again_at_a_change_of_the_peer_and_on_demand() {
        use std::sync::Arc;

        let (directory, name) = (tempfile::tempdir().unwrap(), PeerId::new("edge-1").unwrap());
        let path = directory.path().join("tokens");
        std::fs::write(&path, "").unwrap();
        let file = TokenFile::open(&path).unwrap();
        let state = tokio::sync::watch::Sender::new(crate::PeerState::Closed);
        let watch = Arc::new(crate::reload::FileWatch::new().tokens(&file));
        let (begun, hour) = (tokio::time::Instant::now(), std::time::Duration::from_secs(3600));
        let mut watching = None;
        // The first check is made at once.
        for (token, on_demand) in [(token("one"), false), (token("two"), false), (token("three"), true)] {
            std::fs::write(&path, format!("edge-1 {}\n", token_digest(&token))).unwrap();
            if on_demand {
                watch.check_soon();
            } else {
                state.send_replace(crate::PeerState::Closed);
            }
            watching.get_or_insert_with(|| tokio::spawn(Arc::clone(&watch).run_for(state.subscribe(), hour)));
            while file.check(&name, &token).await.is_err() {
                // Lets the paused clock advance.
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        }
        assert!(begun.elapsed() < hour);
        drop(state);
        watching.unwrap().await.unwrap();
    }

    #[test]
    fn reports_bad_lines_without_quoting_them() {
        let digest = token_digest(&token("x"));
        for (text, expected) in [
            ("edge-1\n".to_owned(), "line 1: expected a name, a space"),
            (format!("a {digest}\nedge-1 s3cret-0123456789abcdef\n"), "line 2: expected a name, a space"),
            (format!("edge-1 {digest} more\n"), "line 1: expected a name, a space"),
            (format!("s3cret+x {digest}\n"), "line 1: the first word is not a peer's name"),
            (format!("edge-1 {}g\n", &digest[1..]), "64 hexadecimal digits"),
        ] {
            let error = open(&text).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("s3cret"), "{text}: {error}");
        }
    }
}
