//! Closing at every moment: nothing hangs.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

mod session_common;

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::PeerSettings;
use edge_transport::hub::Rules;
use edge_transport::link::memory;
use edge_transport::link::{
    Credentials, DialOptions, Dialer, FrameLink, Link, LinkError, LinkKind, Protection, WireFrame,
};
use edge_transport::token::{Token, TokenRefused, TokenVerifier};
use edge_transport::{Hub, Peer, PeerId, PeerState};
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use session_common::{Echo, collect, echo, peer_id, service_name};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

/// Longer than all timeouts of the session together; time is virtual.
const FOR_EVER: Duration = Duration::from_secs(600);

/// The state in which the peer's connection hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Dialing never completes.
    Dial,
    /// The token verification never completes.
    Authentication,
    /// There is no hub, and the next attempt is far in the future.
    Backoff,
    /// Connected, and all sent frames stay in the link, including pings.
    Blocked,
    /// Connected, with a call that gets no reply.
    Call,
}

const MOMENTS: [Moment; 5] =
    [Moment::Dial, Moment::Authentication, Moment::Backoff, Moment::Blocked, Moment::Call];

/// What is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    PeerCloses,
    PeerDrains,
    PeerIsDropped,
    HubCloses,
    HubDrains,
}

const ENDS: [End; 5] = [End::PeerCloses, End::PeerDrains, End::PeerIsDropped, End::HubCloses, End::HubDrains];

/// Dials as the moment requires.
struct MomentDialer {
    moment: Moment,
    dialer: Arc<dyn Dialer>,
    blocked: Arc<Valve>,
}

/// Whether links accept frames.
#[derive(Default)]
struct Valve {
    shut: std::sync::atomic::AtomicBool,
}

#[async_trait::async_trait]
impl Dialer for MomentDialer {
    async fn dial(&self) -> Result<Link, LinkError> {
        match self.moment {
            Moment::Dial => std::future::pending().await,
            Moment::Backoff => Err(LinkError::Lost),
            Moment::Authentication | Moment::Call | Moment::Blocked => {
                let link = self.dialer.dial().await?;
                let stalling = Stalling { link, valve: Arc::clone(&self.blocked) };
                let link = Link::new(stalling, LinkKind::MEMORY, "hub", Credentials::None);
                Ok(link.with_protection(Protection::Private))
            }
        }
    }

    fn address(&self) -> &str {
        "memory:hub"
    }
}

/// A link that accepts nothing and never closes once its valve is shut, like a full socket whose other end is lost.
struct Stalling {
    link: Link,
    valve: Arc<Valve>,
}

impl Stalling {
    fn shut<T>(&self) -> Option<Poll<T>> {
        self.valve.shut.load(std::sync::atomic::Ordering::SeqCst).then_some(Poll::Pending)
    }
}

impl FrameLink for Stalling {}

impl Stream for Stalling {
    type Item = Result<Bytes, LinkError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.shut().unwrap_or_else(|| self.link.poll_next_unpin(cx))
    }
}

impl Sink<WireFrame> for Stalling {
    type Error = LinkError;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.shut().unwrap_or_else(|| self.link.poll_ready_unpin(cx))
    }

    fn start_send(mut self: Pin<&mut Self>, frame: WireFrame) -> Result<(), LinkError> {
        self.link.start_send_unpin(frame)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.shut().unwrap_or_else(|| self.link.poll_flush_unpin(cx))
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), LinkError>> {
        self.shut().unwrap_or_else(|| self.link.poll_close_unpin(cx))
    }
}

/// Never completes a verification, except for `helper`.
struct Silent {
    asked: Arc<Notify>,
    moment: Moment,
}

#[async_trait::async_trait]
impl TokenVerifier for Silent {
    async fn check(&self, claimed: &PeerId, _: &Token) -> Result<(), TokenRefused> {
        if self.moment == Moment::Authentication && claimed.as_str() != "helper" {
            self.asked.notify_one();
            std::future::pending::<()>().await;
        }
        Ok(())
    }
}

struct TestNet {
    hub: Hub,
    peer: Peer,
    state: tokio::sync::watch::Receiver<PeerState>,
    call: Option<edge_transport::ReplyStream>,
    helper: Peer,
}

