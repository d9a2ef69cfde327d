//! The state machine of one link: hello, liveness, drain. Peers and the hub use it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::liveness::{Due, Liveness};
use super::{CloseReason, SessionSettings};
use crate::frame::{Hello, Kind};
use crate::name::{PeerId, ServiceName, SessionId};

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Dialed the link and sends the first hello.
    Dialer,
    /// Accepted the link and sends its hello after it has admitted the other end.
    Acceptor,
}

/// The other end of a link, as negotiated by the hellos.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remote {
    /// The peer's name.
    pub peer: PeerId,
    /// The peer's session.
    pub session: SessionId,
    /// The protocol version in use.
    pub version: u32,
    /// Largest frame in bytes that the peer accepts.
    pub max_frame: usize,
    /// Services that the peer answers.
    pub services: Arc<[ServiceName]>,
    /// Names of the optional features that both ends support.
    pub features: Vec<String>,
    /// How often the peer pings while no call waits, if it has announced that.
    pub idle_ping: Option<Duration>,
}

/// The state of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkState {
    /// Waits for the other end's hello.
    AwaitHello {
        /// When the link is refused if no hello has arrived.
        deadline: Instant,
    },
    /// The other end's hello has arrived; admission is pending.
    AwaitAdmission(Remote),
    /// The link carries calls.
    Open(Remote),
    /// The link carries open calls and accepts no new ones.
    Draining {
        /// The other end.
        remote: Remote,
        /// The reason.
        reason: String,
        /// When this end closes at the latest; `None` if the other end drains and closes.
        deadline: Option<Instant>,
    },
    /// The link has ended.
    Closed,
}

/// An input of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkEvent {
    /// A link frame was received.
    Frame(Kind),
    /// A call frame or an invalid frame was received, which proves that the other end is alive.
    Activity,
    /// No frame could arrive lately, because a large one is arriving or this end does not read: silence proves nothing.
    /// Before [`LinkEvent::Tick`]. The other end still receives pings, whose answers may be queued behind its frame.
    Excused,
    /// The acceptor admits the other end.
    Admit,
    /// This end refuses the link, or ends it at once.
    Refuse(CloseReason),
    /// This end accepts no new calls.
    Drain {
        /// Human-readable reason.
        reason: String,
    },
    /// No call is open.
    Idle,
    /// Whether a call waits for the other end. The event may repeat.
    Waiting(bool),
    /// Another peer depends on whether the other end is alive.
    Check,
    /// Time has passed.
    Tick,
}

/// An output of a link, to be executed by its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkAction {
    /// Send a frame to the other end.
    Send(Kind),
    /// Decide on [`LinkEvent::Admit`] or [`LinkEvent::Refuse`].
    HelloReceived(Remote),
    /// The link is open.
    Opened(Remote),
    /// The other end accepts no new calls.
    Draining {
        /// The reason.
        reason: String,
    },
    /// Send the queued frames, then close.
    Close(CloseReason),
}

/// The state machine of a link.
#[derive(Debug)]
pub struct LinkCore {
    role: Role,
    /// Shared by the links of a hub, which would keep a copy each.
    hello: Arc<Hello>,
    settings: SessionSettings,
    state: LinkState,
    liveness: Liveness,
    nonce: u64,
}

impl LinkCore {
    /// Starts on a new link. A dialer's hello is added to `actions` at once.
    pub fn new(
        role: Role,
        hello: Arc<Hello>,
        settings: SessionSettings,
        now: Instant,
        actions: &mut Vec<LinkAction>,
    ) -> Self {
        if role == Role::Dialer {
            actions.push(LinkAction::Send(Kind::Hello(Hello::clone(&hello))));
        }
        let state = LinkState::AwaitHello { deadline: now + settings.hello_timeout };
        Self { role, hello, settings, state, liveness: Liveness::new(role, None, now), nonce: 0 }
    }

    /// The state of the link.
    #[must_use]
    pub const fn state(&self) -> &LinkState {
        &self.state
    }

