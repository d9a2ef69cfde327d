//! Tables first (the spec's figures, the rule of the two directions), then every reachable situation.

use std::collections::{BTreeSet, VecDeque};

use super::VolumeState::{
    ControllerPublish, ControllerUnpublish, Created, NodePublish, NodeReady, NodeStage, NodeUnpublish,
    NodeUnstage, Published, VolReady,
};
use super::{
    Direction, DriverCapabilities, Effect, Event, Failure, Floor, Goal, Rpc, Volume, VolumeState, step,
};

const FULL: DriverCapabilities = DriverCapabilities { publish_unpublish: true, stage_unstage: true };
const STATES: [VolumeState; 10] = [
    Created,
    NodeReady,
    VolReady,
    Published,
    ControllerPublish,
    ControllerUnpublish,
    NodeStage,
    NodeUnstage,
    NodePublish,
    NodeUnpublish,
];

fn every_kind() -> impl Iterator<Item = (Floor, DriverCapabilities)> {
    [Floor::Created, Floor::NodeReady].into_iter().flat_map(|floor| {
        [(false, false), (false, true), (true, false), (true, true)].into_iter().map(
            move |(publish_unpublish, stage_unstage)| {
                (floor, DriverCapabilities { publish_unpublish, stage_unstage })
            },
        )
    })
}

/// Lets every call succeed and answers the states of rest that the volume went through, the last one included.
fn walk(mut volume: Volume, goal: Goal) -> Vec<VolumeState> {
    let (mut next, mut effects) = step(&volume, Event::Want(goal));
    let mut passed = Vec::new();
    while let Some(rpc) = next.in_flight() {
        assert!(passed.len() < 8, "no end: {volume:?}, {goal:?}, {passed:?}");
        volume = next;
        (next, effects) = step(&volume, Event::Finished { rpc, outcome: Ok(()) });
        passed.push(volume.after(rpc));
    }
    assert!(matches!(effects.last(), Some(Effect::Reached(_))), "{effects:?}");
    passed
}

#[test]
fn volumes_pass_the_states_of_the_figures_up_and_down() {
    use Floor::Created as OnCreated;
    let (attach, stage) = ([false, true], [false, true]);
    for (figure, floor, publish_unpublish, stage_unstage, states) in [
        ("5 and 7", OnCreated, attach[1], stage[0], &[Created, NodeReady, Published][..]),
        ("6", OnCreated, attach[1], stage[1], &[Created, NodeReady, VolReady, Published]),
        ("8", OnCreated, attach[0], stage[0], &[Created, Published]),
        ("6 without attach", OnCreated, attach[0], stage[1], &[Created, VolReady, Published]),
        ("5, attached elsewhere", Floor::NodeReady, attach[1], stage[0], &[NodeReady, Published]),
        ("6, attached elsewhere", Floor::NodeReady, attach[1], stage[1], &[NodeReady, VolReady, Published]),
        ("8, attached elsewhere", Floor::NodeReady, attach[0], stage[0], &[NodeReady, Published]),
    ] {
        let capabilities = DriverCapabilities { publish_unpublish, stage_unstage };
        let volume = Volume::new(floor, capabilities);
        assert_eq!(volume.state(), states[0], "figure {figure}");
        assert_eq!(walk(volume, Goal::Published), states[1..], "figure {figure}, up");
        let published = Volume::restored(Published, Goal::Published, floor, capabilities);
        let down: Vec<_> = states.iter().rev().skip(1).copied().collect();
        assert_eq!(walk(published, Goal::Created), down, "figure {figure}, down");
    }
}

/// A call that is made now, and the state after its OK; `None` if there is nothing to do.
type Then = Option<(Rpc, VolumeState)>;

