//! Random histories against a reference model that knows only the calls that were sent and their outcomes. From these
//! and the spec's rules it determines the permitted calls and the expected final state.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use volume_manager::ConsumerId;
use volume_manager::advanced::lifecycle::{Call, Direction, DriverCapabilities, Event, LostMount, Outcome};
use volume_manager::driver::Attach;
use volume_manager::node::{Failure, Rpc, VolumeState};

use crate::script::{Finding, Script, consumer};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum TestStep {
    Want(usize),
    Release(usize),
    Republish(usize),
    Expand(u64),
    End(Outcome),
    Show(Finding),
    Resume,
    Restart { boot: bool },
    Replace,
    LoseStaging,
    LoseTarget(usize),
}

fn test_step() -> impl Strategy<Value = TestStep> {
    let name = 0..NAMES.len();
    let end = prop_oneof![
        6 => Just(Outcome::Ok),
        1 => Just(Outcome::Failed(Failure::InUse)),
        1 => Just(Outcome::Failed(Failure::Final)),
        2 => Just(Outcome::Failed(Failure::Uncertain)),
        1 => Just(Outcome::Failed(Failure::Infeasible)),
        1 => (0u64..40, any::<bool>()).prop_map(|(capacity_bytes, node_expansion_required)| {
            Outcome::Expanded { capacity_bytes, node_expansion_required }
        }),
    ];
    let finding = prop_oneof![
        8 => Just(Finding::Agrees),
        1 => Just(Finding::MISSING),
        1 => Just(Finding::WRONG),
        1 => Just(Finding::STILL_THERE),
        1 => Just(Finding::Unknown),
    ];
    prop_oneof![
        3 => name.clone().prop_map(TestStep::Want),
        2 => name.clone().prop_map(TestStep::Release),
        1 => name.clone().prop_map(TestStep::Republish),
        1 => (1u64..30).prop_map(TestStep::Expand),
        8 => end.prop_map(TestStep::End),
        8 => finding.prop_map(TestStep::Show),
        3 => Just(TestStep::Resume),
        1 => any::<bool>().prop_map(|boot| TestStep::Restart { boot }),
        1 => Just(TestStep::Replace),
        1 => Just(TestStep::LoseStaging),
        1 => name.prop_map(TestStep::LoseTarget),
    ]
}

/// The observed state of a mount or of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    No,
    /// An upward call was sent, and is not known to have succeeded.
    MaybeUp,
    Yes,
    /// A downward call was sent or is required, and is not known to have succeeded.
    MaybeDown,
}

#[derive(Debug, Clone)]
struct Reference {
    capabilities: DriverCapabilities,
    attach: Known,
    staging: Known,
    targets: BTreeMap<usize, Known>,
    wants: [bool; 3],
    /// The last call, while its outcome is unknown.
    unknown: Option<Call>,
    /// The observed state before the last call.
    before: Option<Known>,
    /// The outcome of a `ControllerExpandVolume` is unknown, which delays controller calls only.
    growing: bool,
    /// The last call before a restart. Its outcome may have been known but not recorded, so it may be repeated.
    unrecorded: Option<Call>,
}

impl Reference {
    fn wanted(&self) -> bool {
        self.wants.contains(&true)
    }

    fn known(&mut self, call: &Call) -> Option<&mut Known> {
        match call.rpc {
            Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume => Some(&mut self.attach),
            Rpc::NodeStageVolume | Rpc::NodeUnstageVolume => Some(&mut self.staging),
            Rpc::NodePublishVolume | Rpc::NodeUnpublishVolume => {
                Some(self.targets.entry(index(call)).or_insert(Known::No))
            }
            Rpc::ControllerExpandVolume | Rpc::NodeExpandVolume => None,
        }
    }

