//! Whether a peer may use the name in its hello.

use std::sync::Arc;
use std::time::Duration;

use crate::link::{Credentials, LinkKind};
use crate::name::PeerId;
use crate::session::CloseReason;
use crate::token::{Token, Tokens};

/// Who is believed.
#[derive(Clone)]
pub(super) struct Authentication {
    pub(super) allow_unauthenticated: bool,
    pub(super) users: Vec<u32>,
    pub(super) tokens: Option<Arc<dyn Tokens>>,
}

impl Default for Authentication {
    fn default() -> Self {
        let users = std::iter::once(0).chain(own_user()).collect();
        Self { allow_unauthenticated: false, users, tokens: None }
    }
}

#[cfg(target_os = "linux")]
fn own_user() -> Option<u32> {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").ok().map(|process| process.uid())
}

#[cfg(not(target_os = "linux"))]
const fn own_user() -> Option<u32> {
    None
}

/// What is to be done about a name.
pub(super) enum Verdict {
    /// The link proves it.
    Proven,
    /// The token must prove it.
    Ask(TokenQuestion),
    /// Nothing proves it.
    Refused(CloseReason),
}

impl Authentication {
    /// Looks at what the link proves, and at the token only where that is nothing.
    pub(super) fn check(
        &self,
        (kind, credentials): (LinkKind, &Credentials),
        token: Option<Token>,
        claimed: &PeerId,
    ) -> Verdict {
        let missing = match credentials {
            Credentials::Certificate(names) if names.iter().any(|name| name.covers(claimed)) => {
                return Verdict::Proven;
            }
            Credentials::Certificate(names) => {
                // A token cannot say that a certificate is wrong: one of them is somebody else's.
                let names: Vec<&str> = names.iter().take(8).map(PeerId::as_str).collect();
                return refused(claimed, format!("its certificate is for [{}]", names.join(", ")));
            }
            Credentials::Process { uid, .. } if self.users.contains(uid) => return Verdict::Proven,
            Credentials::Process { uid, .. } => {
                format!("user {uid} is neither root nor the hub's own")
            }
            Credentials::None if self.allow_unauthenticated => return Verdict::Proven,
            Credentials::None => {
                "the link proves no name; use TLS with a client certificate, or a token that \
                the hub knows, or allow unauthenticated peers at the hub"
                    .to_owned()
            }
        };
        match (token, &self.tokens) {
            (Some(_), _) if kind == LinkKind::Ws => {
                let cause = "a token came over a link that is not encrypted, where others can read it: \
                    replace that token, and use wss:// or quic://";
                refused(claimed, cause.to_owned())
            }
            (Some(token), Some(tokens)) => {
                Verdict::Ask(TokenQuestion { tokens: Arc::clone(tokens), claimed: claimed.clone(), token })
            }
            (Some(_), None) => refused(claimed, "it shows a token, and the hub knows none".to_owned()),
            (None, _) => refused(claimed, missing),
        }
    }
}

fn refused(claimed: &PeerId, cause: String) -> Verdict {
    Verdict::Refused(CloseReason::Unauthenticated { claimed: claimed.clone(), cause })
}

/// A token that is to be checked.
pub(super) struct TokenQuestion {
    tokens: Arc<dyn Tokens>,
    claimed: PeerId,
    token: Token,
}

impl TokenQuestion {
    /// Asks, for no longer than `bound`.
    pub(super) async fn ask(self, bound: Duration) -> Result<(), CloseReason> {
        let answer = tokio::time::timeout(bound, self.tokens.check(&self.claimed, &self.token)).await;
        let cause = match answer {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(cause)) => cause.to_string(),
            Err(_) => format!("its token could not be checked within {bound:?}, try again later"),
        };
        Err(CloseReason::Unauthenticated { claimed: self.claimed, cause })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::token::TokenRefused;

    struct Known(Token);

    #[async_trait::async_trait]
    impl Tokens for Known {
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
        let tokens: Option<Arc<dyn Tokens>> = Some(Arc::new(Known(token("t"))));
        Authentication { allow_unauthenticated, users: users.to_vec(), tokens }
    }

    #[test]
    fn a_name_needs_credentials_that_hold_it() {
        let (strict, open) = (users(false, &[0, 7]), users(true, &[0]));
        let edge = name("edge-1");
        for (credentials, by_strict, by_open) in [
            (Credentials::None, false, true),
            (Credentials::Certificate(vec![name("other"), name("edge-1")]), true, true),
            (Credentials::Certificate(vec![name("other")]), false, false),
            (Credentials::Certificate(vec![name("edge")]), false, false),
            (Credentials::Certificate(vec![name("edge-1/a")]), false, false),
            (Credentials::Certificate(vec![]), false, false),
            (Credentials::Process { uid: 0, gid: 5 }, true, true),
            (Credentials::Process { uid: 7, gid: 5 }, true, false),
            (Credentials::Process { uid: 8, gid: 0 }, false, false),
        ] {
            for (by, authentication, expected) in [("strict", &strict, by_strict), ("open", &open, by_open)] {
                let verdict = authentication.check((LinkKind::Wss, &credentials), None, &edge);
                assert_eq!(matches!(verdict, Verdict::Proven), expected, "{by}: {credentials:?}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_asked_for_only_where_the_link_proves_nothing_and_nobody_reads_along() {
        let strict = users(false, &[0]);
        let (other, own) =
            (Credentials::Certificate(vec![name("edge-2")]), Credentials::Certificate(vec![name("edge-1")]));
        let stranger = Credentials::Process { uid: 8, gid: 0 };
        for (kind, credentials, claimed, shown, expected) in [
            (LinkKind::Wss, &Credentials::None, "edge-1", "t", true),
            (LinkKind::Quic, &Credentials::None, "edge-1", "t", true),
            (LinkKind::Uds, &stranger, "edge-1", "t", true),
            (LinkKind::Memory, &Credentials::None, "edge-1", "t", true),
            (LinkKind::Ws, &Credentials::None, "edge-1", "t", false),
            (LinkKind::Wss, &Credentials::None, "edge-1", "f", false),
            (LinkKind::Wss, &Credentials::None, "edge-2", "t", false),
            (LinkKind::Wss, &Credentials::None, "slow", "t", false),
            (LinkKind::Wss, &other, "edge-1", "t", false),
            (LinkKind::Wss, &own, "edge-1", "f", true),
        ] {
            let verdict = strict.check((kind, credentials), Some(token(shown)), &name(claimed));
            let good = match verdict {
                Verdict::Proven => true,
                Verdict::Ask(question) => question.ask(Duration::from_secs(5)).await.is_ok(),
                Verdict::Refused(reason) => {
                    assert!(!reason.to_string().contains("tttt"), "{reason}");
                    false
                }
            };
            assert_eq!(good, expected, "{kind} {credentials:?} {claimed} {shown}");
        }
    }

    #[test]
    fn a_hub_without_tokens_says_so() {
        let none = Authentication { tokens: None, ..users(false, &[]) };
        let verdict = none.check((LinkKind::Wss, &Credentials::None), Some(token("t")), &name("edge-1"));
        assert!(
            matches!(verdict, Verdict::Refused(reason) if reason.to_string().contains("the hub knows none"))
        );
    }
}
