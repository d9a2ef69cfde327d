//! A random walk of several candidates over one Lease: slow and lost requests and answers, processes that stall and start again,
//! and clocks that differ. Two of them never hold the Lease at the same time, and its term rises.

use std::time::{Duration, Instant, UNIX_EPOCH};

use fastrand::Rng;

use super::super::core::{Action, Core, Event, Now, Record, Stop, Timing, Write};
use crate::call::Term;

const SEEDS: u64 = 200;
/// The true time of one walk.
const LENGTH: Duration = Duration::from_secs(1200);
const DURATION: Duration = Duration::from_secs(15);

/// The Lease at the API server.
#[derive(Debug, Default)]
struct Server {
    lease: Option<(u64, Record)>,
    version: u64,
    /// The highest term of any acquisition.
    highest: Option<Term>,
}

impl Server {
    fn read(&self) -> Event {
        Event::Read(self.lease.clone().map(|(version, record)| (version.to_string(), record)))
    }

    /// Returns whether the write was executed.
    fn write(&mut self, expected: Option<u64>, write: &Write) -> Result<bool, String> {
        if self.lease.as_ref().map(|(version, _)| *version) != expected {
            return Ok(false);
        }
        let before = self.lease.as_ref().map(|(_, record)| (&record.holder, record.term));
        let is_acquisition =
            before != Some((&write.record.holder, write.record.term)) && !write.record.holder.is_empty();
        if is_acquisition {
            if write.record.term <= self.highest {
                return Err(format!("term {:?} after {:?}", write.record.term, self.highest));
            }
            self.highest = write.record.term;
        }
        self.version += 1;
        self.lease = Some((self.version, write.record.clone()));
        Ok(true)
    }
}

/// A request on its way.
#[derive(Debug)]
enum Request {
    Read,
    Write(Option<u64>, Write),
}

/// Something that happens to one candidate.
#[derive(Debug)]
enum Step {
    /// The request of this number arrives at the API server; the answer arrives later, or never.
    Arrives(u64, Request, Option<Duration>),
    /// The event of this request or wait.
    Event(u64, Event, Option<Option<u64>>),
}

/// One process.
struct Process {
    core: Core,
    /// Its clocks: the time since the start at the true time 0, the rate, and the clock of people.
    offset: Duration,
    rate: f64,
    wall: Duration,
    /// The version of the Lease that it has read or written last.
    last: Option<u64>,
    /// The number of the request or wait whose event it expects.
    expects: u64,
    /// Until when it is stalled, in true time.
    stalled: Duration,
    /// Whether a release was requested.
    release: bool,
}