#[test]
fn every_state_goes_on_as_in_the_table_of_mesos() {
    use Rpc::{
        ControllerPublishVolume as Attach, ControllerUnpublishVolume as Detach, NodePublishVolume as Publish,
        NodeStageVolume as Stage, NodeUnpublishVolume as Unpublish, NodeUnstageVolume as Unstage,
    };
    let table: [(VolumeState, Then, Then); 10] = [
        // state, wanted at the top, wanted at the bottom
        (Created, Some((Attach, NodeReady)), None),
        (ControllerPublish, Some((Attach, NodeReady)), Some((Detach, Created))),
        (ControllerUnpublish, Some((Detach, Created)), Some((Detach, Created))),
        (NodeReady, Some((Stage, VolReady)), Some((Detach, Created))),
        (NodeStage, Some((Stage, VolReady)), Some((Unstage, NodeReady))),
        (NodeUnstage, Some((Unstage, NodeReady)), Some((Unstage, NodeReady))),
        (VolReady, Some((Publish, Published)), Some((Unstage, NodeReady))),
        (NodePublish, Some((Publish, Published)), Some((Unpublish, VolReady))),
        (NodeUnpublish, Some((Unpublish, VolReady)), Some((Unpublish, VolReady))),
        (Published, None, Some((Unpublish, VolReady))),
    ];
    for (state, up, down) in table {
        for (goal, expected) in [(Goal::Published, up), (Goal::Created, down)] {
            let volume = Volume::restored(state, goal, Floor::Created, FULL);
            let (calling, effects) = step(&volume, Event::Resume);
            let Some((rpc, after)) = expected else {
                assert_eq!((calling.state(), &effects[..]), (state, &[Effect::Reached(goal)][..]), "{state}");
                continue;
            };
            assert_eq!(calling.state(), rpc.state(), "{state} to {goal:?}");
            assert_eq!(effects.last(), Some(&Effect::Call(rpc)), "{state} to {goal:?}");
            // What is on disk already is not written again.
            assert_eq!(effects.contains(&Effect::Record), state != rpc.state(), "{state} to {goal:?}");
            assert_eq!(calling.after(rpc), after, "{state} to {goal:?}");
        }
    }
    // Mesos' `unpublish` ends at NODE_READY.
    let volume = Volume::restored(NodeReady, Goal::NodeReady, Floor::Created, FULL);
    assert_eq!(step(&volume, Event::Resume).1, [Effect::Reached(Goal::NodeReady)]);
}

#[test]
fn a_failed_call_waits_for_its_repetition_and_says_how_it_failed() {
    for failure in [Failure::Final, Failure::Uncertain] {
        for rpc in Rpc::ALL {
            let goal = if rpc.direction() == Direction::Up { Goal::Published } else { Goal::Created };
            let volume = Volume::restored(rpc.state(), goal, Floor::Created, FULL);
            let (calling, _) = step(&volume, Event::Resume);
            let (waiting, effects) = step(&calling, Event::Finished { rpc, outcome: Err(failure) });
            assert_eq!(effects, [Effect::BackOff { rpc, failure }]);
            assert_eq!((waiting.state(), waiting.in_flight()), (rpc.state(), None));
            // Asking again for the same does not shorten the wait.
            assert_eq!(step(&waiting, Event::Want(goal)), (waiting, Vec::new()));
            assert_eq!(step(&waiting, Event::Resume).1, [Effect::Call(rpc)]);
        }
    }
}

#[test]
fn a_goal_that_changes_during_a_call_is_recorded_and_counts_from_its_end() {
    let (calling, _) = step(&Volume::new(Floor::NodeReady, FULL), Event::Want(Goal::Published));
    let (calling, effects) = step(&calling, Event::Want(Goal::NodeReady));
    assert_eq!((effects, calling.in_flight()), (vec![Effect::Record], Some(Rpc::NodeStageVolume)));
    let failed = Event::Finished { rpc: Rpc::NodeStageVolume, outcome: Err(Failure::Uncertain) };
    assert_eq!(step(&calling, failed).1, [Effect::Record, Effect::Call(Rpc::NodeUnstageVolume)]);
}

#[test]
fn an_attach_that_is_made_elsewhere_is_never_touched() {
    for state in STATES {
        for goal in Goal::ALL {
            let mut volume = Volume::restored(state, goal, Floor::NodeReady, FULL);
            for _ in 0..8 {
                let event = match volume.in_flight() {
                    Some(rpc) => Event::Finished { rpc, outcome: Ok(()) },
                    None => Event::Resume,
                };
                volume = step(&volume, event).0;
                assert!(volume.in_flight().is_none_or(|rpc| rpc >= Rpc::NodeStageVolume), "{state} {goal:?}");
            }
        }
    }
}

/// What an onlooker who sees only the calls and their answers knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Onlooker {
    running: Option<Rpc>,
    /// A downward call without OK.
    owed: Option<Rpc>,
    /// A stage succeeded and no unstage was tried since.
    staged: bool,
    /// As far as anybody can know, something may be there.
    maybe_staged: bool,
    maybe_published: bool,
}

impl Onlooker {
    fn sees_call(&mut self, rpc: Rpc, volume: &Volume) {
        assert_eq!(self.running, None, "two calls at once: {volume:?}");
        assert!(self.owed.is_none_or(|owed| owed == rpc), "{:?} was not repeated: {volume:?}", self.owed);
        match rpc {
            Rpc::NodeStageVolume => self.maybe_staged = true,
            Rpc::NodePublishVolume => {
                assert!(self.staged || !volume.capabilities().stage_unstage, "not staged: {volume:?}");
                self.maybe_published = true;
            }
            Rpc::NodeUnstageVolume => {
                assert!(!self.maybe_published, "unstage under a publish: {volume:?}");
                self.staged = false;
            }
            Rpc::ControllerUnpublishVolume => {
                assert!(!self.maybe_published && !self.maybe_staged, "detach of a volume in use: {volume:?}");
            }
            Rpc::ControllerPublishVolume | Rpc::NodeUnpublishVolume => {}
        }
        self.running = Some(rpc);
        if rpc.direction() == Direction::Down {
            self.owed = Some(rpc);
        }
    }

