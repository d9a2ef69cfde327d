//! Checks whether a peer may use the name in its hello.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::hub::identity::Identity;
use crate::link::{Credentials, Protection};
#[cfg(feature = "tls")]
use crate::link::{FrameLink, Link};
use crate::name::PeerId;
use crate::session::CloseReason;
#[cfg(feature = "tls")]
use crate::tls::AuthoritiesId;
use crate::token::{Token, TokenRefused, TokenVerifier};

/// Returns the time of the wall clock, which the validity of certificates refers to.
type WallClock = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The ways in which a peer may prove its name.
#[derive(Clone)]
pub(super) struct Authentication {
    /// Replaced in tests.
    pub(super) wall_clock: WallClock,
    pub(super) allow_unauthenticated: bool,
    /// Ids of the users whose processes may use any name on a unix socket.
    pub(super) users: Vec<u32>,
    pub(super) token_verifier: Option<Arc<dyn TokenVerifier>>,
    /// The key of the hashes that identify tokens.
    pub(super) token_hasher: RandomState,
    /// The peers and certificates that are refused.
    #[cfg(feature = "tls")]
    pub(super) deny: Option<crate::hub::DenyList>,
    /// What the certificates of open sessions are verified with again.
    #[cfg(feature = "tls")]
    pub(super) certificates: Option<crate::tls::ServerFiles>,
}

impl Default for Authentication {
    fn default() -> Self {
        let users = std::iter::once(0).chain(process_user()).collect();
        Self {
            wall_clock: Arc::new(SystemTime::now),
            allow_unauthenticated: false,
            users,
            token_verifier: None,
            token_hasher: RandomState::new(),
            #[cfg(feature = "tls")]
            deny: None,
            #[cfg(feature = "tls")]
            certificates: None,
        }
    }
}

#[cfg(target_os = "linux")]
fn process_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

#[cfg(not(target_os = "linux"))]
const fn process_user() -> Option<u32> {
    None
}

/// The result of checking a claimed name.
pub(super) enum Decision {
    /// The link proves the name as this identity.
    Authenticated(Identity),
    /// The token must be verified; it then proves the name as this identity.
    Verify(TokenCheck, Identity),
    /// The name is not proven.
    Rejected(CloseReason),
}

impl Authentication {
    /// Checks the link's credentials, and the token only if the link proves nothing.
    pub(super) fn check(
        &self,
        (protection, credentials): (Protection, &Credentials),
        token: Option<Token>,
        claimed: &PeerId,
    ) -> Decision {
        let by_claim = || Decision::Authenticated(Identity::Name(claimed.clone()));
        let missing = match credentials {
            Credentials::Certificate(_) | Credentials::Process { .. } if protection == Protection::None => {
                let cause = "the link has credentials, but no protection, so that others can take it over: build it with \
                    `Link::with_protection`";
                return refused(claimed, cause.to_owned());
            }
            Credentials::Certificate(own) => {
                // The first name identifies the certificate: several names must not multiply what one identity may use.
                if own.names.iter().any(|name| name.covers(claimed))
                    && let Some(first) = own.names.first()
                {
                    return Decision::Authenticated(Identity::Name(first.clone()));
                }
                // A token does not override a certificate for another name: one of them belongs to another peer.
                let names: Vec<&str> = own.names.iter().take(8).map(PeerId::as_str).collect();
                return refused(claimed, format!("its certificate is for [{}]", names.join(", ")));
            }
            Credentials::Process { uid, .. } if self.users.contains(uid) => return by_claim(),
            Credentials::Process { uid, .. } => {
                format!("user {uid} is neither root nor the user of the hub")
            }
            Credentials::None if self.allow_unauthenticated => return by_claim(),
            Credentials::None => {
                "the link has no credentials; use TLS with a client certificate, or a token that \
                is registered at the hub, or allow unauthenticated peers at the hub"
                    .to_owned()
            }
        };
        match (token, &self.token_verifier) {
            (Some(_), _) if protection == Protection::None => {
                let cause = "a token was sent over a link that is not encrypted, where others can read it: \
                    replace that token, and use wss:// or quic://";
                refused(claimed, cause.to_owned())
            }
            (Some(token), Some(tokens)) => {
                let identity = Identity::Token(self.token_hasher.hash_one(token.secret()));
                let check = TokenCheck { tokens: Arc::clone(tokens), claimed: claimed.clone(), token };
                Decision::Verify(check, identity)
            }
            (Some(_), None) => {
                refused(claimed, "it sent a token, but the hub has no token verifier".to_owned())
            }
            (None, _) => refused(claimed, missing),
        }
    }
}

