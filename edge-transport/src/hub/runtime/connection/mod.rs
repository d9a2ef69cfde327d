//! One link at the hub.

mod identity;
mod write;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::Sleep;

use super::Shared;
use super::auth::{Decision, TokenCheck};
use super::receive_budget::ReceiveShare;
use crate::frame::{Frame, Kind, Lane, decode, encode};
use crate::frame_io::{FrameIo, now};
use crate::hub::SessionKey;
use crate::hub::identity::Identity;
use crate::link::{Link, LinkError, LinkKind, ReceiveLimits};
use crate::name::PeerId;
use crate::session::{CloseReason, LinkAction, LinkCore, LinkEvent, Remote, Role};
use crate::token::Token;

/// Frames that are read before the task yields: few, so that the start of a burst is forwarded before its end has arrived. With
/// several threads a yield may wake another one, so that a batch is larger.
const READ_BATCH: usize = 8;
const READ_BATCH_OF_SEVERAL_THREADS: usize = 24;

/// The end of a shorter link has no line in the log at the usual level.
const SHORT: Duration = Duration::from_secs(10);

/// About how many bytes are read before the task yields.
const READ_BATCH_BYTES: usize = 64 * 1024;

/// Returns how many frames a link reads before its task yields, in the current runtime. One sender may have half of a peer's
/// queue: no batch fills it before the peer's task can write.
pub(super) fn read_batch(queue_frames: usize) -> usize {
    let batch = match tokio::runtime::Handle::current().metrics().num_workers() {
        0 | 1 => READ_BATCH,
        _ => READ_BATCH_OF_SEVERAL_THREADS,
    };
    batch.min(queue_frames / 2).max(1)
}

type TokenCheckFuture = Pin<Box<dyn Future<Output = Result<(), CloseReason>> + Send>>;

pub(super) struct Connection {
    shared: Arc<Shared>,
    io: FrameIo,
    core: LinkCore,
    actions: Vec<LinkAction>,
    key: Option<SessionKey>,
    /// The admitted peer, for the last log line.
    peer: Option<PeerId>,
    /// The token of the hello; never forwarded.
    token: Option<Token>,
    /// A token verification in progress, the peer that waits for it, and its identity. Boxed, like what else only peers with
    /// tokens have: every session would keep space for it.
    token_check: Option<Box<(TokenCheckFuture, Remote, Identity)>>,
    /// What the link has taken from the budget of received bytes; set once the peer is admitted.
    receive_share: Option<ReceiveShare>,
    /// Whether a call waits for the peer, or a large frame of it is arriving.
    call_waits: bool,
    /// When the link was last found waiting for that budget.
    waited: Option<Instant>,
    /// The token that proves the peer's name, to verify it again.
    verified: Option<Box<TokenCheck>>,
    /// A repeated verification in progress.
    token_recheck: Option<identity::RecheckFuture>,
    /// When to repeat it again, if there was no answer.
    token_retry: Option<Box<identity::TokenRetry>>,
    /// The value of `Shared::identity_checks` at the last check of the identity.
    identity_checks: u64,
    /// The authorities that have verified the peer's certificate last, if they have changed since the handshake.
    #[cfg(feature = "tls")]
    verified_by: Option<crate::tls::AuthoritiesId>,
    /// When the peer's certificate is expected to expire.
    expires: Option<Instant>,
    began: Instant,
    timer: Pin<Box<Sleep>>,
    /// Pong for the last ping, until the link accepts it. Only the latest is kept: a peer that pings without reading must not
    /// fill the memory.
    pong: Option<Kind>,
    /// When the link last accepted data, if frames are queued.
    stalled: Option<Instant>,
    /// Deadline of the hub's drain.
    drain_by: Option<Instant>,
    /// Until when a peer that was asked to leave may take to reach another hub, before its link is closed as idle.
    leave_by: Option<Instant>,
    closed: Option<CloseReason>,
    /// Whether the link has failed or ended: nothing can be flushed then.
    is_lost: bool,
}

