//! One link at the hub.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::Sleep;

use super::Shared;
use super::auth::Verdict;
use crate::frame::{Frame, Kind, Lane, decode, encode};
use crate::hub::SessionKey;
use crate::link::{Link, LinkKind};
use crate::name::PeerId;
use crate::pump::{Pump, now};
use crate::session::{CloseReason, Hop, HopAction, HopEvent, HopState, Remote, Role};
use crate::token::Token;

/// Frames read in a row before others on the same thread get their turn. Few, so that a burst goes on before all of it has come.
const READ_BATCH: usize = 8;
/// Bytes moved from the routing table to the link at a time.
const WRITE_BATCH: usize = 256 * 1024;
/// The slowest link on which a large frame gets the time that it needs, in bytes a second: 1 Mbit/s.
const SLOWEST: usize = 128 * 1024;

type Asking = Pin<Box<dyn Future<Output = Result<(), CloseReason>> + Send>>;

pub(super) struct Connection {
    shared: Arc<Shared>,
    pump: Pump,
    hop: Hop,
    hop_actions: Vec<HopAction>,
    key: Option<SessionKey>,
    /// Who it was that was admitted, for the last word in the log.
    peer: Option<PeerId>,
    /// What the hello held to prove its name; never handed on.
    token: Option<Token>,
    /// Asks whose token it is, and the peer that waits for the answer.
    asking: Option<(Asking, Remote)>,
    timer: Pin<Box<Sleep>>,
    /// Answer to the last ping, until the link takes it. Of several that wait only the last is worth sending, and a peer that
    /// pings without reading must not fill the memory.
    pong: Option<Kind>,
    /// Since when frames wait and the link takes nothing.
    stalled: Option<Instant>,
    /// When the hub's drain must be done.
    drain_by: Option<Instant>,
    ending: Option<CloseReason>,
    cut: bool,
}

impl Connection {
    pub(super) fn new(link: Link, shared: Arc<Shared>) -> Box<Self> {
        let mut hop_actions = Vec::new();
        let hello = shared.hello.clone();
        let hop = Hop::new(Role::Acceptor, hello, shared.settings.session.clone(), now(), &mut hop_actions);
        let timer = Box::pin(tokio::time::sleep(shared.settings.session.hello_timeout));
        Box::new(Self {
            shared,
            pump: Pump::new(link),
            hop,
            hop_actions,
            key: None,
            peer: None,
            token: None,
            asking: None,
            timer,
            pong: None,
            stalled: None,
            drain_by: None,
            ending: None,
            cut: false,
        })
    }

    /// Until the peer is admitted; `None` if it was not.
    pub(super) async fn admission(mut self: Box<Self>) -> Option<Box<Self>> {
        poll_fn(|cx| if self.key.is_some() { Poll::Ready(()) } else { self.poll(cx) }).await;
        if self.key.is_some() {
            return Some(self);
        }
        self.shared.with_core(|core| core.stats_mut().failed_handshakes += 1);
        self.farewell().await;
        None
    }

    /// Until the link ends.
    pub(super) async fn run(mut self: Box<Self>) {
        poll_fn(|cx| self.poll(cx)).await;
        if let Some(key) = self.key.take() {
            self.shared.with_core(|core| core.lost(key));
            self.shared.table().wakers.remove(&key);
        }
        self.farewell().await;
    }

    async fn farewell(self: Box<Self>) {
        let remote = self.pump.link().remote();
        match (&self.ending, &self.peer) {
            (Some(reason), Some(peer)) => tracing::info!(%peer, remote, %reason, "link closed"),
            (Some(reason), None) => tracing::info!(remote, %reason, "link closed"),
            (None, Some(peer)) => tracing::info!(%peer, remote, "link ended"),
            (None, None) => tracing::info!(remote, "link ended before its peer was admitted"),
        }
        if !self.cut && !matches!(self.ending, Some(CloseReason::Dead { .. } | CloseReason::Stalled { .. })) {
            let drained = matches!(self.ending, Some(CloseReason::Drained { .. }));
            self.pump.farewell(self.drain_by.filter(|_| drained)).await;
        }
    }