    /// The other end, once the link is open.
    #[must_use]
    pub const fn remote(&self) -> Option<&Remote> {
        match &self.state {
            LinkState::Open(remote) | LinkState::Draining { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// When [`LinkEvent::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        match &self.state {
            LinkState::AwaitHello { deadline } => Some(*deadline),
            LinkState::AwaitAdmission(_) | LinkState::Closed => None,
            LinkState::Open(_) => Some(self.liveness.next_check(&self.settings)),
            LinkState::Draining { deadline, .. } => {
                let check = self.liveness.next_check(&self.settings);
                Some(deadline.map_or(check, |deadline| deadline.min(check)))
            }
        }
    }

    /// Handles an event at `now` and appends the resulting actions to `actions`.
    pub fn handle(&mut self, event: LinkEvent, now: Instant, actions: &mut Vec<LinkAction>) {
        if matches!(event, LinkEvent::Frame(_) | LinkEvent::Activity) {
            self.liveness.received(now);
        }
        match (&mut self.state, event) {
            (LinkState::Closed, _) => {}
            (_, LinkEvent::Refuse(reason)) => self.refuse(reason, actions),
            (LinkState::AwaitHello { .. }, LinkEvent::Frame(Kind::Hello(hello))) => {
                self.on_hello(hello, now, actions);
            }
            (LinkState::AwaitHello { .. }, LinkEvent::Frame(Kind::Drain { reason })) => {
                self.close(CloseReason::Refused { reason }, actions);
            }
            (LinkState::AwaitHello { .. }, LinkEvent::Frame(_) | LinkEvent::Activity) => {
                self.refuse(
                    CloseReason::Protocol { cause: "the first frame is not a hello".into() },
                    actions,
                );
            }
            (LinkState::AwaitHello { deadline }, LinkEvent::Tick) => {
                if now >= *deadline {
                    self.refuse(CloseReason::HelloTimeout { after: self.settings.hello_timeout }, actions);
                }
            }
            (LinkState::AwaitHello { .. } | LinkState::AwaitAdmission(_), LinkEvent::Drain { reason }) => {
                self.refuse(CloseReason::Drained { reason }, actions);
            }
            (LinkState::AwaitAdmission(remote), LinkEvent::Admit) => {
                let remote = remote.clone();
                actions.push(LinkAction::Send(Kind::Hello(Hello::clone(&self.hello))));
                self.open(remote.clone(), remote.idle_ping, now, actions);
            }
            (LinkState::AwaitAdmission(_), LinkEvent::Frame(_)) => {
                self.refuse(
                    CloseReason::Protocol { cause: "a frame arrived before this end's hello".into() },
                    actions,
                );
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Frame(Kind::Hello(_))) => {
                self.refuse(CloseReason::Protocol { cause: "a second hello".into() }, actions);
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Frame(Kind::Ping { nonce })) => {
                actions.push(LinkAction::Send(Kind::Pong { nonce }));
            }
            (LinkState::Open(remote), LinkEvent::Frame(Kind::Drain { reason })) => {
                actions.push(LinkAction::Draining { reason: reason.clone() });
                self.state = LinkState::Draining { remote: remote.clone(), reason, deadline: None };
            }
            // Both ends drain: a peer that was asked to leave has nowhere to go.
            (LinkState::Draining { .. }, LinkEvent::Frame(Kind::Drain { reason })) => {
                actions.push(LinkAction::Draining { reason });
            }
            (LinkState::Open(remote), LinkEvent::Drain { reason }) => {
                actions.push(LinkAction::Send(Kind::Drain { reason: reason.clone() }));
                let deadline = Some(now + self.settings.drain_timeout);
                self.state = LinkState::Draining { remote: remote.clone(), reason, deadline };
            }
            (
                LinkState::Draining { reason, deadline: deadline @ None, .. },
                LinkEvent::Drain { reason: local },
            ) => {
                actions.push(LinkAction::Send(Kind::Drain { reason: local.clone() }));
                *reason = local;
                *deadline = Some(now + self.settings.drain_timeout);
            }
            (LinkState::Draining { reason, deadline: Some(_), .. }, LinkEvent::Idle) => {
                let reason = std::mem::take(reason);
                self.close(CloseReason::Drained { reason }, actions);
            }
            (LinkState::Draining { reason, deadline: Some(deadline), .. }, LinkEvent::Tick)
                if now >= *deadline =>
            {
                let reason = std::mem::take(reason);
                self.close(CloseReason::DrainTimeout { after: self.settings.drain_timeout, reason }, actions);
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Tick) => {
                self.check_liveness(now, actions);
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Waiting(call_waits)) => {
                if self.liveness.set_waiting(call_waits, now) {
                    self.check_liveness(now, actions);
                }
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Check) => {
                if self.liveness.check(now) {
                    self.ping(actions);
                }
            }
            (LinkState::Open(_) | LinkState::Draining { .. }, LinkEvent::Excused) => {
                if self.liveness.excused(&self.settings, now) {
                    self.ping(actions);
                }
            }
            (_, _) => {}
        }
    }

    fn on_hello(&mut self, hello: Hello, now: Instant, actions: &mut Vec<LinkAction>) {
        let local = self.hello.version_min..=self.hello.version_max;
        let remote = hello.version_min..=hello.version_max;
        let version = *local.end().min(remote.end());
        if !local.contains(&version) || !remote.contains(&version) {
            return self.refuse(CloseReason::Version { local, remote }, actions);
        }
        let features =
            hello.features.into_iter().filter(|feature| self.hello.features.contains(feature)).collect();
        let remote = Remote {
            peer: hello.peer,
            session: hello.session,
            version,
            max_frame: hello.max_frame,
            services: hello.services.into(),
            features,
            idle_ping: hello.idle_ping,
        };
        match self.role {
            Role::Dialer => self.open(remote, self.hello.idle_ping, now, actions),
            Role::Acceptor => {
                actions.push(LinkAction::HelloReceived(remote.clone()));
                self.state = LinkState::AwaitAdmission(remote);
            }
        }
    }

    /// Opens the link, whose dialing end pings this often while no call waits.
    fn open(
        &mut self,
        remote: Remote,
        idle_ping: Option<Duration>,
        now: Instant,
        actions: &mut Vec<LinkAction>,
    ) {
        self.liveness = Liveness::new(self.role, idle_ping, now);
        actions.push(LinkAction::Opened(remote.clone()));
        self.state = LinkState::Open(remote);
    }

    fn check_liveness(&mut self, now: Instant, actions: &mut Vec<LinkAction>) {
        match self.liveness.due(&self.settings, now) {
            Due::Nothing => {}
            Due::Ping => self.ping(actions),
            Due::Dead { after } => self.close(CloseReason::Dead { after }, actions),
        }
    }

    fn ping(&mut self, actions: &mut Vec<LinkAction>) {
        self.nonce += 1;
        actions.push(LinkAction::Send(Kind::Ping { nonce: self.nonce }));
    }

    fn refuse(&mut self, reason: CloseReason, actions: &mut Vec<LinkAction>) {
        actions.push(LinkAction::Send(Kind::Drain { reason: reason.to_string() }));
        self.close(reason, actions);
    }

    fn close(&mut self, reason: CloseReason, actions: &mut Vec<LinkAction>) {
        self.state = LinkState::Closed;
        actions.push(LinkAction::Close(reason));
    }
}
