//! Ends the sessions of identities that are not valid any more.

use std::hash::BuildHasher;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use super::super::auth::Recheck;
use super::{Connection, check_timeout};
use crate::frame_io::now;
use crate::name::PeerId;
use crate::peer::Backoff;
use crate::session::CloseReason;

impl Connection {
    /// Ends the session of an admitted peer whose identity is not valid any more. At each tick and each ping of the peer the wall
    /// clock is compared with the certificate's end: the clock may have been wrong at the handshake, and a suspended host has no
    /// timers. Everything else is checked after a reload.
    pub(super) fn check_identity(&mut self, is_tick: bool) {
        let checks = self.shared.identity_checks.load(Ordering::Acquire);
        let is_reload = checks != self.identity_checks;
        if !(is_tick || is_reload) || self.closed.is_some() {
            return;
        }
        let Some(peer) = self.peer.clone() else { return };
        self.identity_checks = checks;
        let reason = self.revoked(&peer).or_else(|| if is_reload { self.distrusted(&peer) } else { None });
        if let Some(reason) = reason {
            let decision = self.unauthenticated(reason);
            return self.link_event(decision);
        }
        if is_reload {
            self.token_retry = None;
        }
        let is_retry = self.token_retry.as_mut().is_some_and(|retry| retry.is_due(now()));
        if is_reload || is_retry {
            let again = self.verified.clone().map(|token| token.verify_again(check_timeout(&self.shared)));
            self.token_recheck = again.map(|again| Box::pin(again) as RecheckFuture);
        }
    }

    /// Returns why the peer's identity is not valid any more, if so, and schedules the next check for the certificate's end.
    pub(super) fn revoked(&mut self, peer: &PeerId) -> Option<CloseReason> {
        let authentication = &self.shared.authentication;
        let (credentials, time) = (self.io.link().credentials(), (authentication.wall_clock)());
        let reason = authentication.revoked(credentials, peer, time);
        self.expires = credentials.end().and_then(|end| expected_at(end, time, now()));
        reason
    }

    /// Returns why the authorities and revocation lists in use refuse the peer's certificate, if they do.
    #[cfg(feature = "tls")]
    pub(super) fn distrusted(&mut self, peer: &PeerId) -> Option<CloseReason> {
        let authentication = &self.shared.authentication;
        let time = (authentication.wall_clock)();
        match authentication.verify_again(self.io.link(), self.verified_by, peer, time) {
            Ok(verified_by) => {
                self.verified_by = verified_by;
                None
            }
            Err(reason) => Some(reason),
        }
    }

    #[cfg(not(feature = "tls"))]
    #[allow(clippy::unused_self, clippy::needless_pass_by_ref_mut, reason = "certificates need TLS")]
    pub(super) const fn distrusted(&mut self, _: &PeerId) -> Option<CloseReason> {
        None
    }

    /// Continues a repeated verification of the token.
    pub(super) fn poll_recheck(&mut self, cx: &mut Context<'_>) {
        if let Some(recheck) = &mut self.token_recheck
            && let Poll::Ready(answer) = recheck.as_mut().poll(cx)
        {
            self.token_recheck = None;
            match answer {
                Recheck::Valid => self.token_retry = None,
                Recheck::Withdrawn(reason) => {
                    let decision = self.unauthenticated(reason);
                    self.link_event(decision);
                }
                Recheck::Unanswered => {
                    let seed = || self.shared.authentication.token_hasher.hash_one(&self.peer);
                    let retry = self.token_retry.get_or_insert_with(|| Box::new(TokenRetry::new(seed())));
                    retry.schedule(now());
                }
            }
        }
    }
}

pub(super) type RecheckFuture = Pin<Box<dyn Future<Output = Recheck> + Send>>;

/// Longest wait before a verifier that did not answer is asked for the first time again, and for each later time. The wait
/// doubles in between, and is random, so that the sessions of a hub do not ask at the same moment.
const TOKEN_RETRY: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(5 * 60));