impl Authentication {
    /// Checks that the identity of an authenticated peer may be used now, at its admission and later.
    pub(super) fn revoked(
        &self,
        credentials: &Credentials,
        claimed: &PeerId,
        now: SystemTime,
    ) -> Option<CloseReason> {
        let cause = match credentials.have_expired(now) {
            true => Some("its certificate has expired"),
            false => self.denied(credentials, claimed),
        };
        cause.map(|cause| CloseReason::Unauthenticated { claimed: claimed.clone(), cause: cause.to_owned() })
    }

    /// Checks that the certificate of a peer would be accepted again by the authorities and revocation lists in use. Returns the
    /// authorities that it was checked with, for the next time.
    #[cfg(feature = "tls")]
    pub(super) fn verify_again(
        &self,
        link: &Link,
        verified_by: Option<AuthoritiesId>,
        claimed: &PeerId,
        now: SystemTime,
    ) -> Result<Option<AuthoritiesId>, CloseReason> {
        let (Some(files), Credentials::Certificate(own)) = (&self.certificates, link.credentials()) else {
            return Ok(verified_by);
        };
        let verified_by = verified_by.or(own.verified_by);
        files
            .verify_again(|| link.peer_chain(), verified_by, now)
            .map_err(|cause| CloseReason::Unauthenticated { claimed: claimed.clone(), cause })
    }

    /// Whether an identity can be revoked while its session is open.
    pub(super) fn can_revoke(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.deny.is_some() || self.certificates.is_some() {
            return true;
        }
        self.token_verifier.is_some()
    }

    /// Returns a number that rises when an identity may have been revoked.
    pub(super) fn generation(&self) -> u64 {
        let tokens = self.token_verifier.as_ref().map_or(0, |tokens| tokens.generation());
        #[cfg(feature = "tls")]
        let tokens = tokens
            .wrapping_add(self.deny.as_ref().map_or(0, crate::hub::DenyList::generation))
            .wrapping_add(self.certificates.as_ref().map_or(0, crate::tls::ServerFiles::generation));
        tokens
    }

    #[cfg(feature = "tls")]
    fn denied(&self, credentials: &Credentials, claimed: &PeerId) -> Option<&'static str> {
        self.deny.as_ref().and_then(|deny| deny.denies(claimed, credentials))
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, reason = "a deny list needs TLS")]
    const fn denied(&self, _: &Credentials, _: &PeerId) -> Option<&'static str> {
        None
    }
}

fn refused(claimed: &PeerId, cause: String) -> Decision {
    Decision::Rejected(CloseReason::Unauthenticated { claimed: claimed.clone(), cause })
}

/// A token to be verified.
#[derive(Clone)]
pub(super) struct TokenCheck {
    tokens: Arc<dyn TokenVerifier>,
    claimed: PeerId,
    token: Token,
}

impl TokenCheck {
    /// Verifies the token within `bound`.
    pub(super) async fn verify(self, bound: Duration) -> Result<(), CloseReason> {
        let answer = tokio::time::timeout(bound, self.tokens.check(&self.claimed, &self.token)).await;
        let cause = match answer {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause.to_string(),
            Err(_) => format!("its token could not be verified within {bound:?}; try again later"),
        };
        Err(CloseReason::Unauthenticated { claimed: self.claimed, cause })
    }

    /// Checks within `bound` that a verified token was not withdrawn.
    pub(super) async fn verify_again(self, bound: Duration) -> Recheck {
        match tokio::time::timeout(bound, self.tokens.check(&self.claimed, &self.token)).await {
            Ok(Ok(())) => Recheck::Valid,
            Ok(Err(cause @ TokenRefused::Unknown)) => Recheck::Withdrawn(CloseReason::Unauthenticated {
                claimed: self.claimed,
                cause: cause.to_string(),
            }),
            Ok(Err(_)) | Err(_) => Recheck::Unanswered,
        }
    }
}

/// The result of verifying a token again.
pub(super) enum Recheck {
    Valid,
    /// The token proves nothing any more.
    Withdrawn(CloseReason),
    /// The verifier cannot answer now, or did not in time. The session continues, and the verifier is asked later.
    Unanswered,
}

#[cfg(test)]
mod tests {
    use super::*;

    struct OneToken(Token);

    #[async_trait::async_trait]
    impl TokenVerifier for OneToken {
        async fn check(&self, claimed: &PeerId, token: &Token) -> Result<(), TokenRefused> {
            match claimed.as_str() {
                "edge-1" if *token == self.0 => Ok(()),
                "slow" => std::future::pending().await,
                _ => Err(TokenRefused::Unknown),
            }
        }
    }

    fn name(text: &str) -> PeerId {
        PeerId::new(text).unwrap()
    }

    fn token(text: &str) -> Token {
        Token::new(text.repeat(16)).unwrap()
    }

