//! When to ping the other end of a link, and when it is dead.
//!
//! While a call waits for the other end, silence is checked often. While none does, only the end that has dialed pings, and as
//! rarely as its network permits: a device's radio sleeps, and its bytes cost money.

use std::time::{Duration, Instant};

use super::{Role, SessionSettings};

/// What this end knows about the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing is expected soon.
    Idle,
    /// A frame is expected: the other end is dead if none arrives for the liveness timeout.
    Expecting {
        /// Since when.
        since: Instant,
        /// Whether a call waits. Otherwise one frame suffices.
        call_waits: bool,
    },
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    Nothing,
    Ping,
    /// The other end is dead: no frame arrived for this time.
    Dead {
        after: Duration,
    },
}

/// The liveness of an open link.
#[derive(Debug)]
pub(super) struct Liveness {
    role: Role,
    /// The interval of the dialing end's pings while no call waits. `None`: the link is checked often at all times.
    idle_ping: Option<Duration>,
    last_received: Instant,
    last_ping: Instant,
    state: State,
}

impl Liveness {
    /// Starts with the hello of the other end.
    pub(super) const fn new(role: Role, idle_ping: Option<Duration>, now: Instant) -> Self {
        let state = match idle_ping {
            Some(_) => State::Idle,
            None => State::Expecting { since: now, call_waits: true },
        };
        Self { role, idle_ping, last_received: now, last_ping: now, state }
    }

    /// A frame of the other end has arrived.
    pub(super) const fn received(&mut self, now: Instant) {
        self.last_received = now;
        self.state = match self.state {
            State::Expecting { call_waits: true, .. } => State::Expecting { since: now, call_waits: true },
            State::Idle | State::Expecting { call_waits: false, .. } => State::Idle,
        };
    }

    /// No frame could arrive for a known reason. Returns whether a ping is due meanwhile, which counts as sent.
    pub(super) fn excused(&mut self, settings: &SessionSettings, now: Instant) -> bool {
        self.last_received = now;
        let State::Expecting { since, .. } = &mut self.state else { return false };
        *since = now;
        let is_due = now >= self.last_ping + settings.ping_interval;
        if is_due {
            self.last_ping = now;
        }
        is_due
    }

    /// Sets whether a call waits. Returns whether a frame is expected from now on.
    pub(super) fn set_waiting(&mut self, call_waits: bool, now: Instant) -> bool {
        let before = self.state;
        self.state = match (before, call_waits) {
            _ if self.idle_ping.is_none() => before,
            (State::Idle, true) => State::Expecting { since: now, call_waits },
            (State::Expecting { since, .. }, true) => State::Expecting { since, call_waits },
            (State::Idle, false) => State::Idle,
            (State::Expecting { .. }, false) if self.is_settled(now) => State::Idle,
            (State::Expecting { since, .. }, false) => State::Expecting { since, call_waits },
        };
        before == State::Idle && self.state != State::Idle
    }

    /// Whether nothing is expected once no call waits. A dialing end that has sent the last frame of a call expects one more
    /// frame: on a dead link it must connect anew, so that it can be called again.
    fn is_settled(&self, now: Instant) -> bool {
        self.has_answered() && (self.role == Role::Acceptor || self.last_received == now)
    }

    /// Whether no ping is without an answer.
    fn has_answered(&self) -> bool {
        self.last_received >= self.last_ping
    }

    /// Something depends on whether the other end is alive: it has the liveness timeout to prove it. Returns whether a ping is
    /// due, which counts as sent: until its answer, the end of a call does not make the link idle.
    pub(super) fn check(&mut self, now: Instant) -> bool {
        self.expect(now);
        let is_due = self.has_answered();
        if is_due {
            self.last_ping = now;
        }
        is_due
    }

    const fn expect(&mut self, now: Instant) {
        if matches!(self.state, State::Idle) {
            self.state = State::Expecting { since: now, call_waits: false };
        }
    }

    /// When [`due`](Self::due) is to be called at the latest.
    pub(super) fn next_check(&self, settings: &SessionSettings) -> Instant {
        let (dead, _) = self.dead_at(settings);
        [dead, self.ping_at(settings)].into_iter().flatten().min().unwrap_or(self.last_received)
    }