impl TestNet {
    /// Runs until the moment is reached.
    async fn at(moment: Moment) -> Self {
        let (listener, dialer) = memory::listen("hub", 1 << 20);
        let asked = Arc::new(Notify::new());
        let silent = Silent { asked: Arc::clone(&asked), moment };
        let hub = Hub::builder()
            .listener(listener)
            .token_verifier(silent)
            .policy(Rules::allow_all())
            .start()
            .unwrap();
        let blocked = Arc::new(Valve::default());
        let token = DialOptions::default().token(Token::new("0123456789abcdef").unwrap());
        let with_token = |dialer: Box<dyn Dialer>| token.with_token(dialer);
        let echo_service = Echo::default();
        let helper = Peer::builder(peer_id("helper"))
            .dialer(with_token(Box::new(dialer.clone())))
            .service(service_name("echo"), echo_service.clone())
            .start()
            .unwrap();
        helper.connected().await.unwrap();
        let mut settings = PeerSettings::default();
        settings.dial_timeout = FOR_EVER;
        (settings.backoff_initial, settings.backoff_max) = (FOR_EVER, FOR_EVER);
        let dialer = MomentDialer { moment, dialer, blocked: Arc::clone(&blocked) };
        let peer = Peer::builder(peer_id("peer"))
            .dialer(with_token(Box::new(dialer)))
            .settings(settings)
            .start()
            .unwrap();
        let mut state = peer.watch();
        let mut call = None;
        match moment {
            Moment::Dial => sleep(Duration::from_millis(1)).await,
            Moment::Authentication => asked.notified().await,
            Moment::Backoff => {
                let failed = |state: &PeerState| matches!(state, PeerState::Connecting { attempts: 1.., .. });
                state.wait_for(failed).await.unwrap();
            }
            Moment::Blocked | Moment::Call => {
                peer.connected().await.unwrap();
                call = Some(peer.call(peer_id("helper"), echo("never")).await.unwrap());
                echo_service.started.notified().await;
                let shut = moment == Moment::Blocked;
                blocked.shut.store(shut, std::sync::atomic::Ordering::SeqCst);
                // By now some pings are queued in the link, and the link is not yet closed as dead.
                sleep(Duration::from_secs(if shut { 4 } else { 0 })).await;
            }
        }
        Self { hub, state, peer, call, helper }
    }
}

/// Closes the peer or the hub in a separate task. For a peer that was dropped before, the task does nothing.
fn start_closing(end: End, hub: &Hub, peer: &mut Option<Peer>) -> tokio::task::JoinHandle<()> {
    let (hub, peer) = (hub.clone(), if end == End::PeerIsDropped { peer.take() } else { peer.clone() });
    tokio::spawn(async move {
        match (end, peer) {
            (End::PeerCloses, Some(peer)) => peer.close().await,
            (End::PeerDrains, Some(peer)) => peer.drain("ends").await,
            (End::PeerIsDropped | End::PeerCloses | End::PeerDrains, _) => {}
            (End::HubCloses, _) => hub.close().await,
            (End::HubDrains, _) => hub.drain("ends").await,
        }
    })
}

/// Combines every two ways of closing, in every order and at every moment. The peer ends with its last handle, the hub
/// closes, calls get their end, and none of them waits longer than the sum of the timeouts.
#[tokio::test(start_paused = true)]
async fn closes_in_every_order_at_every_moment() {
    for moment in MOMENTS {
        for first in ENDS {
            for second in ENDS {
                for apart in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(3)] {
                    let case = format!("{moment:?}, {first:?}, after {apart:?} {second:?}");
                    check_ends(TestNet::at(moment).await, first, apart, second, &case).await;
                }
            }
        }
    }
}

