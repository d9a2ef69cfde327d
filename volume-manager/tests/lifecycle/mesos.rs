//! Runs random histories through this state machine and through a model of Mesos' table. Every difference must be
//! listed as intended.

use std::collections::BTreeMap;

use fastrand::Rng;
use volume_manager::advanced::lifecycle::{Direction, DriverCapabilities, Outcome, outcome_of};
use volume_manager::driver::Attach;
use volume_manager::node::{Rpc, VolumeState};

use crate::script::{Finding, Script};

use VolumeState::{
    ControllerPublish, ControllerUnpublish, Created, NodePublish, NodeReady, NodeStage, NodeUnpublish,
    NodeUnstage, Published, VolReady,
};

/// An intended difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Meant {
    /// This crate determines the outcome of an upward call before it sends the opposite call. Mesos sends the opposite
    /// call immediately, although the driver may still be executing the first.
    Quiesces,
    /// After a boot this crate still makes the unpublish and unstage calls that the spec requires for each path. Mesos
    /// continues from NODE_READY without a teardown call to the driver.
    OwesTeardownAfterBoot,
    /// This crate checks the mount table after every OK, Mesos after a publish only.
    ChecksEveryOk,
    /// NOT_FOUND during teardown is success if nothing is mounted. For Mesos every error is a failure.
    AcceptsNotFound,
    /// A wrong mount is undone before the retry. Mesos repeats the call on top of it.
    UndoesWhatIsWrong,
}

/// Mesos' machine, with a publish and a detach as the two requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Mesos {
    state: VolumeState,
    up: bool,
}

impl Mesos {
    /// Returns the next call of Mesos' table.
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

/// The past events that the list of differences depends on.
#[derive(Debug, Clone, Copy, Default)]
struct Past {
    /// The node booted while the volume was not wanted, and no unstage was made since.
    owes: bool,
    not_found: bool,
    contradicted: bool,
    wrong: bool,
}

/// Returns the intended difference between the two machines, if there is one.
fn meant(script: &Script, mesos: Mesos, past: Past) -> Option<Meant> {
    let own = script.volume.in_flight().map(|call| call.rpc);
    if script.volume.uncertain_call().map(|call| call.rpc) == own && own.is_some() && !mesos.up {
        Some(Meant::Quiesces)
    } else if past.wrong && matches!(own, Some(Rpc::NodeUnstageVolume | Rpc::NodeUnpublishVolume)) {
        Some(Meant::UndoesWhatIsWrong)
    } else if past.contradicted {
        Some(Meant::ChecksEveryOk)
    } else if past.not_found {
        Some(Meant::AcceptsNotFound)
    } else if past.owes {
        Some(Meant::OwesTeardownAfterBoot)
    } else {
        None
    }
}

/// Runs a machine to its next call: every commit succeeds, there is no foreign use, and back-offs have elapsed.
fn settles(script: &mut Script) {
    while script.volume.in_flight().is_none() {
        if script.volume.failed_calls().any(|failed| failed.backing_off) {
            script.resumes();
        } else {
            return;
        }
    }
}

/// Ends the running call at random, in both machines.
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
    past.not_found = outcome == Outcome::Ok && code == Some(5);
    past.owes &= rpc != Rpc::NodeUnstageVolume;
    script.ends(outcome);
    // Mesos checks the path of a publish, and fails the call if nothing is mounted there.
    let seen = rpc != Rpc::NodePublishVolume || finding != Finding::MISSING;
    mesos.ends(rpc, code == Some(0) && seen);
    if script.asks().is_some() {
        script.shows(finding);
        past.contradicted = finding != Finding::Agrees;
        past.wrong = finding == Finding::WRONG;
    }
}

/// Random histories of requests, results, crashes and boots; every difference is on the list, and everything on the
/// list occurs.
#[test]
fn differs_from_mesos_only_as_intended() {
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
            // A request during a call counts from its end, in both machines.
            let busy = script.volume.in_flight().is_some();
            settles(&mut script);
            let own = script.volume.in_flight().map(|call| call.rpc);
            if own == mesos.next() {
                same += 1;
            } else if busy && own.map(crate::world::negation) == mesos.next() {
                // Mesos queues the request behind the call.
                same += 1;
            } else {
                let Some(meant) = meant(&script, mesos, past) else {
                    panic!(
                        "seed {seed}: {own:?} here and {:?} there in {mesos:?}: {:#?}",
                        mesos.next(),
                        script.volume
                    );
                };
                *found.entry(meant).or_default() += 1;
            }
            past_owes = past.owes;
            // Aligns the two machines: Mesos gets the state that matches the current call.
            mesos.state = own.and_then(Rpc::state).unwrap_or_else(|| script.volume.state());
        }
    }
    println!("alike {same} times; meant differences: {found:?}");
    for difference in [
        Meant::Quiesces,
        Meant::OwesTeardownAfterBoot,
        Meant::ChecksEveryOk,
        Meant::AcceptsNotFound,
        Meant::UndoesWhatIsWrong,
    ] {
        assert!(found.contains_key(&difference), "{difference:?} never happens");
    }
}
