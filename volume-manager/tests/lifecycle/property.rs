//! Random histories against a reference model that knows only what an onlooker can know: which calls were sent and how
//! they ended. From that and the spec's rules it says which calls are allowed, and what must be there in the end.

use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;
use volume_manager::ConsumerId;
use volume_manager::lifecycle::{
    Attach, Call, Direction, DriverCapabilities, Event, Failure, Lost, Outcome, Rpc, VolumeState,
};

use crate::script::{Finding, Script, consumer};

const NAMES: [&str; 3] = ["a", "b", "c"];

#[derive(Debug, Clone)]
enum Happening {
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

fn happening() -> impl Strategy<Value = Happening> {
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
        3 => name.clone().prop_map(Happening::Want),
        2 => name.clone().prop_map(Happening::Release),
        1 => name.clone().prop_map(Happening::Republish),
        1 => (1u64..30).prop_map(Happening::Expand),
        8 => end.prop_map(Happening::End),
        8 => finding.prop_map(Happening::Show),
        3 => Just(Happening::Resume),
        1 => any::<bool>().prop_map(|boot| Happening::Restart { boot }),
        1 => Just(Happening::Replace),
        1 => Just(Happening::LoseStaging),
        1 => name.prop_map(Happening::LoseTarget),
    ]
}

/// What an onlooker knows of a mount, or of an attach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    No,
    /// An upward call was sent, and its good end is not known.
    MaybeUp,
    Yes,
    /// A downward call was sent, or has to be, and its good end is not known.
    MaybeDown,
}

#[derive(Debug, Clone)]
struct Reference {
    capabilities: DriverCapabilities,
    attach: Known,
    staging: Known,
    targets: BTreeMap<usize, Known>,
    wants: [bool; 3],
    /// The last call, as long as its end is unknown.
    unknown: Option<Call>,
    /// What was known of what the last call is about before it.
    before: Option<Known>,
    /// The end of a `ControllerExpandVolume` is unknown. It holds back the calls of the controller only.
    growing: bool,
    /// The last call before a restart: its end may have been known, but not recorded, so it may be repeated.
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

    /// What the spec and the rule of known ends allow.
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
                // A repeated publish leaves what is published.
                (Known::Yes, true) => Known::Yes,
                (_, true) => Known::MaybeUp,
                (_, false) => Known::MaybeDown,
            };
        }
    }

    fn sees_end(&mut self, call: &Call, outcome: Outcome) {
        if outcome == Outcome::Failed(Failure::InUse) {
            // It was not sent.
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

    /// What has to go down first cannot be repeated upward to find out how it ended.
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
                // What is wrong with a repeated publish is left to who has the first one.
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

/// A machine and its onlooker.
struct Pair {
    script: Script,
    reference: Reference,
}

impl Pair {
    fn happens(&mut self, happening: &Happening) {
        let Self { script, reference } = self;
        match happening {
            Happening::Want(name) => {
                reference.wants[*name] = true;
                script.want(NAMES[*name]);
            }
            Happening::Release(name) => {
                reference.wants[*name] = false;
                script.release(NAMES[*name]);
            }
            Happening::Republish(name) => {
                script.send(Event::Republish(consumer(NAMES[*name])));
            }
            Happening::Expand(required_bytes) => {
                script.send(Event::Expand { required_bytes: *required_bytes });
            }
            Happening::End(outcome) => {
                // Only an unstage looks before it is sent.
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
            Happening::Show(finding) => {
                if let Some(call) = script.asks().cloned() {
                    reference.sees_finding(&call, *finding);
                    script.shows(*finding);
                }
            }
            Happening::Resume => {
                script.resumes();
            }
            Happening::Restart { boot } => {
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
            Happening::Replace => {
                let call = script.volume.in_flight().filter(|_| script.asks().is_none()).cloned();
                (reference.unknown, reference.growing) = (None, false);
                script.send(Event::NewGeneration(reference.capabilities));
                if let Some(call) = call {
                    script.send(Event::Finished { call, outcome: Outcome::Failed(Failure::Uncertain) });
                }
            }
            Happening::LoseStaging => {
                if reference.capabilities.stage_unstage && reference.staging == Known::Yes {
                    reference.staging = Known::MaybeDown;
                    reference.unknown = None;
                    script.send(Event::Lost(Lost::Staging));
                }
            }
            Happening::LoseTarget(name) => {
                if reference.targets.get(name) == Some(&Known::Yes) {
                    reference.targets.insert(*name, Known::MaybeDown);
                    let unknown = reference.unknown.take();
                    reference.unknown = unknown.filter(|call| reference.is_repeatable(call));
                    script.send(Event::Lost(Lost::Target(consumer(NAMES[*name]))));
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
                Happening::Show(Finding::Agrees)
            } else if self.script.volume.in_flight().is_some() {
                Happening::End(Outcome::Ok)
            } else if self.script.volume.troubles().any(|trouble| trouble.waits) {
                Happening::Resume
            } else {
                return;
            };
            self.happens(&next);
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

    /// A failure prints the shortest history that fails; `PROPTEST_RNG_SEED` replays the whole run.
    #[test]
    fn every_call_is_one_that_the_reference_allows_and_the_end_is_what_is_wanted(
        (publish_unpublish, stage_unstage) in any::<(bool, bool)>(),
        (controller_expand, node_expand) in any::<(bool, bool)>(),
        happenings in vec(happening(), 0..80),
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
        for happening in &happenings {
            pair.happens(happening);
        }
        pair.heals();
        pair.is_as_wanted();
    }
}