async fn check_ends(net: TestNet, first: End, apart: Duration, second: End, case: &str) {
    let before = Instant::now();
    let TestNet { hub, peer, mut state, call, helper } = net;
    let call = call.map(|call| tokio::spawn(collect(call)));
    let mut peer = Some(peer);
    let one = start_closing(first, &hub, &mut peer);
    sleep(apart).await;
    let two = start_closing(second, &hub, &mut peer);
    drop(peer);
    for (task, end) in [(one, first), (two, second)] {
        let ended = timeout(FOR_EVER / 2, task).await;
        assert!(ended.is_ok(), "{case}: {end:?} never returns");
    }
    // All handles are dropped: the peer's task must end, and its calls with it.
    let closed = state.wait_for(|state| *state == PeerState::Closed);
    assert!(timeout(FOR_EVER / 2, closed).await.is_ok(), "{case}: the peer keeps running");
    if let Some(call) = call {
        let ended = timeout(FOR_EVER / 2, call).await;
        assert!(ended.is_ok(), "{case}: the call has no end");
        assert!(ended.unwrap().unwrap().1.is_err(), "{case}");
    }
    assert!(timeout(FOR_EVER / 2, hub.close()).await.is_ok(), "{case}: the hub does not close");
    assert!(timeout(FOR_EVER / 2, helper.close()).await.is_ok(), "{case}: the helper does not close");
    assert!(before.elapsed() < Duration::from_secs(120), "{case}: took {:?}", before.elapsed());
    assert_eq!(hub.stats().open_calls, 0, "{case}");
}

/// A hub whose token verification hangs frees the handshake slot.
#[tokio::test(start_paused = true)]
async fn hanging_token_verification_times_out() {
    let net = TestNet::at(Moment::Authentication).await;
    let before = Instant::now();
    let mut state = net.state.clone();
    let refused = state.wait_for(|state| matches!(state, PeerState::Connecting { last_error: Some(_), .. }));
    let refused = timeout(FOR_EVER / 2, refused).await.unwrap().unwrap().clone();
    let text = format!("{refused:?}");
    assert!(text.contains("its token could not be verified within 2.5s; try again later"), "{text}");
    assert!(before.elapsed() <= Duration::from_secs(3), "{:?}", before.elapsed());
    assert_eq!(net.hub.stats().unauthenticated, 1);
}

/// A hub that closes while a peer is being authenticated does not wait for it.
#[tokio::test(start_paused = true)]
async fn closing_hub_does_not_wait_for_handshakes() {
    let net = TestNet::at(Moment::Authentication).await;
    let before = Instant::now();
    net.hub.close().await;
    assert!(before.elapsed() < Duration::from_millis(100), "{:?}", before.elapsed());
}

#[tokio::test(start_paused = true)]
async fn cancelled_queued_call_is_never_made() {
    let (listener, dialer) = memory::listen("hub", 1 << 20);
    let builder = Hub::builder().listener(listener).allow_unauthenticated();
    let hub = builder.policy(Rules::allow_all()).start().unwrap();
    let service = Echo::default();
    let edge = Peer::builder(peer_id("edge")).dialer(Box::new(dialer.clone()));
    let edge = edge.service(service_name("echo"), service.clone()).start().unwrap();
    edge.connected().await.unwrap();
    let blocked = Arc::new(Valve::default());
    let mut settings = PeerSettings::default();
    settings.max_queued_bytes = 1;
    let dialer = MomentDialer { moment: Moment::Call, dialer, blocked: Arc::clone(&blocked) };
    let peer = Peer::builder(peer_id("peer")).dialer(Box::new(dialer)).settings(settings).start().unwrap();
    peer.connected().await.unwrap();

    blocked.shut.store(true, std::sync::atomic::Ordering::SeqCst);
    let first = peer.call(peer_id("edge"), echo(vec![0; 100_000])).await.unwrap();
    drop(peer.call(peer_id("edge"), echo("stream:1000:10000")).await.unwrap());
    // Until the link resumes, at its next ping at the latest.
    sleep(Duration::from_secs(1)).await;
    blocked.shut.store(false, std::sync::atomic::Ordering::SeqCst);
    collect(first).await.1.unwrap();
    // A later call on the same path has arrived.
    collect(peer.call(peer_id("edge"), echo("third")).await.unwrap()).await.1.unwrap();
    assert_eq!(hub.stats().open_calls, 0);
    assert_eq!(hub.stats().calls, 2);
    assert_eq!(service.sent.load(std::sync::atomic::Ordering::SeqCst), 0, "the cancelled call was made");
}
