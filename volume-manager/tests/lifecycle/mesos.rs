//! The same random history through our machine and through a model of Mesos' table; where they differ, the difference has
//! to be one that is meant.

use std::collections::BTreeMap;

use fastrand::Rng;
use volume_manager::lifecycle::{
    Attach, Direction, DriverCapabilities, Outcome, Rpc, VolumeState, outcome_of,
};

use crate::script::{Finding, Script};

use VolumeState::{
    ControllerPublish, ControllerUnpublish, Created, NodePublish, NodeReady, NodeStage, NodeUnpublish,
    NodeUnstage, Published, VolReady,
};

/// A difference that is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Meant {
    /// We find out how an upward call ended before we negate it. Mesos negates at once, though the driver may still be
    /// at it.
    Quiesces,
    /// After a boot we still make the unpublish and the unstage that the spec owes for each path. Mesos goes on from
    /// NODE_READY, and its driver never hears of the end.
    OwesTeardownAfterBoot,
    /// We look into the mount table after every OK. Mesos does so after a publish only.
    ChecksEveryOk,
    /// NOT_FOUND on the way down is a good end if nothing is mounted. Mesos takes every error for a failure.
    TakesGoneForGone,
    /// What is wrongly mounted is undone before it is tried again. Mesos repeats the call on top of it.
    UndoesWhatIsWrong,
}

/// Mesos' machine, with a publish and a detach as the two wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mesos {
    state: VolumeState,
    up: bool,
}

impl Mesos {
    /// Its table.
    fn next(self) -> Option<Rpc> {
        use Rpc::*;
        Some(match (self.state, self.up) {
            (Created, false) | (Published, true) => return None,
            (Created | ControllerPublish, true) => ControllerPublishVolume,
            (ControllerPublish | NodeReady, false) | (ControllerUnpublish, _) => ControllerUnpublishVolume,
            (NodeReady | NodeStage, true) => NodeStageVolume,
            (NodeStage | VolReady, false) | (NodeUnstage, _) => NodeUnstageVolume,
            (VolReady | NodePublish, true) => NodePublishVolume,
            (NodePublish | Published, false) | (NodeUnpublish, _) => NodeUnpublishVolume,
        })
    }

    fn ends(&mut self, rpc: Rpc, good: bool) {
        use Rpc::*;
        self.state = match (rpc, good) {
            (rpc, false) => rpc.state().unwrap(),
            (ControllerPublishVolume | NodeUnstageVolume, true) => NodeReady,
            (ControllerUnpublishVolume, true) => Created,
            (NodeStageVolume | NodeUnpublishVolume, true) => VolReady,
            (NodePublishVolume, true) => Published,
            (ControllerExpandVolume | NodeExpandVolume, true) => self.state,
        };
    }

    fn boots(&mut self) {
        if matches!(self.state, VolReady | Published | NodeUnstage | NodePublish | NodeUnpublish) {
            self.state = NodeReady;
        }
    }
}

/// What went before, as far as the list of differences depends on it.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// Booted when it was not wanted, and the unstage is not made since.
    owes: bool,
    gone: bool,
    contradicted: bool,
    wrong: bool,
}

/// Why they differ, if that is meant.
fn meant(script: &Script, mesos: Mesos, past: Past) -> Option<Meant> {
    let ours = script.volume.in_flight().map(|call| call.rpc);
    if script.volume.suspect().map(|call| call.rpc) == ours && ours.is_some() && !mesos.up {
        Some(Meant::Quiesces)
    } else if past.wrong && matches!(ours, Some(Rpc::NodeUnstageVolume | Rpc::NodeUnpublishVolume)) {
        Some(Meant::UndoesWhatIsWrong)
    } else if past.contradicted {
        Some(Meant::ChecksEveryOk)
    } else if past.gone {
        Some(Meant::TakesGoneForGone)
    } else if past.owes {
        Some(Meant::OwesTeardownAfterBoot)
    } else {
        None
    }
}

/// Brings a machine to its next call: the store takes every record, nobody else uses anything, back-offs are over.
fn settles(script: &mut Script) {
    while script.volume.in_flight().is_none() {
        if script.volume.troubles().any(|trouble| trouble.waits) {
            script.resumes();
        } else {
            return;
        }
    }
}

