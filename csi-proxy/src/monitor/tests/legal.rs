//! A legal orchestrator breaks no rule, whatever the answers.

use super::super::event::{CallNumber, End, Event, InitialState, Limits};
use super::super::rule::Violation;
use super::{
    Bench, Made, NODE, attach, delete, detach, expand, publish_from, stage_with, unpublish, unstage,
};
use csi_proto::Code;

const SEEDS: u64 = 200;
const STEPS: u64 = 500;
const VOLUMES: usize = 4;
const TARGETS: usize = 3;

/// The knowledge of the orchestrator about one object.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Off,
    /// A setup call may still be running.
    Trying,
    On,
    /// A teardown call has not succeeded.
    Leaving,
}

impl Known {
    fn may_set_up(self) -> bool {
        self != Self::Leaving
    }

    fn after_setup(self, code: Code) -> Self {
        match code {
            Code::OK => Self::On,
            _ if self == Self::On => Self::On,
            Code::CANCELLED | Code::DEADLINE_EXCEEDED | Code::UNAVAILABLE | Code::ABORTED => Self::Trying,
            _ => Self::Off,
        }
    }

    fn after_teardown(code: Code) -> Self {
        if code == Code::OK { Self::Off } else { Self::Leaving }
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Attach,
    Detach,
    Stage,
    Unstage,
    Publish(usize),
    Unpublish(usize),
    Expand,
    Delete,
}

#[derive(Debug, Clone)]
struct Volume {
    attached: Known,
    staged: Known,
    published: [Known; TARGETS],
    /// The last arguments; new ones are used once the old ones are irrelevant.
    arguments: [u64; TARGETS + 1],
    in_flight: Option<(CallNumber, Step)>,
}

impl Volume {
    fn steps(&self) -> Vec<Step> {
        let unpublished = self.published.iter().all(|target| *target == Known::Off);
        let mut steps = Vec::new();
        let mut may = |condition, step| {
            if condition {
                steps.push(step);
            }
        };
        let on = self.attached == Known::On;
        may(self.attached.may_set_up(), Step::Attach);
        may(on && self.staged.may_set_up(), Step::Stage);
        may(unpublished, Step::Unstage);
        may(self.staged == Known::On, Step::Expand);
        may(unpublished && self.staged == Known::Off, Step::Detach);
        may(unpublished && self.staged == Known::Off && self.attached == Known::Off, Step::Delete);
        for (at, target) in self.published.iter().enumerate() {
            may(on && self.staged == Known::On && target.may_set_up(), Step::Publish(at));
            may(true, Step::Unpublish(at));
        }
        steps
    }

    fn ended(&mut self, step: Step, code: Code) {
        match step {
            Step::Attach => self.attached = self.attached.after_setup(code),
            Step::Detach => self.attached = Known::after_teardown(code),
            Step::Stage => self.staged = self.staged.after_setup(code),
            Step::Unstage => self.staged = Known::after_teardown(code),
            Step::Publish(at) => self.published[at] = self.published[at].after_setup(code),
            Step::Unpublish(at) => self.published[at] = Known::after_teardown(code),
            Step::Expand | Step::Delete => {}
        }
    }
}

struct Walk {
    rng: u64,
    bench: Bench,
    volumes: Vec<Volume>,
}

impl Walk {
    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: usize) -> usize {
        self.rng ^= self.rng << 13;
        self.rng ^= self.rng >> 7;
        self.rng ^= self.rng << 17;
        (self.rng % bound as u64) as usize
    }

    fn made(&mut self, at: usize, step: Step) -> Made {
        let name = format!("v{at}");
        let volume = &mut self.volumes[at];
        let [staging, targets @ ..] = &mut volume.arguments;
        match step {
            Step::Attach => attach(&name),
            Step::Detach => detach(&name, if self.rng.is_multiple_of(2) { NODE } else { "" }),
            Step::Stage => {
                *staging += u64::from(volume.staged == Known::Off);
                stage_with(&name, &format!("/stage/{name}"), &staging.to_string())
            }
            Step::Unstage => unstage(&name),
            Step::Publish(target) => {
                targets[target] += u64::from(volume.published[target] == Known::Off);
                let path = format!("/t/{at}/{target}");
                publish_from(&name, &format!("/stage/{name}"), &path, &targets[target].to_string())
            }
            Step::Unpublish(target) => unpublish(&name, &format!("/t/{at}/{target}")),
            Step::Expand => expand(&name),
            Step::Delete => delete(&name),
        }
    }