impl Connection {
    pub(super) fn new(link: Link, shared: Arc<Shared>) -> Box<Self> {
        let mut actions = Vec::new();
        let hello = Arc::clone(&shared.hello);
        let core = LinkCore::new(Role::Acceptor, hello, shared.settings.session.clone(), now(), &mut actions);
        let timer = Box::pin(tokio::time::sleep(shared.settings.session.hello_timeout));
        let mut io = FrameIo::new(link);
        io.limit_receiving(ReceiveLimits::UNADMITTED);
        Box::new(Self {
            shared,
            io,
            core,
            actions,
            key: None,
            peer: None,
            token: None,
            token_check: None,
            receive_share: None,
            call_waits: false,
            waited: None,
            verified: None,
            token_recheck: None,
            token_retry: None,
            identity_checks: 0,
            #[cfg(feature = "tls")]
            verified_by: None,
            expires: None,
            began: now(),
            timer,
            pong: None,
            stalled: None,
            drain_by: None,
            leave_by: None,
            closed: None,
            is_lost: false,
        })
    }

    /// Runs until the peer is admitted. Returns `None` if the peer was not admitted.
    pub(super) async fn admission(mut self: Box<Self>) -> Option<Box<Self>> {
        poll_fn(|cx| if self.key.is_some() { Poll::Ready(()) } else { self.poll(cx) }).await;
        if self.key.is_some() {
            return Some(self);
        }
        self.shared.with_core(|core| core.stats_mut().failed_handshakes += 1);
        self.close().await;
        None
    }

    /// Runs until the link ends.
    pub(super) async fn run(mut self: Box<Self>) {
        poll_fn(|cx| self.poll(cx)).await;
        if let Some(key) = self.key.take() {
            self.shared.with_core(|core| core.lost(key));
            self.shared.left.notify_one();
            self.shared.table().wakers.remove(&key);
        }
        // On the heap: an idle session does not keep space for its end.
        Box::pin(self.close()).await;
    }

    async fn close(self: Box<Self>) {
        let remote = self.io.link().remote();
        match (&self.closed, &self.peer) {
            // A peer that connects again and again does not fill the log.
            (Some(reason), Some(peer)) if now().duration_since(self.began) < SHORT => {
                tracing::debug!(%peer, remote, %reason, "link closed");
            }
            (Some(reason), Some(peer)) => tracing::info!(%peer, remote, %reason, "link closed"),
            (Some(reason), None) => self.shared.warnings.1.not_admitted(remote, reason),
            (None, Some(peer)) if now().duration_since(self.began) < SHORT => {
                tracing::debug!(%peer, remote, "link ended");
            }
            (None, Some(peer)) => tracing::info!(%peer, remote, "link ended"),
            (None, None) => tracing::debug!(remote, "link ended before its peer was admitted"),
        }
        // A peer that connected again has given up this link: the last frame would be repeated, over QUIC about 17 times, to
        // an address where nothing listens.
        let is_useless = matches!(
            self.closed,
            Some(CloseReason::Dead { .. } | CloseReason::Stalled { .. } | CloseReason::Replaced { .. })
        );
        if !self.is_lost && !is_useless {
            let drained = matches!(self.closed, Some(CloseReason::Drained { .. }));
            self.io.flush_and_close(self.drain_by.filter(|_| drained)).await;
        }
    }