    fn sees_end(&mut self, rpc: Rpc, outcome: Result<(), Failure>) {
        self.running = None;
        if outcome.is_ok() {
            self.owed = None;
            match rpc {
                Rpc::NodeStageVolume => self.staged = true,
                Rpc::NodeUnstageVolume => self.maybe_staged = false,
                Rpc::NodeUnpublishVolume => self.maybe_published = false,
                _ => {}
            }
        }
    }
}

/// One step under the eyes of the onlooker.
fn watched(volume: &Volume, onlooker: &Onlooker, event: Event) -> (Volume, Onlooker) {
    let mut onlooker = *onlooker;
    if let Event::Finished { rpc, outcome } = event {
        if volume.in_flight() == Some(rpc) {
            onlooker.sees_end(rpc, outcome);
        } else {
            assert_eq!(step(volume, event), (*volume, Vec::new()), "an end of nothing: {event:?}");
        }
    }
    let (then, effects) = step(volume, event);
    let changed = (then.state(), then.goal()) != (volume.state(), volume.goal());
    assert_eq!(effects.first() == Some(&Effect::Record), changed, "{volume:?} {event:?}: {effects:?}");
    for effect in effects {
        if let Effect::Call(rpc) = effect {
            assert_eq!((then.in_flight(), then.state()), (Some(rpc), rpc.state()));
            onlooker.sees_call(rpc, &then);
        }
    }
    (then, onlooker)
}

fn every_event() -> impl Iterator<Item = Event> {
    let ends = Rpc::ALL.into_iter().flat_map(|rpc| {
        [Ok(()), Err(Failure::Final), Err(Failure::Uncertain)]
            .into_iter()
            .map(move |outcome| Event::Finished { rpc, outcome })
    });
    Goal::ALL.into_iter().map(Event::Want).chain([Event::Resume]).chain(ends)
}

/// Every situation that any sequence of wishes, answers, failures and crashes can bring about, checked by the onlooker.
fn reachable(floor: Floor, capabilities: DriverCapabilities) -> BTreeSet<(Volume, Onlooker)> {
    let nothing =
        Onlooker { running: None, owed: None, staged: false, maybe_staged: false, maybe_published: false };
    let first = (Volume::new(floor, capabilities), nothing);
    let (mut seen, mut queue) = (BTreeSet::from([first]), VecDeque::from([first]));
    while let Some((volume, onlooker)) = queue.pop_front() {
        let mut next: Vec<_> = every_event().map(|event| watched(&volume, &onlooker, event)).collect();
        // The process dies: what is recorded is left, and the call's answer will never be heard.
        let restored = Volume::restored(volume.state(), volume.goal(), floor, capabilities);
        next.push((restored, Onlooker { running: None, ..onlooker }));
        queue.extend(next.into_iter().filter(|situation| seen.insert(*situation)));
    }
    seen
}

#[test]
fn in_every_reachable_situation_one_call_runs_publish_follows_stage_and_downward_calls_are_repeated_until_ok()
{
    for (floor, capabilities) in every_kind() {
        let situations = reachable(floor, capabilities);
        println!("{floor:?}, {capabilities:?}: {} situations", situations.len());
        let states: BTreeSet<_> = situations.iter().map(|(volume, _)| volume.state()).collect();
        let rungs = 1
            + usize::from(floor == Floor::Created && capabilities.publish_unpublish)
            + usize::from(capabilities.stage_unstage);
        assert_eq!(states.len(), 1 + 3 * rungs, "a floor, and for each rung a rest and two ways: {states:?}");
    }
}

#[test]
fn from_every_reachable_situation_the_goal_is_reached_once_faults_stop() {
    for (floor, capabilities) in every_kind() {
        for (start, onlooker) in reachable(floor, capabilities) {
            let (mut volume, mut onlooker) = (start, onlooker);
            let mut calls = 0;
            loop {
                let event = match volume.in_flight() {
                    Some(rpc) => Event::Finished { rpc, outcome: Ok(()) },
                    None => Event::Resume,
                };
                if event == Event::Resume && step(&volume, event).1 == [Effect::Reached(volume.goal())] {
                    break;
                }
                (volume, onlooker) = watched(&volume, &onlooker, event);
                calls += u32::from(volume.in_flight().is_some());
                assert!(calls <= 8, "no end from {start:?}");
            }
            let wanted = Volume::restored(volume.goal().state(), volume.goal(), floor, capabilities).state();
            assert_eq!(volume.state(), wanted, "from {start:?}");
        }
    }
}