    /// Any call, on paths that volumes share.
    fn anything(&mut self) -> Made {
        let (name, path) = (format!("v{}", self.below(6)), format!("/p/{}", self.below(6)));
        let argument = self.below(2).to_string();
        match self.below(9) {
            0 => attach(&name),
            1 => detach(&name, if self.below(2) == 0 { NODE } else { "" }),
            2 => stage_with(&name, &path, &argument),
            3 => unstage(&name),
            4 => publish_from(&name, "/stage", &path, &argument),
            5 => unpublish(&name, &path),
            6 => expand(&name),
            7 => unpublish(&name, &"/long".repeat(1000)),
            _ => delete(&name),
        }
    }

    /// Begins a call, or ends one.
    fn step(&mut self) -> Vec<Violation> {
        let at = self.below(VOLUMES);
        if let Some((call, step)) = self.volumes[at].in_flight.take() {
            let code = match self.below(3) {
                0 => Code::ALL[self.below(Code::ALL.len())],
                _ => Code::OK,
            };
            if code == Code::CANCELLED {
                let left = Event::Ended { call, end: End::Left };
                assert_eq!(self.bench.monitor.handle(self.bench.now, left), []);
            } else {
                self.bench.end(call, code);
            }
            self.volumes[at].ended(step, code);
            return Vec::new();
        }
        let steps = self.volumes[at].steps();
        let step = steps[self.below(steps.len())];
        let made = self.made(at, step);
        let (call, violations) = self.bench.begin(&made);
        self.volumes[at].in_flight = Some((call, step));
        violations
    }
}

/// Replay one seed with `EDGE_CSI_SEED=N cargo test -p csi-proxy legal_orchestrator`.
#[test]
fn legal_orchestrator_breaks_nothing() {
    let seed = std::env::var("EDGE_CSI_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = seed.map_or(1..=SEEDS, |seed| seed..=seed);
    let small = Limits { volumes: 2, bytes: 4096, open: 3 };
    let begins = [
        (Limits::default(), InitialState::Empty),
        (Limits::default(), InitialState::Unknown),
        (small, InitialState::Empty),
        (small, InitialState::Unknown),
    ];
    for seed in seeds {
        let (limits, before) = begins[(seed % 4) as usize];
        let volume = Volume {
            attached: Known::Off,
            staged: Known::Off,
            published: [Known::Off; TARGETS],
            arguments: [0; TARGETS + 1],
            in_flight: None,
        };
        let rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut walk = Walk { rng, bench: Bench::with(limits, before), volumes: vec![volume; VOLUMES] };
        for step in 0..STEPS {
            let violations = walk.step();
            walk.bench.monitor.assert_consistent();
            assert_eq!(
                violations,
                [],
                "step {step}; replay with EDGE_CSI_SEED={seed} cargo test -p csi-proxy legal_orchestrator"
            );
        }
    }
}

/// Replay one seed with `EDGE_CSI_SEED=N cargo test -p csi-proxy state_stays_consistent`.
#[test]
fn state_stays_consistent() {
    let seed = std::env::var("EDGE_CSI_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut violations = 0;
    for seed in seed.map_or(1..=SEEDS / 4, |seed: u64| seed..=seed) {
        // Shown if the test fails.
        println!("replay with EDGE_CSI_SEED={seed} cargo test -p csi-proxy state_stays_consistent");
        let limits = Limits { volumes: 3, bytes: 8192, open: 6 };
        let before = if seed.is_multiple_of(2) { InitialState::Empty } else { InitialState::Unknown };
        let rng = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut walk = Walk { rng, bench: Bench::with(limits, before), volumes: Vec::new() };
        let mut open = Vec::new();
        for _ in 0..STEPS {
            if walk.below(2) == 0 && !open.is_empty() {
                let call = open.swap_remove(walk.below(open.len()));
                let code = Code::ALL[walk.below(Code::ALL.len())];
                walk.bench.end(call, code);
            } else {
                let made = walk.anything();
                let (call, found) = walk.bench.begin(&made);
                open.push(call);
                violations += found.len();
            }
            walk.bench.monitor.assert_consistent();
        }
        open.into_iter().for_each(|call| walk.bench.end(call, Code::OK));
        walk.bench.monitor.assert_consistent();
        assert_eq!(walk.bench.monitor.counts().open, 0);
        assert!(walk.bench.monitor.counts().volumes <= 3);
    }
    assert!(violations > 0);
}
