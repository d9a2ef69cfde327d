//! The state of one link: hello, liveness, drain. Used by peers and by the hub alike.

use std::sync::Arc;
use std::time::Instant;

use super::{CloseReason, Settings};
use crate::frame::{Hello, Kind};
use crate::name::{PeerId, ServiceName, SessionId};

/// Which end of the link this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Made the link: says hello first.
    Dialer,
    /// Took the link: says hello once it has admitted the other end.
    Acceptor,
}

/// What is agreed with the other end of a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Remote {
    /// Its name.
    pub peer: PeerId,
    /// Its session.
    pub session: SessionId,
    /// The protocol version in use.
    pub version: u32,
    /// Largest frame in bytes that it takes.
    pub max_frame: usize,
    /// Services that it answers.
    pub services: Arc<[ServiceName]>,
    /// Optional abilities that both ends have.
    pub features: Vec<String>,
}

/// Where a link stands.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HopState {
    /// The other end's hello has not come.
    AwaitHello {
        /// When it must have come.
        deadline: Instant,
    },
    /// The other end's hello has come; whether it may stay is not decided.
    AwaitAdmission(Remote),
    /// In use.
    Open(Remote),
    /// In use for the calls that are open, and no new ones.
    Draining {
        /// The other end.
        remote: Remote,
        /// Why.
        reason: String,
        /// When this end closes at the latest; `None` if the other end drains and closes.
        deadline: Option<Instant>,
    },
    /// Done with.
    Closed,
}

/// What happens to a link.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HopEvent {
    /// A frame came.
    Frame(Kind),
    /// Bytes came that are no frame; the link goes on.
    Noise,
    /// The acceptor lets the other end in.
    Admit,
    /// This end refuses the link, or ends it at once.
    Refuse(CloseReason),
    /// This end takes no new calls.
    Drain {
        /// Why, for people.
        reason: String,
    },
    /// No call is open.
    Idle,
    /// Time has passed.
    Tick,
}

/// What the driver of a link has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum HopAction {
    /// Send this to the other end.
    Send(Kind),
    /// Decide on [`HopEvent::Admit`] or [`HopEvent::Refuse`].
    Introduced(Remote),
    /// The link is in use.
    Opened(Remote),
    /// The other end takes no new calls.
    Draining {
        /// Why.
        reason: String,
    },
    /// Send what is waiting, then close.
    Close(CloseReason),
}

/// The state machine of a link.
#[derive(Debug)]
pub struct Hop {
    role: Role,
    hello: Hello,
    settings: Settings,
    state: HopState,
    heard: Instant,
    pinged: Instant,
    nonce: u64,
}

impl Hop {
    /// Starts on a fresh link. A dialer's hello is among the actions at once.
    pub fn new(
        role: Role,
        hello: Hello,
        settings: Settings,
        now: Instant,
        actions: &mut Vec<HopAction>,
    ) -> Self {
        if role == Role::Dialer {
            actions.push(HopAction::Send(Kind::Hello(hello.clone())));
        }
        let state = HopState::AwaitHello { deadline: now + settings.hello_timeout };
        Self { role, hello, settings, state, heard: now, pinged: now, nonce: 0 }
    }

    /// Where the link stands.
    #[must_use]
    pub const fn state(&self) -> &HopState {
        &self.state
    }

    /// The other end, once the link is in use.
    #[must_use]
    pub const fn remote(&self) -> Option<&Remote> {
        match &self.state {
            HopState::Open(remote) | HopState::Draining { remote, .. } => Some(remote),
            _ => None,
        }
    }

    /// When [`HopEvent::Tick`] is due at the latest.
    #[must_use]
    pub fn next_wakeup(&self) -> Option<Instant> {
        match &self.state {
            HopState::AwaitHello { deadline } => Some(*deadline),
            HopState::AwaitAdmission(_) | HopState::Closed => None,
            HopState::Open(_) => Some(self.liveness()),
            HopState::Draining { deadline, .. } => {
                Some(deadline.map_or_else(|| self.liveness(), |deadline| deadline.min(self.liveness())))
            }
        }
    }

    fn liveness(&self) -> Instant {
        let ping = self.heard.max(self.pinged) + self.settings.ping_interval;
        ping.min(self.heard + self.settings.dead_after)
    }