    /// Ready when the link has ended or must be closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let previous_key = self.key;
        let mut bytes_read = 0;
        for _ in 0..self.shared.read_batch {
            match self.io.poll_receive(cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    bytes_read += bytes.len();
                    self.received(bytes);
                }
                Poll::Ready(Some(Err(error))) => {
                    let (remote, is_admitted) = (self.io.link().remote(), self.key.is_some());
                    match error {
                        // The peer cannot receive the reason: the rest of its frame is not read.
                        LinkError::TooLarge { .. } if !is_admitted => {
                            self.shared.warnings.1.not_admitted(remote, &error);
                        }
                        error => tracing::debug!(remote, %error, "link failed"),
                    }
                    self.is_lost = true;
                    return Poll::Ready(());
                }
                Poll::Ready(None) => {
                    self.is_lost = true;
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    if self.closed.is_none() && !self.adapt_receive_share(cx) {
                        return self.poll_rest(cx, previous_key);
                    }
                }
            }
            if self.closed.is_some() {
                return Poll::Ready(());
            }
            if bytes_read >= READ_BATCH_BYTES {
                break;
            }
        }
        // There may be more frames: yield to other tasks first. A link that is never without frames returns its bytes too.
        self.adapt_receive_share(cx);
        cx.waker().wake_by_ref();
        self.poll_rest(cx, previous_key)
    }

    /// Takes or returns bytes of the budget for received frames. Returns `true` if the link may now read further.
    fn adapt_receive_share(&mut self, cx: &Context<'_>) -> bool {
        let Some(share) = &mut self.receive_share else { return false };
        let Some(limits) = share.adapt(self.io.unfinished(), cx) else { return false };
        self.io.limit_receiving(limits);
        share.has_taken()
    }

    /// Whether the silence of the other end proves nothing: a frame is arriving, or the link waits for the budget.
    fn is_excused(&mut self) -> bool {
        if self.receive_share.as_ref().is_some_and(ReceiveShare::is_waiting) {
            self.waited = Some(now());
            return true;
        }
        self.io.is_receiving(self.shared.settings.session.frame_timeout())
    }

    /// Closes a link that holds bytes of the budget for a frame that does not become complete. On links that
    /// receive one frame at a time, the session's liveness timeout does this, once the frame is no excuse any more.
    fn check_unfinished(&mut self) {
        let after = self.shared.settings.session.frame_timeout();
        let since =
            self.io.oldest_unfinished().map(|began| self.waited.map_or(began, |waited| waited.max(began)));
        if self.receive_share.as_ref().is_some_and(ReceiveShare::has_taken)
            && self.closed.is_none()
            && since.is_some_and(|since| now().duration_since(since) >= after)
        {
            self.link_event(LinkEvent::Refuse(CloseReason::UnfinishedFrame { after }));
        }
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>, previous_key: Option<SessionKey>) -> Poll<()> {
        if let Some(token_check) = &mut self.token_check
            && let Poll::Ready(answer) = token_check.0.as_mut().poll(cx)
            && let Some((_, remote, identity)) = self.token_check.take().map(|check| *check)
        {
            let decision = match answer {
                Ok(()) => self.admit(&remote, identity),
                Err(reason) => self.unauthenticated(reason),
            };
            self.link_event(decision);
        }
        while self.timer.as_mut().poll(cx).is_ready() {
            if self.is_excused() {
                self.link_event(LinkEvent::Excused);
            }
            self.link_event(LinkEvent::Tick);
            self.check_stall();
            self.check_unfinished();
            self.check_identity(true);
            if self.closed.is_some() {
                break;
            }
            let Some(next) = self.next_wakeup() else { break };
            self.timer.as_mut().reset(next.into());
        }
        if self.poll_write(cx).is_ready() {
            return Poll::Ready(());
        }
        // Received frames postpone the wake-up. The timer is not reset for every frame: it fires early and is reset then.
        if let Some(next) = self.next_wakeup().map(tokio::time::Instant::from_std)
            && next < self.timer.deadline()
        {
            self.timer.as_mut().reset(next);
            if self.timer.as_mut().poll(cx).is_ready() {
                cx.waker().wake_by_ref();
            }
        }
        // `admission` and `run` are separate futures: `admission` must complete as soon as the key is set.
        if previous_key.is_none() && self.key.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn next_wakeup(&self) -> Option<Instant> {
        let leave_by = self.leave_by.filter(|until| now() < *until);
        let token_retry = self.token_retry.as_ref().and_then(|retry| retry.at());
        let times = [self.core.next_wakeup(), self.stall_deadline(), self.expires, leave_by, token_retry];
        times.into_iter().flatten().min()
    }

    fn received(&mut self, bytes: Bytes) {
        match (decode(bytes, self.shared.settings.session.max_frame), self.key) {
            (Ok(frame), Some(key)) if matches!(frame.kind, Kind::Call(..)) => {
                self.link_event(LinkEvent::Activity);
                self.shared.with_core(|core| core.route(key, frame, now()));
            }
            (Ok(mut frame), _) => {
                if let Kind::Hello(hello) = &mut frame.kind {
                    self.token = hello.token.take();
                }
                if frame.kind == Kind::Unknown {
                    self.shared.with_core(|core| core.stats_mut().unknown_kinds += 1);
                }
                let is_ping = matches!(frame.kind, Kind::Ping { .. });
                self.link_event(LinkEvent::Frame(frame.kind));
                if is_ping {
                    self.check_identity(true);
                }
            }
            (Err(error), Some(key)) => {
                tracing::debug!(remote = self.io.link().remote(), %error, "invalid frame");
                self.link_event(LinkEvent::Activity);
                self.shared.with_core(|core| core.malformed(key, &error));
            }
            (Err(error), None) => {
                self.shared.with_core(|core| core.stats_mut().malformed += 1);
                self.link_event(LinkEvent::Refuse(CloseReason::Protocol { cause: error.to_string() }));
            }
        }
    }

    fn link_event(&mut self, event: LinkEvent) {
        self.core.handle(event, now(), &mut self.actions);
        while !self.actions.is_empty() {
            match self.actions.remove(0) {
                LinkAction::Send(pong @ Kind::Pong { .. }) => self.pong = Some(pong),
                LinkAction::Send(kind) => self.io.push(encode(Frame::link(kind), Lane::Control)),
                LinkAction::HelloReceived(remote) => {
                    if let Some(decision) = self.decide(remote) {
                        self.core.handle(decision, now(), &mut self.actions);
                    }
                }
                LinkAction::Opened(remote) => {
                    let (address, kind) = (self.io.link().remote(), self.io.link().kind());
                    tracing::debug!(peer = %remote.peer, session = %remote.session, remote = address, %kind, "peer connected");
                    self.peer = Some(remote.peer);
                }
                LinkAction::Draining { .. } => {
                    self.leave_by = None;
                    if let Some(key) = self.key {
                        self.shared.with_core(|core| core.peer_draining(key));
                        self.shared.left.notify_one();
                    }
                }
                LinkAction::Close(reason) => self.closed = Some(reason),
            }
        }
        // Calls have no actions, so that an idle session keeps no space for them.
        self.actions = Vec::new();
    }

    /// Decides whether to admit the peer; `None` while its token is being verified.
    fn decide(&mut self, remote: Remote) -> Option<LinkEvent> {
        // Read before the checks, so that what is reloaded meanwhile is checked again.
        self.identity_checks = self.shared.identity_checks.load(Ordering::Acquire);
        let link = (self.io.link().protection(), self.io.link().credentials());
        let of_hub = self.shared.local_name();
        let is_reserved = match of_hub == Some(&remote.peer) {
            true => !self.io.link().is_of_hub(),
            // Names below it are for callers in the process of the hub, whose rules are for no other peer.
            false => {
                self.io.link().kind() != LinkKind::MEMORY
                    && of_hub.is_some_and(|hub| hub.covers(&remote.peer))
            }
        };
        if is_reserved {
            let cause = "the name is reserved for the hub itself".to_owned();
            return Some(self.unauthenticated(CloseReason::Unauthenticated { claimed: remote.peer, cause }));
        }
        match self.shared.authentication.check(link, self.token.take(), &remote.peer) {
            Decision::Authenticated(identity) => Some(self.admit(&remote, identity)),
            Decision::Rejected(reason) => Some(self.unauthenticated(reason)),
            Decision::Verify(pending, identity) => {
                self.verified = Some(Box::new(pending.clone()));
                let check = Box::pin(pending.verify(check_timeout(&self.shared)));
                self.token_check = Some(Box::new((check, remote, identity)));
                None
            }
        }
    }

    fn unauthenticated(&self, reason: CloseReason) -> LinkEvent {
        self.shared.with_core(|core| core.stats_mut().unauthenticated += 1);
        LinkEvent::Refuse(reason)
    }

    fn admit(&mut self, remote: &Remote, identity: Identity) -> LinkEvent {
        if let Some(reason) = self.revoked(&remote.peer).or_else(|| self.distrusted(&remote.peer)) {
            return self.unauthenticated(reason);
        }
        let admitted = self.shared.with_core(|core| {
            core.admit_as(remote, identity.clone()).map(|key| (key, core.is_caller(remote)))
        });
        match admitted {
            Ok((key, is_caller)) => {
                self.key = Some(key);
                let share = self.shared.receive_budget.share(identity, is_caller);
                self.io.limit_receiving(share.limits());
                self.receive_share = Some(share);
                LinkEvent::Admit
            }
            Err(reason) => LinkEvent::Refuse(reason),
        }
    }
}

/// Timeout of a token verification. The peer waits twice as long for the hub's hello and should receive the result before.
fn check_timeout(shared: &Shared) -> Duration {
    shared.settings.session.hello_timeout / 2
}