struct Walk {
    rng: Rng,
    start: Instant,
    now: Duration,
    server: Server,
    processes: Vec<Process>,
    steps: Vec<(Duration, usize, Step)>,
    numbers: u64,
    with_deletes: bool,
    acquired: usize,
    lost: usize,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let count = rng.usize(2..=3);
        // The clocks must agree if the only memory of the term is deleted.
        let with_deletes = rng.u64(..4) == 0;
        let mut walk = Self {
            rng,
            start: Instant::now(),
            now: Duration::ZERO,
            server: Server::default(),
            processes: Vec::new(),
            steps: Vec::new(),
            numbers: 0,
            with_deletes,
            acquired: 0,
            lost: 0,
        };
        for at in 0..count {
            let process = walk.process();
            walk.processes.push(process);
            walk.begin(at);
        }
        walk
    }

    fn process(&mut self) -> Process {
        self.numbers += 1;
        let identity = format!("process-{}", self.numbers);
        let offset = Duration::from_millis(self.rng.u64(..10_000_000));
        let wall = match self.with_deletes {
            true => Duration::from_secs(1_800_000_000),
            false => Duration::from_secs(1_800_000_000 + self.rng.u64(..7200)),
        };
        let seed = self.rng.u64(..);
        Process {
            core: Core::new(identity, Timing::new(DURATION), Rng::with_seed(seed)),
            offset,
            rate: 0.95 + 0.1 * self.rng.f64(),
            wall,
            last: None,
            expects: self.numbers,
            stalled: Duration::ZERO,
            release: false,
        }
    }

    /// The clocks of a process.
    fn clock(&self, at: usize) -> Now {
        let process = &self.processes[at];
        let instant = self.start + process.offset + self.now.mul_f64(process.rate);
        Now { instant, wall: UNIX_EPOCH + process.wall + self.now }
    }

    /// Whether a process believes that it holds the Lease.
    fn holds(&self, at: usize) -> bool {
        let now = self.clock(at).instant;
        self.processes[at].core.held().is_some_and(|(_, until)| now < until)
    }

    fn delay(&mut self, millis: u64) -> Duration {
        Duration::from_millis(self.rng.u64(1..millis))
    }

    /// Up to a second usually, and up to 20 s sometimes.
    fn latency(&mut self) -> Duration {
        let most = if self.rng.u64(..8) == 0 { 20_000 } else { 1000 };
        self.delay(most)
    }

    fn begin(&mut self, at: usize) {
        let delay = self.delay(3000);
        self.expect(at, delay, Event::Wake, None);
    }

    /// The process gets the event of what it does now, unless it has another one before.
    fn expect(&mut self, at: usize, delay: Duration, event: Event, last: Option<Option<u64>>) {
        let number = self.processes[at].expects;
        self.steps.push((self.now + delay, at, Step::Event(number, event, last)));
    }

    fn act(&mut self, at: usize, action: Action) {
        self.numbers += 1;
        self.processes[at].expects = self.numbers;
        let request = match action {
            Action::Stop(stop) => {
                self.lost += usize::from(matches!(stop, Stop::Lost(_)));
                // The process ends, and starts again under another identity.
                self.processes[at] = self.process();
                return self.begin(at);
            }
            Action::Wait(until) => {
                let wait = until - self.clock(at).instant;
                let wait = wait.div_f64(self.processes[at].rate) + Duration::from_millis(1);
                let release = std::mem::take(&mut self.processes[at].release);
                return match release {
                    true => self.expect(at, Duration::ZERO, Event::Release, None),
                    false => self.expect(at, wait, Event::Wake, None),
                };
            }
            Action::Read => Request::Read,
            Action::Write(write) => Request::Write(self.processes[at].last, write),
        };
        // The time limit of a request.
        let limit = Timing::new(DURATION).request.div_f64(self.processes[at].rate);
        self.expect(at, limit, Event::Failed, None);
        if self.rng.u64(..12) > 0 {
            let (there, back) = (self.latency(), self.latency());
            let back = (self.rng.u64(..12) > 0).then_some(back);
            self.steps.push((self.now + there, at, Step::Arrives(self.numbers, request, back)));
        }
    }

    fn arrives(
        &mut self,
        at: usize,
        number: u64,
        request: Request,
        back: Option<Duration>,
    ) -> Result<(), String> {
        let (event, last) = match request {
            Request::Read => {
                (self.server.read(), Some(self.server.lease.as_ref().map(|(version, _)| *version)))
            }
            Request::Write(expected, write) => match self.server.write(expected, &write)? {
                true => (Event::Written, Some(Some(self.server.version))),
                false => (Event::Refused, None),
            },
        };
        if let Some(back) = back {
            self.steps.push((self.now + back, at, Step::Event(number, event, last)));
        }
        Ok(())
    }

    fn run(&mut self) -> Result<(), String> {
        while self.now < LENGTH {
            let next = (0..self.steps.len()).min_by_key(|at| self.steps[*at].0);
            let Some(next) = next else { return Err("nothing happens any more".to_owned()) };
            let (time, at, step) = self.steps.swap_remove(next);
            self.now = self.now.max(time);
            match step {
                Step::Arrives(number, request, back) => self.arrives(at, number, request, back)?,
                // An answer after the time limit.
                Step::Event(number, ..) if number != self.processes[at].expects => {}
                Step::Event(number, event, last) if self.now < self.processes[at].stalled => {
                    let until = self.processes[at].stalled;
                    self.steps.push((until, at, Step::Event(number, event, last)));
                }
                Step::Event(_, event, last) => {
                    if let Some(last) = last {
                        self.processes[at].last = last;
                    }
                    let held = self.processes[at].core.held().is_some();
                    let now = self.clock(at);
                    let action = self.processes[at].core.on(event, now);
                    self.acquired += usize::from(!held && self.processes[at].core.held().is_some());
                    self.act(at, action);
                }
            }
            let holders: Vec<usize> = (0..self.processes.len()).filter(|at| self.holds(*at)).collect();
            if holders.len() > 1 && !self.with_deletes {
                return Err(format!("at {:?} processes {holders:?} hold the lease", self.now));
            }
            self.disturb();
        }
        Ok(())
    }

    /// Whether a request that creates the Lease is on its way: after a deletion it would create it with its old term.
    fn is_creating(&self) -> bool {
        self.steps.iter().any(|(_, _, step)| matches!(step, Step::Arrives(_, Request::Write(None, _), _)))
    }

    fn disturb(&mut self) {
        let at = self.rng.usize(..self.processes.len());
        match self.rng.u64(..400) {
            0..=2 => self.processes[at].stalled = self.now + self.delay(40_000),
            3 => self.processes[at].release = true,
            4 => {
                // A crash.
                self.processes[at] = self.process();
                self.begin(at);
            }
            5 if self.with_deletes && !self.is_creating() => self.server.lease = None,
            _ => {}
        }
    }
}

#[test]
fn lease_has_one_holder_and_a_rising_term() {
    let seeds = match std::env::var("LEASE_SEED") {
        Ok(seed) => seed.parse().map(|seed| seed..seed + 1).unwrap(),
        Err(_) => 0..SEEDS,
    };
    let (mut acquired, mut lost) = (0, 0);
    for seed in seeds {
        let mut walk = Walk::new(seed);
        if let Err(what) = walk.run() {
            panic!(
                "{what}\nreplay with: LEASE_SEED={seed} cargo test -p csi-proxy --features kubernetes,testing --lib kubernetes::lease::tests::walk"
            );
        }
        (acquired, lost) = (acquired + walk.acquired, lost + walk.lost);
    }
    assert!(acquired > 5 && lost > 0, "{acquired} acquired, {lost} lost");
}