    /// The transition function.
    pub fn handle(&mut self, event: HopEvent, now: Instant, actions: &mut Vec<HopAction>) {
        if matches!(event, HopEvent::Frame(_) | HopEvent::Noise) {
            self.heard = now;
        }
        match (&mut self.state, event) {
            (HopState::Closed, _) => {}
            (_, HopEvent::Refuse(reason)) => self.refuse(reason, actions),
            (HopState::AwaitHello { .. }, HopEvent::Frame(Kind::Hello(hello))) => {
                self.introduced(hello, actions);
            }
            (HopState::AwaitHello { .. }, HopEvent::Frame(Kind::Drain { reason })) => {
                self.close(CloseReason::Refused { reason }, actions);
            }
            (HopState::AwaitHello { .. }, HopEvent::Frame(_) | HopEvent::Noise) => {
                self.refuse(
                    CloseReason::Protocol { cause: "the first frame is not a hello".into() },
                    actions,
                );
            }
            (HopState::AwaitHello { deadline }, HopEvent::Tick) => {
                if now >= *deadline {
                    self.refuse(CloseReason::HelloTimeout { after: self.settings.hello_timeout }, actions);
                }
            }
            (HopState::AwaitHello { .. } | HopState::AwaitAdmission(_), HopEvent::Drain { reason }) => {
                self.refuse(CloseReason::Drained { reason }, actions);
            }
            (HopState::AwaitAdmission(remote), HopEvent::Admit) => {
                let remote = remote.clone();
                actions.push(HopAction::Send(Kind::Hello(self.hello.clone())));
                actions.push(HopAction::Opened(remote.clone()));
                self.state = HopState::Open(remote);
            }
            (HopState::AwaitAdmission(_), HopEvent::Frame(_)) => {
                self.refuse(
                    CloseReason::Protocol { cause: "a frame came before this end's hello".into() },
                    actions,
                );
            }
            (HopState::Open(_) | HopState::Draining { .. }, HopEvent::Frame(Kind::Hello(_))) => {
                self.refuse(CloseReason::Protocol { cause: "a second hello".into() }, actions);
            }
            (HopState::Open(_) | HopState::Draining { .. }, HopEvent::Frame(Kind::Ping { nonce })) => {
                actions.push(HopAction::Send(Kind::Pong { nonce }));
            }
            (HopState::Open(remote), HopEvent::Frame(Kind::Drain { reason })) => {
                actions.push(HopAction::Draining { reason: reason.clone() });
                self.state = HopState::Draining { remote: remote.clone(), reason, deadline: None };
            }
            (HopState::Open(remote), HopEvent::Drain { reason }) => {
                actions.push(HopAction::Send(Kind::Drain { reason: reason.clone() }));
                let deadline = Some(now + self.settings.drain_timeout);
                self.state = HopState::Draining { remote: remote.clone(), reason, deadline };
            }
            (
                HopState::Draining { reason, deadline: deadline @ None, .. },
                HopEvent::Drain { reason: ours },
            ) => {
                actions.push(HopAction::Send(Kind::Drain { reason: ours.clone() }));
                *reason = ours;
                *deadline = Some(now + self.settings.drain_timeout);
            }
            (HopState::Draining { reason, deadline: Some(_), .. }, HopEvent::Idle) => {
                let reason = std::mem::take(reason);
                self.close(CloseReason::Drained { reason }, actions);
            }
            (HopState::Draining { reason, deadline: Some(deadline), .. }, HopEvent::Tick)
                if now >= *deadline =>
            {
                let reason = std::mem::take(reason);
                self.close(CloseReason::DrainTimeout { after: self.settings.drain_timeout, reason }, actions);
            }
            (HopState::Open(_) | HopState::Draining { .. }, HopEvent::Tick) => {
                self.check_liveness(now, actions);
            }
            (_, _) => {}
        }
    }

    fn introduced(&mut self, hello: Hello, actions: &mut Vec<HopAction>) {
        let ours = self.hello.version_min..=self.hello.version_max;
        let theirs = hello.version_min..=hello.version_max;
        let version = *ours.end().min(theirs.end());
        if !ours.contains(&version) || !theirs.contains(&version) {
            return self.refuse(CloseReason::Version { ours, theirs }, actions);
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
        };
        match self.role {
            Role::Dialer => {
                actions.push(HopAction::Opened(remote.clone()));
                self.state = HopState::Open(remote);
            }
            Role::Acceptor => {
                actions.push(HopAction::Introduced(remote.clone()));
                self.state = HopState::AwaitAdmission(remote);
            }
        }
    }

    fn check_liveness(&mut self, now: Instant, actions: &mut Vec<HopAction>) {
        if now >= self.heard + self.settings.dead_after {
            self.close(CloseReason::Dead { after: self.settings.dead_after }, actions);
        } else if now >= self.heard.max(self.pinged) + self.settings.ping_interval {
            self.pinged = now;
            self.nonce += 1;
            actions.push(HopAction::Send(Kind::Ping { nonce: self.nonce }));
        }
    }

    fn refuse(&mut self, reason: CloseReason, actions: &mut Vec<HopAction>) {
        actions.push(HopAction::Send(Kind::Drain { reason: reason.to_string() }));
        self.close(reason, actions);
    }

    fn close(&mut self, reason: CloseReason, actions: &mut Vec<HopAction>) {
        self.state = HopState::Closed;
        actions.push(HopAction::Close(reason));
    }
}