    fn ping_at(&self, settings: &SessionSettings) -> Option<Instant> {
        let expected = matches!(self.state, State::Expecting { .. })
            .then(|| self.last_received.max(self.last_ping) + settings.ping_interval);
        // Whatever arrives: the other end counts the silence of this one.
        let idle = self.idle_ping.filter(|_| self.role == Role::Dialer).map(|every| self.last_ping + every);
        expected.into_iter().chain(idle).min()
    }

    /// Returns when the other end is dead, and after how long a silence.
    fn dead_at(&self, settings: &SessionSettings) -> (Option<Instant>, Duration) {
        match (self.state, self.role, self.idle_ping) {
            (State::Expecting { since, .. }, ..) => {
                (Some(since + settings.liveness_timeout), settings.liveness_timeout)
            }
            (State::Idle, Role::Acceptor, Some(every)) => {
                // Two pings may be late or lost.
                let after = every * 5 / 2;
                (Some(self.last_received + after), after)
            }
            (State::Idle, ..) => (None, Duration::ZERO),
        }
    }

    /// Returns what is to be done now. A ping counts as sent.
    pub(super) fn due(&mut self, settings: &SessionSettings, now: Instant) -> Due {
        let (dead, after) = self.dead_at(settings);
        if dead.is_some_and(|at| now >= at) {
            return Due::Dead { after };
        }
        if self.ping_at(settings).is_none_or(|at| now < at) {
            return Due::Nothing;
        }
        self.last_ping = now;
        self.expect(now);
        Due::Ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    /// One end, which is called at the times that it asks for.
    struct End {
        liveness: Liveness,
        opened: Instant,
        now: Instant,
        /// The seconds of the pings.
        pings: Vec<u64>,
        /// The second of its death, and the silence that it reports.
        dead: Option<(u64, u64)>,
    }

    impl End {
        fn new(role: Role, idle_ping: impl Into<Option<Duration>>) -> Self {
            let now = Instant::now();
            let liveness = Liveness::new(role, idle_ping.into(), now);
            Self { liveness, opened: now, now, pings: Vec::new(), dead: None }
        }

        /// Lets time pass until this second.
        fn until(&mut self, second: u64) -> &mut Self {
            let (settings, end) = (SessionSettings::default(), self.opened + Duration::from_secs(second));
            while self.dead.is_none() && self.liveness.next_check(&settings) <= end {
                self.now = self.now.max(self.liveness.next_check(&settings));
                self.due();
            }
            self.now = end;
            self
        }

        fn due(&mut self) {
            let second = (self.now - self.opened).as_secs();
            match self.liveness.due(&SessionSettings::default(), self.now) {
                Due::Nothing => {}
                Due::Ping => self.pings.push(second),
                Due::Dead { after } => self.dead = Some((second, after.as_secs())),
            }
        }

        fn frame(&mut self) -> &mut Self {
            self.liveness.received(self.now);
            self
        }

        fn check(&mut self) -> &mut Self {
            if self.liveness.check(self.now) {
                self.pings.push((self.now - self.opened).as_secs());
            }
            self
        }

        fn waiting(&mut self, call_waits: bool) -> &mut Self {
            if self.liveness.set_waiting(call_waits, self.now) {
                self.due();
            }
            self
        }
    }

    #[test]
    fn only_the_dialing_end_pings_while_no_call_waits() {
        let mut dialer = End::new(Role::Dialer, IDLE);
        dialer.until(61).frame().until(121).frame().until(179);
        assert_eq!((dialer.pings, dialer.dead), (vec![60, 120], None));
        let mut acceptor = End::new(Role::Acceptor, IDLE);
        acceptor.until(60).frame().until(209);
        assert_eq!((&acceptor.pings, acceptor.dead), (&vec![], None));
        assert_eq!(acceptor.until(210).dead, Some((210, 150)));
    }

    #[test]
    fn ping_without_an_answer_ends_the_link_after_10_s() {
        let mut dialer = End::new(Role::Dialer, IDLE);
        dialer.until(100);
        assert_eq!((dialer.pings, dialer.dead), (vec![60, 63, 66, 69], Some((70, 10))));
    }

    #[test]
    fn call_after_silence_finds_a_dead_link_within_10_s() {
        for role in [Role::Dialer, Role::Acceptor] {
            let mut end = End::new(role, IDLE);
            end.until(40).waiting(true).until(100);
            assert_eq!((end.pings, end.dead), (vec![40, 43, 46, 49], Some((50, 10))), "{role:?}");
        }
    }

    #[test]
    fn challenge_finds_a_dead_link_within_10_s() {
        let mut hub = End::new(Role::Acceptor, IDLE);
        hub.until(40).check();
        assert_eq!((hub.until(100).dead, &hub.pings), (Some((50, 10)), &vec![40, 43, 46, 49]));
        let mut alive = End::new(Role::Acceptor, IDLE);
        alive.until(40).check().frame().until(189);
        assert_eq!(alive.dead, None);
    }

    /// Found by the simulation: the end of a call that had waited for less than a ping interval made the link idle.
    #[test]
    fn challenge_outlives_a_call_that_ends() {
        let mut hub = End::new(Role::Acceptor, IDLE);
        hub.until(40).frame().until(41).waiting(true).check().until(42).waiting(false).until(200);
        assert_eq!((hub.dead, &hub.pings), (Some((51, 10)), &vec![41, 44, 47, 50]));
    }

    #[test]
    fn calls_that_are_shorter_find_a_dead_link_together() {
        for role in [Role::Dialer, Role::Acceptor] {
            let mut end = End::new(role, IDLE);
            end.until(40).waiting(true).until(42).waiting(false).until(45).waiting(true).until(47);
            assert_eq!(end.waiting(false).until(100).dead, Some((50, 10)), "{role:?}");
        }
    }

    #[test]
    fn call_on_a_busy_link_needs_no_ping() {
        for role in [Role::Dialer, Role::Acceptor] {
            let mut end = End::new(role, IDLE);
            end.until(41).frame().until(42).waiting(true).until(43).frame().waiting(false).until(59);
            assert_eq!((end.pings, end.dead), (vec![], None), "{role:?}");
        }
    }

    #[test]
    fn silence_is_checked_often_while_a_call_waits() {
        for role in [Role::Dialer, Role::Acceptor] {
            let mut end = End::new(role, IDLE);
            end.waiting(true).until(5).frame().until(12).frame().until(40);
            assert_eq!((end.pings, end.dead), (vec![3, 8, 11, 15, 18, 21], Some((22, 10))), "{role:?}");
        }
    }

    /// An agent whose last reply was lost with its link must connect anew before it is called again.
    #[test]
    fn dialing_end_that_has_sent_the_last_frame_expects_another() {
        let mut agent = End::new(Role::Dialer, IDLE);
        agent.until(10).frame().waiting(true).until(12).waiting(false).until(100);
        assert_eq!((&agent.pings, agent.dead), (&vec![13, 16, 19], Some((20, 10))));
        let mut alive = End::new(Role::Dialer, IDLE);
        alive.until(10).frame().waiting(true).until(12).waiting(false).until(14).frame().until(72);
        assert_eq!((alive.pings, alive.dead), (vec![13], None));
    }

    /// The other end counts the silence of this one, whatever it sends itself.
    #[test]
    fn dialing_end_pings_although_frames_arrive() {
        let mut dialer = End::new(Role::Dialer, IDLE);
        for second in 1..=150 {
            dialer.until(second).frame();
        }
        assert_eq!(dialer.pings, [60, 120]);
    }

    #[test]
    fn link_without_idle_pings_is_checked_often() {
        for role in [Role::Dialer, Role::Acceptor] {
            let mut end = End::new(role, None);
            end.until(2).frame().waiting(true).frame().waiting(false).until(40);
            assert_eq!((end.pings, end.dead), (vec![5, 8, 11], Some((12, 10))), "{role:?}");
        }
    }
}