    /// Checks a call against the spec and against the rule that outcomes must be known.
    fn sees_call(&mut self, call: &Call) {
        let repeated = self.unknown.as_ref() == Some(call);
        let may_repeat = repeated || self.unrecorded.as_ref() == Some(call);
        assert!(self.unknown.is_none() || repeated, "{call} while the end of {:?} is unknown", self.unknown);
        let attach = matches!(call.rpc, Rpc::ControllerPublishVolume | Rpc::ControllerUnpublishVolume);
        assert!(!(attach && self.growing), "{call} while the controller may be making the volume larger");
        let nothing_published = self.targets.values().all(|known| *known == Known::No);
        let staged = self.staging == Known::Yes || !self.capabilities.stage_unstage;
        let attached = self.attach == Known::Yes || !self.capabilities.publish_unpublish;
        let wanted = self.wanted();
        let (wants, staging) = (self.wants, self.staging);
        let known = self.known(call).map(|known| *known);
        let allowed = match call.rpc {
            Rpc::ControllerPublishVolume => wanted && known != Some(Known::MaybeDown),
            Rpc::NodeStageVolume => attached && wanted && known != Some(Known::MaybeDown),
            Rpc::NodePublishVolume => {
                staged && attached && wants[index(call)] && known != Some(Known::MaybeDown)
            }
            Rpc::NodeUnpublishVolume => {
                known != Some(Known::No)
                    && (!wants[index(call)] || known == Some(Known::MaybeDown) || staging == Known::MaybeDown)
            }
            Rpc::NodeUnstageVolume => {
                nothing_published && known != Some(Known::No) && (!wanted || known == Some(Known::MaybeDown))
            }
            Rpc::ControllerUnpublishVolume => {
                nothing_published
                    && staging == Known::No
                    && known != Some(Known::No)
                    && (!wanted || known == Some(Known::MaybeDown))
            }
            Rpc::ControllerExpandVolume => true,
            Rpc::NodeExpandVolume => staged,
        };
        assert!(allowed || may_repeat, "{call} is not allowed: {self:?}");
        let up = call.rpc.direction() == Direction::Up;
        self.before = known;
        if let Some(known) = self.known(call) {
            *known = match (*known, up) {
                // A repeated publish leaves the published target unchanged.
                (Known::Yes, true) => Known::Yes,
                (_, true) => Known::MaybeUp,
                (_, false) => Known::MaybeDown,
            };
        }
    }

    fn sees_end(&mut self, call: &Call, outcome: Outcome) {
        if outcome == Outcome::Failed(Failure::InUse) {
            // The call was not sent.
            if self.unknown.is_none()
                && let Some(before) = self.before
            {
                self.staging = before;
            }
            return;
        }
        if call.rpc == Rpc::ControllerExpandVolume {
            self.growing = outcome == Outcome::Failed(Failure::Uncertain);
            return;
        }
        self.unknown = (outcome == Outcome::Failed(Failure::Uncertain) && self.is_repeatable(call))
            .then(|| call.clone());
        let good = matches!(outcome, Outcome::Ok | Outcome::Expanded { .. });
        if good && !call.rpc.shows_in_mount_table() {
            self.sees_good_end(call);
        }
    }

    /// An upward call cannot be repeated to determine its outcome if a downward call is required first.
    fn is_repeatable(&mut self, call: &Call) -> bool {
        let goes_down = self.known(call).is_some_and(|known| *known == Known::MaybeDown);
        let staged = matches!(call.rpc, Rpc::NodePublishVolume | Rpc::NodeExpandVolume);
        let published = self.targets.values().any(|known| *known == Known::Yes);
        let nowhere = call.rpc == Rpc::NodeExpandVolume && !self.capabilities.stage_unstage && !published;
        call.rpc.direction() == Direction::Down
            || !(goes_down || nowhere || (staged && self.staging == Known::MaybeDown))
    }

    fn sees_good_end(&mut self, call: &Call) {
        let up = call.rpc.direction() == Direction::Up;
        if let Some(known) = self.known(call)
            && (!up || *known != Known::MaybeDown)
        {
            *known = if up { Known::Yes } else { Known::No };
        }
    }

    fn sees_finding(&mut self, call: &Call, finding: Finding) {
        let up = call.rpc.direction() == Direction::Up;
        match finding {
            Finding::Agrees => self.sees_good_end(call),
            Finding::Unknown => {}
            found => {
                // A failed repeated publish is handled with the first one.
                let published = call.rpc == Rpc::NodePublishVolume;
                if let Some(known) = self.known(call).filter(|_| up)
                    && (found == Finding::MISSING) == (published && *known == Known::Yes)
                {
                    *known = Known::MaybeDown;
                }
            }
        }
    }

    fn sees_boot(&mut self) {
        let wanted = self.wanted();
        let after = |known: Known, wanted: bool| match known {
            Known::No => Known::No,
            _ if wanted => Known::No,
            _ => Known::MaybeDown,
        };
        self.staging = after(self.staging, wanted);
        for (name, known) in &mut self.targets {
            *known = after(*known, self.wants[*name]);
        }
    }
}

fn index(call: &Call) -> usize {
    let name = call.consumer.as_ref().map(ConsumerId::as_str);
    NAMES.iter().position(|known| Some(*known) == name).unwrap()
}

/// A state machine and its reference model.
struct Pair {
    script: Script,
    reference: Reference,
}

