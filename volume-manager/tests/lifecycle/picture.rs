//! The state diagram, drawn from the state machine and compared with the diagram in the guide.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use volume_manager::lifecycle::{
    Attach, Base, Call, Direction, DriverCapabilities, Effect, Event, Outcome, Policy, Snapshot, Target,
    TargetState, Volume, VolumeState,
};

use crate::script::{consumer, record};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/src/volume-states.md");

/// Creates a volume in a state, with or without a consumer that wants it.
fn volume_in(state: VolumeState, wanted: bool) -> Volume {
    let base = Base::ALL.into_iter().find(|base| base.state() == state).unwrap_or(Base::VolReady);
    let target = match state {
        VolumeState::Published => TargetState::Published,
        VolumeState::NodePublish => TargetState::NodePublish,
        VolumeState::NodeUnpublish => TargetState::NodeUnpublish,
        _ => TargetState::Absent,
    };
    let snapshot = Snapshot {
        base,
        attached: false,
        attached_here: !matches!(base, Base::Created),
        calling: None,
        targets: BTreeMap::from([(consumer("a"), Target { wanted, state: target })]),
        granted_bytes: 0,
        capacity_bytes: 0,
        expansion: None,
    };
    let capabilities =
        DriverCapabilities { publish_unpublish: true, stage_unstage: true, ..DriverCapabilities::default() };
    Volume::restored(snapshot, Attach::Here, capabilities, Policy::default())
}

/// Sends an event and returns the first call that follows.
fn first_call(volume: &Volume, event: Event) -> (Volume, Option<Call>) {
    let (volume, effects) = record(volume, event);
    let call = effects.into_iter().find_map(|effect| match effect {
        Effect::Call(call) => Some(call),
        _ => None,
    });
    (volume, call)
}

/// Returns the stable state after an OK, before the next call is intended.
fn rest_after(volume: &Volume, call: &Call) -> VolumeState {
    let ok = Event::Finished { call: call.clone(), outcome: Outcome::Ok };
    let (volume, _) = record(volume, ok);
    let Snapshot { base, targets, .. } = volume.snapshot();
    let rests = |base: &Base| match base {
        Base::ControllerPublish => VolumeState::Created,
        Base::ControllerUnpublish | Base::NodeStage => VolumeState::NodeReady,
        Base::NodeUnstage => VolumeState::VolReady,
        base => base.state(),
    };
    let published = targets.values().any(|target| target.state == TargetState::Published);
    if published { VolumeState::Published } else { rests(base) }
}

fn picture() -> String {
    let mut edges: BTreeSet<(VolumeState, VolumeState, String)> = BTreeSet::new();
    for state in VolumeState::ALL {
        for wanted in [true, false] {
            let desired = if wanted { "wanted" } else { "not wanted" };
            let (calling, call) = first_call(&volume_in(state, wanted), Event::Proceed);
            let Some(call) = call else { continue };
            let transient = call.rpc.state().unwrap();
            if transient != state {
                edges.insert((state, transient, desired.to_owned()));
            } else if call.rpc.direction() == Direction::Down {
                edges.insert((state, transient, "not OK: again".to_owned()));
            } else {
                edges.insert((state, transient, "not OK, wanted: again".to_owned()));
            }
            edges.insert((transient, rest_after(&calling, &call), format!("{} OK", call.rpc)));
        }
        let (booted, call) = first_call(&volume_in(state, true), Event::Rebooted);
        let from_above = matches!(booted.snapshot().base, Base::NodeStage | Base::NodeReady);
        if from_above && call.is_some() && !matches!(state, VolumeState::NodeReady | VolumeState::NodeStage) {
            edges.insert((state, VolumeState::NodeReady, "boot, wanted".to_owned()));
        }
    }
    let mut text = String::from("stateDiagram-v2\n    [*] --> CREATED\n    CREATED --> [*]\n");
    for (from, to, label) in edges {
        writeln!(text, "    {from} --> {to}: {label}").unwrap();
    }
    text
}

/// Set `EDGE_CSI_REWRITE=1` to write the diagram to the page instead.
#[test]
fn the_guide_shows_the_states_as_the_machine_has_them() {
    let page = std::fs::read_to_string(PAGE).unwrap();
    let (before, rest) = page.split_once("```mermaid\n").unwrap();
    let (shown, after) = rest.split_once("```").unwrap();
    let drawn = picture();
    if std::env::var_os("EDGE_CSI_REWRITE").is_some() {
        std::fs::write(PAGE, format!("{before}```mermaid\n{drawn}```{after}")).unwrap();
    } else {
        assert_eq!(shown, drawn, "run the test with EDGE_CSI_REWRITE=1 to write the picture into {PAGE}");
    }
}

#[test]
fn the_picture_has_every_state() {
    let drawn = picture();
    for state in VolumeState::ALL {
        assert!(drawn.contains(&format!("    {state} --> ")), "{state} is not left: {drawn}");
        assert!(drawn.contains(&format!(" --> {state}")), "{state} is not entered: {drawn}");
    }
}