/// Lets the call under way end at random, in both machines.
fn end(script: &mut Script, mesos: &mut Mesos, random: &mut Rng, past: &mut Past) {
    let Some(rpc) = script.volume.in_flight().map(|call| call.rpc) else { return };
    let codes = [Some(0), Some(0), Some(0), Some(0), Some(13), Some(5), Some(14), None];
    let code = codes[random.usize(..8)];
    let outcome = outcome_of(rpc, code);
    let findings = match (rpc.shows_in_mount_table(), rpc.direction()) {
        (false, _) => &[Finding::Agrees][..],
        (true, Direction::Up) => &[Finding::Agrees, Finding::MISSING, Finding::WRONG],
        (true, Direction::Down) => &[Finding::Agrees, Finding::STILL_THERE],
    };
    let lies = random.u8(..6) == 0;
    let finding = if lies { findings[random.usize(..findings.len())] } else { Finding::Agrees };
    past.gone = outcome == Outcome::Ok && code == Some(5);
    past.owes &= rpc != Rpc::NodeUnstageVolume;
    script.ends(outcome);
    // Mesos looks after a publish, and fails it if nothing is there.
    let seen = rpc != Rpc::NodePublishVolume || finding != Finding::MISSING;
    mesos.ends(rpc, code == Some(0) && seen);
    if script.asks().is_some() {
        script.shows(finding);
        past.contradicted = finding != Finding::Agrees;
        past.wrong = finding == Finding::WRONG;
    }
}

/// Anchors (f) 25: random histories of wishes, ends, crashes and boots; every difference is on the list, and everything
/// on the list happens.
#[test]
fn our_machine_differs_from_the_table_of_mesos_only_where_it_is_meant_to() {
    let capabilities =
        DriverCapabilities { publish_unpublish: true, stage_unstage: true, ..DriverCapabilities::default() };
    let mut found: BTreeMap<Meant, u32> = BTreeMap::new();
    let mut same = 0u32;
    for seed in 0..400 {
        let mut random = Rng::with_seed(seed);
        let mut script = Script::new(Attach::Here, capabilities);
        script.never_gives_up_quiescing();
        let mut mesos = Mesos { state: Created, up: false };
        let mut past_owes = false;
        for _ in 0..60 {
            let mut past = Past { owes: past_owes, ..Past::default() };
            match random.u8(..12) {
                0 | 1 => {
                    mesos.up = true;
                    script.want("a");
                }
                2 => {
                    mesos.up = false;
                    script.release("a");
                }
                3 => {
                    script.restarts(false);
                }
                4 => {
                    script.restarts(true);
                    mesos.boots();
                    past.owes |= !mesos.up;
                }
                _ => end(&mut script, &mut mesos, &mut random, &mut past),
            }
            // A wish that comes during a call counts from its end, in both machines.
            let busy = script.volume.in_flight().is_some();
            settles(&mut script);
            let ours = script.volume.in_flight().map(|call| call.rpc);
            if ours == mesos.next() {
                same += 1;
            } else if busy && ours.map(crate::world::negation) == mesos.next() {
                // Mesos queues the wish behind the call.
                same += 1;
            } else {
                let Some(meant) = meant(&script, mesos, past) else {
                    panic!(
                        "seed {seed}: {ours:?} here and {:?} there in {mesos:?}: {:#?}",
                        mesos.next(),
                        script.volume
                    );
                };
                *found.entry(meant).or_default() += 1;
            }
            past_owes = past.owes;
            // From here on they start alike: the state that Mesos would have for what we are at.
            mesos.state = ours.and_then(Rpc::state).unwrap_or_else(|| script.volume.state());
        }
    }
    println!("alike {same} times; meant differences: {found:?}");
    for difference in [
        Meant::Quiesces,
        Meant::OwesTeardownAfterBoot,
        Meant::ChecksEveryOk,
        Meant::TakesGoneForGone,
        Meant::UndoesWhatIsWrong,
    ] {
        assert!(found.contains_key(&difference), "{difference:?} never happens");
    }
}