    /// Ready when the link has ended or is to be closed.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let before = self.key;
        for _ in 0..READ_BATCH {
            match self.pump.poll_receive(cx) {
                Poll::Ready(Some(Ok(bytes))) => self.received(bytes),
                Poll::Ready(Some(Err(error))) => {
                    tracing::debug!(remote = self.pump.link().remote(), %error, "link failed");
                    self.cut = true;
                    return Poll::Ready(());
                }
                Poll::Ready(None) => {
                    self.cut = true;
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    if self.ending.is_none() {
                        return self.poll_rest(cx, before);
                    }
                }
            }
            if self.ending.is_some() {
                return Poll::Ready(());
            }
        }
        // More may be there: come back after the others.
        cx.waker().wake_by_ref();
        self.poll_rest(cx, before)
    }

    fn poll_rest(&mut self, cx: &mut Context<'_>, before: Option<SessionKey>) -> Poll<()> {
        if let Some((asking, _)) = &mut self.asking
            && let Poll::Ready(answer) = asking.as_mut().poll(cx)
            && let Some((_, remote)) = self.asking.take()
        {
            let decision = match answer {
                Ok(()) => self.admit(&remote),
                Err(reason) => self.unauthenticated(reason),
            };
            self.hop_event(decision);
        }
        if let Some(next) = self.next_wakeup() {
            // Being heard moves the wake-up back; that is found out when the timer fires, not at every frame.
            if tokio::time::Instant::from_std(next) < self.timer.deadline() {
                self.timer.as_mut().reset(next.into());
            }
            while self.timer.as_mut().poll(cx).is_ready() {
                self.hop_event(HopEvent::Tick);
                self.check_stall();
                if self.ending.is_some() {
                    break;
                }
                let Some(next) = self.next_wakeup() else { break };
                self.timer.as_mut().reset(next.into());
            }
        }
        loop {
            self.take_frames(cx);
            if self.ending.is_some() {
                return Poll::Ready(());
            }
            let sent = self.pump.poll_send(cx);
            for head in self.pump.take_refused() {
                if let Some(key) = self.key {
                    self.shared.with_core(|core| core.refused(key, head));
                }
            }
            match sent {
                Poll::Ready(Ok(())) if self.more() => {}
                Poll::Ready(Ok(())) => {
                    self.stalled = None;
                    self.check_idle();
                    if self.ending.is_some() {
                        return Poll::Ready(());
                    }
                    break;
                }
                Poll::Ready(Err(error)) => {
                    tracing::debug!(remote = self.pump.link().remote(), %error, "link failed");
                    self.cut = true;
                    return Poll::Ready(());
                }
                Poll::Pending => {
                    self.note_stall();
                    break;
                }
            }
        }
        // Admission is another future than the session: it must see the key at once.
        if before.is_none() && self.key.is_some() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// When a link that takes nothing is given up: large frames get the time that they need on a slow link.
    fn stall_deadline(&self) -> Option<Instant> {
        let bytes = u32::try_from(self.pump.last_taken()).unwrap_or(u32::MAX);
        let writing = Duration::from_secs(1) * bytes / u32::try_from(SLOWEST).unwrap_or(u32::MAX);
        self.stalled.map(|since| since + self.shared.settings.session.dead_after + writing)
    }

    fn next_wakeup(&self) -> Option<Instant> {
        match (self.hop.next_wakeup(), self.stall_deadline()) {
            (Some(hop), Some(stall)) => Some(hop.min(stall)),
            (hop, stall) => hop.or(stall),
        }
    }

    /// The link did not take all there is. That must not go on for ever: what waits here is taken from others.
    fn note_stall(&mut self) {
        if self.pump.take_progress() || self.stalled.is_none() {
            self.stalled = Some(now());
        }
    }

    fn check_stall(&mut self) {
        if let Some(since) = self.stalled
            && self.stall_deadline().is_some_and(|deadline| now() >= deadline)
            && self.ending.is_none()
        {
            self.hop_event(HopEvent::Refuse(CloseReason::Stalled { after: now().duration_since(since) }));
        }
    }

    fn more(&self) -> bool {
        self.pong.is_some() || self.key.is_some_and(|key| self.shared.table().core.has_frames(key))
    }

    /// Gets frames from the routing table if the last ones are written, and asks to be woken for the next.
    fn take_frames(&mut self, cx: &Context<'_>) {
        let room = if self.pump.waiting() == 0 { WRITE_BATCH } else { 0 };
        if room > 0
            && let Some(pong) = self.pong.take()
        {
            self.pump.push(encode(Frame::hop(pong), Lane::Control));
        }
        let Some(key) = self.key else { return };
        let mut table = self.shared.table();
        // Asked even if there is no room: a link that is to be closed must not wait for its peer to read.
        if let Err(reason) = table.core.take(key, self.pump.queue(), room, now()) {
            drop(table);
            return self.hop_event(HopEvent::Refuse(reason));
        }
        table.wake();
        match table.wakers.get_mut(&key) {
            Some(waker) => waker.clone_from(cx.waker()),
            None => drop(table.wakers.insert(key, cx.waker().clone())),
        }
        let drain = table.core.draining().map(ToOwned::to_owned);
        drop(table);
        if let Some(reason) = drain
            && !matches!(self.hop.state(), HopState::Draining { deadline: Some(_), .. })
        {
            self.drain_by = Some(now() + self.shared.settings.session.drain_timeout);
            self.hop_event(HopEvent::Drain { reason });
        }
    }

    /// A link that drains is closed as soon as everything is said.
    fn check_idle(&mut self) {
        if let (Some(key), HopState::Draining { .. }) = (self.key, self.hop.state())
            && self.shared.table().core.is_idle(key)
        {
            self.hop_event(HopEvent::Idle);
        }
    }

    fn received(&mut self, bytes: Bytes) {
        match (decode(bytes, self.shared.settings.session.max_frame), self.key) {
            (Ok(frame), Some(key)) if matches!(frame.kind, Kind::Call(..)) => {
                self.hop_event(HopEvent::Noise);
                self.shared.with_core(|core| core.route(key, frame, now()));
            }
            (Ok(mut frame), _) => {
                if let Kind::Hello(hello) = &mut frame.kind {
                    self.token = hello.token.take();
                }
                if frame.kind == Kind::Unknown {
                    self.shared.with_core(|core| core.stats_mut().unknown_kinds += 1);
                }
                self.hop_event(HopEvent::Frame(frame.kind));
            }
            (Err(error), Some(key)) => {
                tracing::debug!(remote = self.pump.link().remote(), %error, "frame refused");
                self.hop_event(HopEvent::Noise);
                self.shared.with_core(|core| core.malformed(key, &error));
            }
            (Err(error), None) => {
                self.shared.with_core(|core| core.stats_mut().malformed += 1);
                self.hop_event(HopEvent::Refuse(CloseReason::Protocol { cause: error.to_string() }));
            }
        }
    }

    fn hop_event(&mut self, event: HopEvent) {
        self.hop.handle(event, now(), &mut self.hop_actions);
        while !self.hop_actions.is_empty() {
            match self.hop_actions.remove(0) {
                HopAction::Send(pong @ Kind::Pong { .. }) => self.pong = Some(pong),
                HopAction::Send(kind) => self.pump.push(encode(Frame::hop(kind), Lane::Control)),
                HopAction::Introduced(remote) => {
                    if let Some(decision) = self.decide(remote) {
                        self.hop.handle(decision, now(), &mut self.hop_actions);
                    }
                }
                HopAction::Opened(remote) => {
                    let (address, kind) = (self.pump.link().remote(), self.pump.link().kind());
                    tracing::info!(peer = %remote.peer, session = %remote.session, remote = address, %kind, "peer connected");
                    self.peer = Some(remote.peer);
                }
                HopAction::Draining { .. } => {
                    if let Some(key) = self.key {
                        self.shared.with_core(|core| core.peer_draining(key));
                    }
                }
                HopAction::Close(reason) => self.ending = Some(reason),
            }
        }
    }

    /// Whether the peer may come in; `None` while something is to be known for that.
    fn decide(&mut self, remote: Remote) -> Option<HopEvent> {
        let link = (self.pump.link().kind(), self.pump.link().credentials());
        if self.shared.own_name() == Some(&remote.peer) && link.0 != LinkKind::Memory {
            let cause = "it is the name of the hub itself".to_owned();
            return Some(self.unauthenticated(CloseReason::Unauthenticated { claimed: remote.peer, cause }));
        }
        match self.shared.authentication.check(link, self.token.take(), &remote.peer) {
            Verdict::Proven => Some(self.admit(&remote)),
            Verdict::Refused(reason) => Some(self.unauthenticated(reason)),
            Verdict::Ask(question) => {
                self.asking = Some((Box::pin(question.ask(answer_bound(&self.shared))), remote));
                None
            }
        }
    }

    fn unauthenticated(&self, reason: CloseReason) -> HopEvent {
        tracing::warn!(remote = self.pump.link().remote(), %reason, "peer refused");
        self.shared.with_core(|core| core.stats_mut().unauthenticated += 1);
        HopEvent::Refuse(reason)
    }

    fn admit(&mut self, remote: &Remote) -> HopEvent {
        match self.shared.with_core(|core| core.admit(remote)) {
            Ok(key) => {
                self.key = Some(key);
                HopEvent::Admit
            }
            Err(reason) => HopEvent::Refuse(reason),
        }
    }
}

/// How long may be asked whether a peer may come in: it waits twice as long for this end's hello, and should hear the answer before.
fn answer_bound(shared: &Shared) -> Duration {
    shared.settings.session.hello_timeout / 2
}
