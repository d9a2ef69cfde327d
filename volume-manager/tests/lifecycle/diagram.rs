//! The state diagram of the guide, compared with the state machine.

use std::collections::{BTreeMap, BTreeSet};

use volume_manager::advanced::lifecycle::{
    Base, Call, Direction, DriverCapabilities, Effect, Event, Outcome, Policy, Snapshot, Target, TargetState,
    Volume,
};
use volume_manager::driver::Attach;
use volume_manager::node::VolumeState;

use crate::script::{consumer, record};

/// The source of the diagram. `cargo xtask codegen` draws it.
const DIAGRAM: &str = include_str!("../../../docs/diagrams/volume-states.pikchr");

/// A line of the diagram that draws a transition, without its coordinates: `ok NODE_STAGE VOL_READY`.
type Line = String;

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

/// Returns the transitions that the state machine makes.
fn made() -> BTreeSet<Line> {
    let mut lines = BTreeSet::new();
    for state in VolumeState::ALL {
        for wanted in [true, false] {
            let (calling, call) = first_call(&volume_in(state, wanted), Event::Proceed);
            let Some(call) = call else { continue };
            let transient = call.rpc.state().unwrap();
            lines.insert(match (transient == state, call.rpc.direction()) {
                (false, _) if wanted => format!("wanted {state} {transient}"),
                (false, _) => format!("unwanted {state} {transient}"),
                (true, Direction::Up) => format!("again {state} not OK, wanted"),
                (true, Direction::Down) => format!("again {state} not OK"),
            });
            lines.insert(format!("ok {transient} {}", rest_after(&calling, &call)));
        }
        let (booted, call) = first_call(&volume_in(state, true), Event::Rebooted);
        let from_above = matches!(booted.snapshot().base, Base::NodeStage | Base::NodeReady);
        if from_above && call.is_some() && !matches!(state, VolumeState::NodeReady | VolumeState::NodeStage) {
            lines.insert(format!("boot {state} {}", VolumeState::NodeReady));
        }
    }
    lines
}

/// Returns the transitions that the diagram shows: the uses of its macros, such as `ok(NODE_STAGE.n, VOL_READY.w, ...)`.
fn shown() -> BTreeSet<Line> {
    let uses = DIAGRAM.lines().filter_map(|line| line.strip_suffix(')')?.split_once('('));
    let lines = uses.filter_map(|(name, arguments)| {
        let arguments: Vec<&str> = arguments.split(", ").collect();
        let state = |argument: &str| argument.split('.').next().unwrap_or_default().to_owned();
        match name {
            "again" => {
                Some(format!("{name} {} {}", arguments[0], arguments[2..].join(", ").replace('"', "")))
            }
            "ok" | "wanted" | "unwanted" | "boot" => {
                Some(format!("{name} {} {}", state(arguments[0]), state(arguments[1])))
            }
            _ => None,
        }
    });
    lines.collect()
}

/// The diagram has each transition of the state machine, and no other.
#[test]
fn the_diagram_shows_each_transition() {
    let (shown, made) = (shown(), made());
    let missing: Vec<_> = made.difference(&shown).collect();
    let wrong: Vec<_> = shown.difference(&made).collect();
    assert!(
        missing.is_empty() && wrong.is_empty(),
        "docs/diagrams/volume-states.pikchr lacks {missing:#?}, and draws {wrong:#?}, which the state machine does not \
         make; correct it and run `cargo xtask codegen`"
    );
}

/// The diagram has each state, and the name of the call of each transitional state.
#[test]
fn the_diagram_shows_each_state_with_its_call() {
    for state in VolumeState::ALL {
        let name = state.to_string();
        let label = match state.rpc() {
            Some(rpc) => format!("(\"{name}\", \"{rpc}\", "),
            None => format!("stable(\"{name}\", "),
        };
        let is_shown = |line: &str| line.starts_with(&format!("{name}:")) && line.contains(&label);
        assert!(DIAGRAM.lines().any(is_shown), "no box is named {name}: and labeled {label}");
    }
}