impl Pair {
    fn apply(&mut self, test_step: &TestStep) {
        let Self { script, reference } = self;
        match test_step {
            TestStep::Want(name) => {
                reference.wants[*name] = true;
                script.want(NAMES[*name]);
            }
            TestStep::Release(name) => {
                reference.wants[*name] = false;
                script.release(NAMES[*name]);
            }
            TestStep::Republish(name) => {
                script.send(Event::Republish(consumer(NAMES[*name])));
            }
            TestStep::Expand(required_bytes) => {
                script.send(Event::Expand { required_bytes: *required_bytes });
            }
            TestStep::End(outcome) => {
                // Only an unstage is checked before it is sent.
                let fits = |call: &Call| {
                    *outcome != Outcome::Failed(Failure::InUse) || call.rpc == Rpc::NodeUnstageVolume
                };
                if let Some(call) = script.volume.in_flight().cloned().filter(fits)
                    && script.asks().is_none()
                {
                    reference.sees_end(&call, *outcome);
                    script.ends(*outcome);
                }
            }
            TestStep::Show(finding) => {
                if let Some(call) = script.asks().cloned() {
                    reference.sees_finding(&call, *finding);
                    script.shows(*finding);
                }
            }
            TestStep::Resume => {
                script.resumes();
            }
            TestStep::Restart { boot } => {
                if *boot {
                    reference.sees_boot();
                    (reference.unknown, reference.growing) = (None, false);
                } else {
                    reference.unrecorded = script.volume.snapshot().calling.clone();
                    let open = script.volume.in_flight().filter(|_| script.asks().is_none());
                    if let Some(call) = open.cloned() {
                        let growing = call.rpc == Rpc::ControllerExpandVolume;
                        reference.growing |= growing;
                        let repeatable = |call: &Call| !growing && reference.is_repeatable(call);
                        reference.unknown = Some(call).filter(repeatable);
                    }
                }
                script.restarts(*boot);
            }
            TestStep::Replace => {
                let call = script.volume.in_flight().filter(|_| script.asks().is_none()).cloned();
                (reference.unknown, reference.growing) = (None, false);
                script.send(Event::DriverRestarted(reference.capabilities));
                if let Some(call) = call {
                    script.send(Event::Finished { call, outcome: Outcome::Failed(Failure::Uncertain) });
                }
            }
            TestStep::LoseStaging => {
                if reference.capabilities.stage_unstage && reference.staging == Known::Yes {
                    reference.staging = Known::MaybeDown;
                    reference.unknown = None;
                    script.send(Event::MountLost(LostMount::Staging));
                }
            }
            TestStep::LoseTarget(name) => {
                if reference.targets.get(name) == Some(&Known::Yes) {
                    reference.targets.insert(*name, Known::MaybeDown);
                    let unknown = reference.unknown.take();
                    reference.unknown = unknown.filter(|call| reference.is_repeatable(call));
                    script.send(Event::MountLost(LostMount::Target(consumer(NAMES[*name]))));
                }
            }
        }
        for call in std::mem::take(&mut self.script.calls) {
            self.reference.sees_call(&call);
        }
    }

    fn heals(&mut self) {
        for _ in 0..200 {
            let next = if self.script.asks().is_some() {
                TestStep::Show(Finding::Agrees)
            } else if self.script.volume.in_flight().is_some() {
                TestStep::End(Outcome::Ok)
            } else if self.script.volume.failed_calls().any(|failed| failed.backing_off) {
                TestStep::Resume
            } else {
                return;
            };
            self.apply(&next);
        }
        panic!("no end of healing: {:#?}", self.script.volume);
    }

    fn is_as_wanted(&self) {
        let Reference { wants, targets, staging, attach, capabilities, .. } = &self.reference;
        let wanted = wants.contains(&true);
        for (name, wanted) in wants.iter().enumerate() {
            let expected = if *wanted { Known::Yes } else { Known::No };
            assert_eq!(*targets.get(&name).unwrap_or(&Known::No), expected, "{}", NAMES[name]);
        }
        let right = |can: bool| if wanted && can { Known::Yes } else { Known::No };
        assert_eq!(*staging, right(capabilities.stage_unstage), "staging");
        assert_eq!(*attach, right(capabilities.publish_unpublish), "attach");
        let state = if wanted { VolumeState::Published } else { VolumeState::Created };
        assert_eq!(self.script.volume.state(), state);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Checks random histories. A failure prints the shortest failing history; `PROPTEST_RNG_SEED` replays the whole
    /// run.
    #[test]
    fn calls_match_the_reference_and_converge(
        (publish_unpublish, stage_unstage) in any::<(bool, bool)>(),
        (controller_expand, node_expand) in any::<(bool, bool)>(),
        steps in vec(test_step(), 0..80),
    ) {
        let capabilities =
            DriverCapabilities { publish_unpublish, stage_unstage, controller_expand, node_expand };
        let reference = Reference {
            capabilities,
            attach: Known::No,
            staging: Known::No,
            targets: BTreeMap::new(),
            wants: [false; 3],
            unknown: None,
            before: None,
            growing: false,
            unrecorded: None,
        };
        let mut script = Script::new(Attach::Here, capabilities);
        script.never_gives_up_quiescing();
        let mut pair = Pair { script, reference };
        for test_step in &steps {
            pair.apply(test_step);
        }
        pair.heals();
        pair.is_as_wanted();
    }
}
