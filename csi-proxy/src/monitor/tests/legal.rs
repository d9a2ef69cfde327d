//! An orchestrator that keeps the rules, whatever it is answered: nothing is held against it.

use super::super::*;
use super::{
    Bench, Made, NODE, attach, delete, detach, expand, publish_from, stage_with, unpublish, unstage,
};
use csi_proto::Code;

const SEEDS: u64 = 200;
const STEPS: u64 = 500;
const VOLUMES: usize = 4;
const TARGETS: usize = 3;

/// What the orchestrator knows of one thing that it has a call upward and one downward for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    Off,
    /// A call upward may still be running.
    Trying,
    On,
    /// A call downward has not succeeded.
    Leaving,
}

impl Known {
    fn may_rise(self) -> bool {
        self != Self::Leaving
    }

    fn risen(self, code: Code) -> Self {
        match code {
            Code::OK => Self::On,
            _ if self == Self::On => Self::On,
            Code::CANCELLED | Code::DEADLINE_EXCEEDED | Code::UNAVAILABLE | Code::ABORTED => Self::Trying,
            _ => Self::Off,
        }
    }

    fn fallen(code: Code) -> Self {
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
    /// Which arguments were last given; new ones are taken once the old ones are of no account.
    arguments: [u64; TARGETS + 1],
    flies: Option<(CallNumber, Step)>,
}

impl Volume {
    fn steps(&self) -> Vec<Step> {
        let gone = self.published.iter().all(|target| *target == Known::Off);
        let mut steps = Vec::new();
        let mut may = |condition, step| {
            if condition {
                steps.push(step);
            }
        };
        let on = self.attached == Known::On;
        may(self.attached.may_rise(), Step::Attach);
        may(on && self.staged.may_rise(), Step::Stage);
        may(gone, Step::Unstage);
        may(self.staged == Known::On, Step::Expand);
        may(gone && self.staged == Known::Off, Step::Detach);
        may(gone && self.staged == Known::Off && self.attached == Known::Off, Step::Delete);
        for (at, target) in self.published.iter().enumerate() {
            may(on && self.staged == Known::On && target.may_rise(), Step::Publish(at));
            may(true, Step::Unpublish(at));
        }
        steps
    }

    fn ended(&mut self, step: Step, code: Code) {
        match step {
            Step::Attach => self.attached = self.attached.risen(code),
            Step::Detach => self.attached = Known::fallen(code),
            Step::Stage => self.staged = self.staged.risen(code),
            Step::Unstage => self.staged = Known::fallen(code),
            Step::Publish(at) => self.published[at] = self.published[at].risen(code),
            Step::Unpublish(at) => self.published[at] = Known::fallen(code),
            Step::Expand | Step::Delete => {}
        }
    }
}

struct Walk {
    chance: u64,
    bench: Bench,
    volumes: Vec<Volume>,
}

impl Walk {
    /// A number below `bound`, by xorshift.
    fn below(&mut self, bound: usize) -> usize {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        (self.chance % bound as u64) as usize
    }

    fn made(&mut self, at: usize, step: Step) -> Made {
        let name = format!("v{at}");
        let volume = &mut self.volumes[at];
        let [staging, targets @ ..] = &mut volume.arguments;
        match step {
            Step::Attach => attach(&name),
            Step::Detach => detach(&name, if self.chance.is_multiple_of(2) { NODE } else { "" }),
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
        if let Some((call, step)) = self.volumes[at].flies.take() {
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
        self.volumes[at].flies = Some((call, step));
        violations
    }
}

/// Replay one seed with `EDGE_CSI_SEED=N cargo test -p csi-proxy a_legal_orchestrator`.
#[test]
fn a_legal_orchestrator_breaks_nothing_whatever_it_is_answered() {
    let seed = std::env::var("EDGE_CSI_SEED").ok().map(|seed| seed.parse().unwrap());
    let seeds = seed.map_or(1..=SEEDS, |seed| seed..=seed);
    let small = Limits { volumes: 2, bytes: 4096, open: 3 };
    let begins = [
        (Limits::default(), Before::Nothing),
        (Limits::default(), Before::Unknown),
        (small, Before::Nothing),
        (small, Before::Unknown),
    ];
    for seed in seeds {
        let (limits, before) = begins[(seed % 4) as usize];
        let volume = Volume {
            attached: Known::Off,
            staged: Known::Off,
            published: [Known::Off; TARGETS],
            arguments: [0; TARGETS + 1],
            flies: None,
        };
        let chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut walk = Walk { chance, bench: Bench::with(limits, before), volumes: vec![volume; VOLUMES] };
        for step in 0..STEPS {
            let violations = walk.step();
            walk.bench.monitor.assert_consistent();
            assert_eq!(
                violations,
                [],
                "step {step}; replay with EDGE_CSI_SEED={seed} cargo test -p csi-proxy a_legal_orchestrator"
            );
        }
    }
}

/// Replay one seed with `EDGE_CSI_SEED=N cargo test -p csi-proxy the_tables_agree`.
#[test]
fn the_tables_agree_whatever_an_orchestrator_does() {
    let seed = std::env::var("EDGE_CSI_SEED").ok().map(|seed| seed.parse().unwrap());
    let mut violations = 0;
    for seed in seed.map_or(1..=SEEDS / 4, |seed: u64| seed..=seed) {
        // Shown if the test fails.
        println!("replay with EDGE_CSI_SEED={seed} cargo test -p csi-proxy the_tables_agree");
        let limits = Limits { volumes: 3, bytes: 8192, open: 6 };
        let before = if seed.is_multiple_of(2) { Before::Nothing } else { Before::Unknown };
        let chance = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut walk = Walk { chance, bench: Bench::with(limits, before), volumes: Vec::new() };
        let mut flying = Vec::new();
        for _ in 0..STEPS {
            if walk.below(2) == 0 && !flying.is_empty() {
                let call = flying.swap_remove(walk.below(flying.len()));
                let code = Code::ALL[walk.below(Code::ALL.len())];
                walk.bench.end(call, code);
            } else {
                let made = walk.anything();
                let (call, found) = walk.bench.begin(&made);
                flying.push(call);
                violations += found.len();
            }
            walk.bench.monitor.assert_consistent();
        }
        flying.into_iter().for_each(|call| walk.bench.end(call, Code::OK));
        walk.bench.monitor.assert_consistent();
        assert_eq!(walk.bench.monitor.counts().open, 0);
        assert!(walk.bench.monitor.counts().volumes <= 3);
    }
    assert!(violations > 0);
}