/// When to ask a verifier of tokens that did not answer again.
pub(super) struct TokenRetry {
    /// `None` while the verifier is asked.
    at: Option<Instant>,
    backoff: Backoff,
}

impl TokenRetry {
    const fn new(seed: u64) -> Self {
        Self { at: None, backoff: Backoff::new(TOKEN_RETRY.0, TOKEN_RETRY.1, seed) }
    }

    fn schedule(&mut self, now: Instant) {
        self.at = now.checked_add(self.backoff.next_wait());
    }

    /// When the verifier is to be asked again, if it is not being asked.
    pub(super) const fn at(&self) -> Option<Instant> {
        self.at
    }

    fn is_due(&mut self, now: Instant) -> bool {
        self.at.take_if(|at| *at <= now).is_some()
    }
}

/// Shortest wait for the end of a certificate, so that a wall clock that is slower than the timers causes no busy loop.
const MIN_WAIT: Duration = Duration::from_millis(10);

/// Returns when the wall clock is expected to reach `end`. The clock may be set at any time, so that this is only a hint.
fn expected_at(end: SystemTime, wall_clock: SystemTime, now: Instant) -> Option<Instant> {
    let left = end.duration_since(wall_clock).unwrap_or_default().max(MIN_WAIT);
    now.checked_add(left)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU64};
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::hub::Hub;
    use crate::link::{
        Credentials, DialOptions, Incoming, Link, LinkError, LinkKind, Listener, PeerCertificate, Protection,
        memory,
    };
    use crate::peer::{Peer, PeerState};
    use crate::token::{Token, TokenRefused, TokenVerifier};

    /// Presents a certificate that expires at `end` on each link of a memory listener.
    struct WithCertificate {
        inner: Box<dyn Listener>,
        end: SystemTime,
    }

    #[async_trait::async_trait]
    impl Listener for WithCertificate {
        async fn accept(&mut self) -> Result<Incoming, LinkError> {
            let link = self.inner.accept().await?.await?;
            let mut certificate = PeerCertificate::from(vec![PeerId::new("edge-1").unwrap()]);
            certificate.expires = Some(self.end);
            let link = Link::new(link, LinkKind::WSS, "test", Credentials::Certificate(certificate))
                .with_protection(Protection::Verified);
            Ok(Incoming::new(std::future::ready(Ok(link))))
        }

        fn kind(&self) -> LinkKind {
            LinkKind::WSS
        }

        fn local_address(&self) -> String {
            self.inner.local_address()
        }
    }

    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

    /// A hub whose wall clock the test sets, and a connected peer whose certificate expires in a year.
    async fn connected() -> (Hub, Peer, Arc<Mutex<SystemTime>>) {
        let start = SystemTime::UNIX_EPOCH + 50 * YEAR;
        let clock = Arc::new(Mutex::new(start));
        let (inner, dialer) = memory::listen("hub", 1 << 20);
        let mut builder = Hub::builder().listener(Box::new(WithCertificate { inner, end: start + YEAR }));
        let shown = Arc::clone(&clock);
        builder.authentication.wall_clock = Arc::new(move || *shown.lock().unwrap());
        let hub = builder.start().unwrap();
        let peer = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(Box::new(dialer)).start().unwrap();
        peer.connected().await.unwrap();
        (hub, peer, clock)
    }

    /// The hub's clock was wrong at the handshake, or its host was suspended: the session ends within a ping interval.
    #[tokio::test(start_paused = true)]
    async fn session_ends_after_the_wall_clock_jumps() {
        let (hub, peer, clock) = connected().await;
        let begun = tokio::time::Instant::now();
        *clock.lock().unwrap() += YEAR;
        let refused = |state: &PeerState| match state {
            PeerState::Connecting { last_error: Some(cause), .. } => cause.contains("has expired"),
            _ => false,
        };
        let ended =
            tokio::time::timeout(Duration::from_secs(600), peer.watch().wait_for(refused)).await.map(drop);
        assert!(ended.is_ok(), "{:?}", peer.state());
        assert!(begun.elapsed() <= Duration::from_secs(10), "{:?}", begun.elapsed());
        assert!(hub.stats().unauthenticated > 0);
    }

    /// The timer is only a hint: a session continues for as long as the wall clock says, whatever time has passed.
    #[tokio::test(start_paused = true)]
    async fn session_continues_while_the_wall_clock_stops() {
        let (hub, peer, clock) = connected().await;
        *clock.lock().unwrap() += YEAR - Duration::from_secs(1);
        // Two hints: the session sees at a tick that a second is left, and after it that the clock has not moved.
        tokio::time::sleep(Duration::from_secs(30)).await;
        assert!(peer.state().is_connected());
        assert_eq!(hub.stats().unauthenticated, 0);
    }

    /// Accepts each token, and does not answer while `silent`.
    #[derive(Default)]
    struct Verifier {
        generation: AtomicU64,
        silent: AtomicBool,
        withdrawn: AtomicBool,
        asked: Mutex<Vec<tokio::time::Instant>>,
    }

    #[async_trait::async_trait]
    impl TokenVerifier for Arc<Verifier> {
        async fn check(&self, _: &PeerId, _: &Token) -> Result<(), TokenRefused> {
            self.asked.lock().unwrap().push(tokio::time::Instant::now());
            if self.silent.load(Ordering::Relaxed) {
                std::future::pending::<()>().await;
            }
            if self.withdrawn.load(Ordering::Relaxed) { Err(TokenRefused::Unknown) } else { Ok(()) }
        }

        fn generation(&self) -> u64 {
            self.generation.load(Ordering::Relaxed)
        }
    }

    /// The verifier does not answer after a token was withdrawn: the session continues, and ends once the verifier answers.
    #[tokio::test(start_paused = true)]
    async fn silent_verifier_is_asked_again() {
        let verifier = Arc::new(Verifier::default());
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        let builder = Hub::builder().listener(listener).token_verifier(Arc::clone(&verifier));
        let _hub = builder.start().unwrap();
        let token = DialOptions::default().token(Token::new("0123456789abcdef").unwrap());
        let dialer = token.with_token(Box::new(dialer));
        let peer = Peer::builder(PeerId::new("edge-1").unwrap()).dialer(dialer).start().unwrap();
        peer.connected().await.unwrap();

        verifier.silent.store(true, Ordering::Relaxed);
        verifier.withdrawn.store(true, Ordering::Relaxed);
        verifier.generation.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_secs(30 * 60)).await;
        assert!(peer.state().is_connected(), "a silent verifier withdraws nothing");
        let asked = verifier.asked.lock().unwrap().clone();
        // The waits are at most 10, 20, 40, 80, 160 s and then 5 minutes, and at least half of that.
        assert!((9..=20).contains(&asked.len()), "{}", asked.len());
        let gaps: Vec<_> = asked.windows(2).skip(1).map(|pair| pair[1] - pair[0]).collect();
        assert!(gaps.iter().all(|gap| *gap >= Duration::from_secs(5)), "{gaps:?}");

        verifier.silent.store(false, Ordering::Relaxed);
        let refused = |state: &PeerState| match state {
            PeerState::Connecting { last_error: Some(cause), .. } => cause.contains("not registered"),
            _ => false,
        };
        let ended =
            tokio::time::timeout(Duration::from_secs(600), peer.watch().wait_for(refused)).await.is_ok();
        assert!(ended && asked.last().unwrap().elapsed() <= Duration::from_secs(320));
    }

    #[test]
    fn hints_lie_in_the_future() {
        let (end, now) = (SystemTime::UNIX_EPOCH + YEAR, Instant::now());
        assert_eq!(expected_at(end, end - YEAR, now), Some(now + YEAR));
        assert_eq!(expected_at(end, end, now), Some(now + MIN_WAIT));
        assert_eq!(expected_at(end, end + YEAR, now), Some(now + MIN_WAIT));
    }
}