    fn users(allow_unauthenticated: bool, users: &[u32]) -> Authentication {
        let tokens: Option<Arc<dyn TokenVerifier>> = Some(Arc::new(OneToken(token("t"))));
        Authentication {
            allow_unauthenticated,
            users: users.to_vec(),
            token_verifier: tokens,
            ..Default::default()
        }
    }

    #[test]
    fn name_requires_matching_credentials() {
        let (strict, open) = (users(false, &[0, 7]), users(true, &[0]));
        let edge = name("edge-1");
        for (credentials, by_strict, by_open) in [
            (Credentials::None, false, true),
            (Credentials::Certificate(vec![name("other"), name("edge-1")].into()), true, true),
            (Credentials::Certificate(vec![name("other")].into()), false, false),
            (Credentials::Certificate(vec![name("edge")].into()), false, false),
            (Credentials::Certificate(vec![name("edge-1/a")].into()), false, false),
            (Credentials::Certificate(vec![].into()), false, false),
            (Credentials::Process { uid: 0, gid: 5 }, true, true),
            (Credentials::Process { uid: 7, gid: 5 }, true, false),
            (Credentials::Process { uid: 8, gid: 0 }, false, false),
        ] {
            for (by, authentication, expected) in [("strict", &strict, by_strict), ("open", &open, by_open)] {
                let decision = authentication.check((Protection::Encrypted, &credentials), None, &edge);
                assert_eq!(matches!(decision, Decision::Authenticated(_)), expected, "{by}: {credentials:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn verifies_tokens_only_on_confidential_links() {
        let strict = users(false, &[0]);
        let (other, own) = (
            Credentials::Certificate(vec![name("edge-2")].into()),
            Credentials::Certificate(vec![name("edge-1")].into()),
        );
        let [root, other_user] = [0, 8].map(|uid| Credentials::Process { uid, gid: 0 });
        let none = Protection::None;
        for (protection, credentials, claimed, shown, expected) in [
            (Protection::Encrypted, &Credentials::None, "edge-1", "t", true),
            (Protection::Verified, &Credentials::None, "edge-1", "t", true),
            (Protection::Private, &other_user, "edge-1", "t", true),
            (Protection::Private, &Credentials::None, "edge-1", "t", true),
            (none, &Credentials::None, "edge-1", "t", false),
            (none, &own, "edge-1", "t", false),
            (none, &root, "edge-1", "t", false),
            (Protection::Encrypted, &Credentials::None, "edge-1", "f", false),
            (Protection::Encrypted, &Credentials::None, "edge-2", "t", false),
            (Protection::Encrypted, &Credentials::None, "slow", "t", false),
            (Protection::Verified, &other, "edge-1", "t", false),
            (Protection::Verified, &own, "edge-1", "f", true),
            (Protection::Private, &root, "edge-1", "f", true),
        ] {
            let decision = strict.check((protection, credentials), Some(token(shown)), &name(claimed));
            let good = match decision {
                Decision::Authenticated(_) => true,
                Decision::Verify(pending, _) => pending.verify(Duration::from_secs(5)).await.is_ok(),
                Decision::Rejected(reason) => {
                    assert!(!reason.to_string().contains("tttt"), "{reason}");
                    false
                }
            };
            assert_eq!(good, expected, "{protection:?} {credentials:?} {claimed} {shown}");
        }
    }

    /// Names below a certificate's name share its identity; so do all names that one token proves.
    #[test]
    fn identity_is_what_proves_the_name() {
        let strict = users(false, &[0]);
        let identity = |credentials: &Credentials, claimed: &str, shown: Option<&str>| match strict.check(
            (Protection::Encrypted, credentials),
            shown.map(token),
            &name(claimed),
        ) {
            Decision::Authenticated(identity) | Decision::Verify(_, identity) => identity,
            Decision::Rejected(reason) => panic!("{reason}"),
        };
        let certificate = Credentials::Certificate(vec![name("other"), name("edge-1")].into());
        assert_eq!(
            identity(&certificate, "edge-1/a/b", None),
            Identity::Name(name("other")),
            "the first name"
        );
        let root = Credentials::Process { uid: 0, gid: 0 };
        assert_eq!(identity(&root, "edge-1/a", None), Identity::Name(name("edge-1/a")));
        let none = &Credentials::None;
        let first = identity(none, "edge-1", Some("t"));
        assert_eq!(first, identity(none, "edge-1/a", Some("t")));
        assert_ne!(first, identity(none, "edge-1", Some("f")));
    }

    #[test]
    fn reports_missing_token_verifier() {
        let none = Authentication { token_verifier: None, ..users(false, &[]) };
        let decision =
            none.check((Protection::Encrypted, &Credentials::None), Some(token("t")), &name("edge-1"));
        assert!(
            matches!(decision, Decision::Rejected(reason) if reason.to_string().contains("no token verifier"))
        );
    }
}
