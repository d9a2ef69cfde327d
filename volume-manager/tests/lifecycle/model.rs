//! Model check: explores every interleaving of the actions on a volume, breadth first, to a given depth.
//!
//! Volumes share nothing within the state machine: each step takes and returns one volume. Outside of it they share a
//! process, a boot and a driver, which end for both simultaneously, and a store, which commits the records of both or
//! of neither. A single volume to which these events can happen at any time therefore reaches every state that it can
//! reach beside another volume, and every invariant concerns one volume only. The check of one volume with two
//! consumers thus covers two volumes. `two_volumes_on_one_driver_keep_every_invariant` checks this reasoning to a small
//! depth. The scheduling of many volumes in `node`, such as call queues, is not modelled.
//!
//! States are identified by a 64-bit hash: among ten million, the odds of any collision are about 1 to 400,000.

use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use volume_manager::advanced::lifecycle::DriverCapabilities;
use volume_manager::driver::Attach;

use crate::actions::{Action, Answer, Interrupted, Scope};
use crate::mutants::Mutant;
use crate::world::{Violation, World};

/// The result of an exploration.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// The number of steps from the initial state; fewer than requested if there are no more states.
    pub(crate) depth: usize,
    /// Nothing is left to explore.
    pub(crate) complete: bool,
}

/// A path to a broken invariant.
#[derive(Debug)]
pub(crate) struct Counterexample {
    pub(crate) violation: Violation,
    pub(crate) actions: Vec<Action>,
}

fn fingerprint(state: &impl Hash) -> u64 {
    let mut mixer = Mixer(0);
    state.hash(&mut mixer);
    mixer.finish()
}

/// A hash that is fast without optimization: SplitMix64 over words.
struct Mixer(u64);

impl Mixer {
    fn mix(&mut self, word: u64) {
        let mut mixed = (self.0 ^ word).wrapping_add(0x9E37_79B9_7F4A_7C15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.0 = mixed ^ (mixed >> 31);
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }

    fn write_isize(&mut self, word: isize) {
        self.mix(word as u64);
    }
}

/// Runs the world without faults and checks that it reaches its goal. `good` contains the states that are known to
/// reach it.
fn heal(world: &World, scope: &Scope, good: &mut HashSet<u64>) -> Result<(), Violation> {
    let mut now = world.clone();
    let mut path = Vec::new();
    loop {
        let print = fingerprint(&now);
        if good.contains(&print) {
            break;
        }
        path.push(print);
        if path.len() > 200 {
            return Err(Violation { invariant: "I7", found: "no end of healing".to_owned() });
        }
        match now.healing(scope) {
            Some(action) => now = now.act(&action, scope)?,
            None => {
                now.is_at_its_goal(scope)?;
                break;
            }
        }
    }
    good.extend(path);
    Ok(())
}

/// Explores from the initial state to `depth`, or to `most` states.
pub(crate) fn explore(scope: &Scope, depth: usize, most: usize) -> Result<Explored, Box<Counterexample>> {
    let first = World::new(scope);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut good = HashSet::new();
    // For each state: its predecessor and the action that led to it.
    let mut origins: Vec<(usize, Action)> = vec![(0, Action::Proceed)];
    let mut frontier = vec![(first, 0)];
    let (mut transitions, mut reached) = (0, 0);
    while !frontier.is_empty() && reached < depth && seen.len() < most {
        reached += 1;
        let mut next = Vec::new();
        for (world, index) in frontier {
            for action in world.actions(scope) {
                transitions += 1;
                let explained = |violation| {
                    Box::new(Counterexample { violation, actions: trace(&origins, index, action.clone()) })
                };
                let then = world.act(&action, scope).map_err(explained)?;
                if seen.insert(fingerprint(&then)) {
                    heal(&then, scope, &mut good).map_err(explained)?;
                    origins.push((index, action));
                    next.push((then, origins.len() - 1));
                }
            }
        }
        frontier = next;
    }
    Ok(Explored { states: seen.len(), transitions, depth: reached, complete: frontier.is_empty() })
}

fn trace(origins: &[(usize, Action)], mut index: usize, last: Action) -> Vec<Action> {
    let mut actions = vec![last];
    while index != 0 {
        let (origin, action) = &origins[index];
        actions.push(action.clone());
        index = *origin;
    }
    actions.reverse();
    actions
}

/// Returns the exploration depth: the default, or a larger one from the environment, for example in a nightly run.
fn depth(default: usize) -> usize {
    let asked = std::env::var("EDGE_CSI_MODEL_DEPTH").ok().and_then(|depth| depth.parse().ok());
    asked.unwrap_or(0).max(default)
}

fn passes(name: &str, scope: &Scope, default_depth: usize) -> Explored {
    let explored = explore(scope, depth(default_depth), usize::MAX)
        .unwrap_or_else(|found| panic!("{name}: {:#?}\nafter {:#?}", found.violation, found.actions));
    println!(
        "{name}: {} states, {} transitions, {} steps deep{}",
        explored.states,
        explored.transitions,
        explored.depth,
        if explored.complete { ", complete" } else { "" }
    );
    explored
}

const ATTACH: DriverCapabilities = DriverCapabilities {
    publish_unpublish: true,
    stage_unstage: true,
    controller_expand: false,
    node_expand: false,
};

/// A crash or a reboot may occur before and after every effect, with and without its record on disk.
#[test]
fn two_consumers_keep_every_invariant() {
    passes("stage, two consumers", &Scope::new(2), 10);
}

#[test]
fn one_consumer_keeps_every_invariant_in_all_states() {
    let explored = passes("stage, one consumer", &Scope::new(1), 60);
    assert!(explored.complete);
}

/// Includes attach and detach.
#[test]
fn a_volume_that_is_attached_here_keeps_every_invariant() {
    let scope = Scope { attach: Attach::Here, capabilities: ATTACH, ..Scope::new(1) };
    passes("attach and stage, one consumer", &scope, 14);
}

/// A lost attach can make the repetition of a call illegal, so this model has no late ends.
#[test]
fn awaited_attach_keeps_every_invariant() {
    let scope = Scope { attach: Attach::Awaited, late_ends: false, ..Scope::new(1) };
    passes("awaited attach, one consumer", &scope, 11);
}

/// A foreign unmount of a staging path can make the repetition of a publish illegal, so this model has no late ends.
#[test]
fn a_volume_that_others_meddle_with_is_healed() {
    let scope = Scope { meddling: true, late_ends: false, ..Scope::new(2) };
    passes("meddling, two consumers", &scope, 8);
}

/// A crash may occur between the phases of an expansion, and during a republish.
#[test]
fn expansions_and_republishes_keep_every_invariant() {
    let capabilities =
        DriverCapabilities { stage_unstage: true, controller_expand: true, node_expand: true, ..ATTACH };
    let capabilities = DriverCapabilities { publish_unpublish: false, ..capabilities };
    let scope = Scope { capabilities, extras: true, ..Scope::new(1) };
    passes("expansion and republish, one consumer", &scope, 10);
}

const EXPANDS: DriverCapabilities =
    DriverCapabilities { publish_unpublish: false, controller_expand: true, node_expand: true, ..ATTACH };

/// An unavailable controller blocks neither the publishing nor the release of a volume.
#[test]
fn an_expansion_without_its_controller_holds_up_nothing_else() {
    let scope = Scope {
        capabilities: EXPANDS,
        extras: true,
        unreachable_controller: true,
        lies: false,
        store_fails: false,
        ..Scope::new(1)
    };
    passes("expansion without its controller, one consumer", &scope, 9);
}

/// Calls that were never sent are not undone, and required teardown calls stay required.
#[test]
fn calls_that_were_never_sent_keep_every_invariant() {
    let scope = Scope { not_sent: true, lies: false, ..Scope::new(1) };
    passes("never sent, one consumer", &scope, 12);
    let scope = Scope { attach: Attach::Here, capabilities: ATTACH, ..scope };
    passes("never sent, attach, one consumer", &scope, 12);
}

/// A driver may lose and gain capabilities with each restart. Earlier results are torn down in the permitted order.
#[test]
fn changed_capabilities_leave_nothing_behind() {
    let nothing = DriverCapabilities::default();
    let changes = vec![
        nothing,
        DriverCapabilities { stage_unstage: true, ..nothing },
        DriverCapabilities { publish_unpublish: true, ..nothing },
        ATTACH,
    ];
    let scope = Scope {
        attach: Attach::Here,
        capabilities: ATTACH,
        changes,
        lies: false,
        store_fails: false,
        ..Scope::new(1)
    };
    passes("changing capabilities, one consumer", &scope, 10);
}

/// Returns whether the action affects both volumes.
fn is_global(action: &Action) -> bool {
    matches!(
        action,
        Action::Crash { .. } | Action::Reboot { .. } | Action::DriverRestarted { .. } | Action::Proceed
    )
}

/// Two volumes with two consumers each, which share the process, the boot, the driver and the store: a commit contains
/// the records of both and fails for both.
#[test]
fn two_volumes_on_one_driver_keep_every_invariant() {
    let scope = Scope::new(2);
    let first = [World::new(&scope), World::new(&scope)];
    let (mut seen, mut frontier) = (HashSet::from([fingerprint(&first)]), vec![first]);
    let mut transitions = 0;
    // Each further step has four times as many states, each of two volumes. Depth 8 fits into the memory of a small
    // machine.
    let depth = depth(6).min(8);
    for _ in 0..depth {
        let mut next = Vec::new();
        for worlds in frontier {
            for then in beside(&worlds, &scope) {
                transitions += 1;
                if seen.insert(fingerprint(&then)) {
                    next.push(then);
                }
            }
        }
        frontier = next;
    }
    println!(
        "two volumes, two consumers each: {} states, {transitions} transitions, {depth} steps deep",
        seen.len()
    );
}

fn beside(worlds: &[World; 2], scope: &Scope) -> Vec<[World; 2]> {
    let act = |world: &World, action: &Action| {
        world.act(action, scope).unwrap_or_else(|found| panic!("{found:?} after {action:?} in {worlds:#?}"))
    };
    let mut then = Vec::new();
    for (at, world) in worlds.iter().enumerate() {
        for action in world.actions(scope).into_iter().filter(|action| !is_global(action)) {
            let mut both = worlds.clone();
            both[at] = act(world, &action);
            let other = 1 - at;
            if matches!(action, Action::Write { .. }) && worlds[other].writing.is_some() {
                if at > other {
                    continue;
                }
                both[other] = act(&worlds[other], &action);
            }
            then.push(both);
        }
    }
    if worlds.iter().any(|world| world.store_failed) {
        then.push(worlds.each_ref().map(|world| match world.store_failed {
            true => act(world, &Action::Proceed),
            false => world.clone(),
        }));
    }
    for action in worlds[0].actions(scope).into_iter().filter(is_global) {
        if action == Action::Proceed {
            continue;
        }
        let both_write = worlds.iter().all(|world| world.writing.is_some());
        let alike = |other: &Action| is_alike(&action, other, both_write);
        for other in worlds[1].actions(scope).into_iter().filter(alike) {
            then.push([act(&worlds[0], &action), act(&worlds[1], &other)]);
        }
    }
    then
}

/// Returns whether two volumes can have these actions in one history. Their calls may be in any phase, independently.
fn is_alike(one: &Action, other: &Action, both_write: bool) -> bool {
    let written = |action: &Action| match action {
        Action::Crash { written, .. } | Action::Reboot { written } => *written,
        _ => false,
    };
    let same_commit = !both_write || written(one) == written(other);
    std::mem::discriminant(one) == std::mem::discriminant(other) && same_commit
}

#[test]
fn each_mutant_breaks_its_invariant() {
    let mut caught: HashMap<&str, Vec<Mutant>> = HashMap::new();
    for (mutant, invariants) in Mutant::ALL {
        let scope = Scope { mutant: Some(mutant), ..Scope::new(1) };
        let found = explore(&scope, 24, 400_000).err().unwrap_or_else(|| panic!("{mutant:?} was not caught"));
        let broken = found.violation.invariant;
        println!("{mutant:?}: {broken} ({}) after {} steps", found.violation.found, found.actions.len());
        assert!(invariants.contains(&broken), "{mutant:?}: {broken}");
        caught.entry(broken).or_default().push(mutant);
    }
    for invariant in ["I1", "I2", "I3", "I4", "I6", "I7", "I8"] {
        assert!(caught.contains_key(invariant), "nothing broke {invariant}: {caught:?}");
    }
}

/// Without the rule that a call's outcome must be known before the opposite call is sent, a late call breaks an
/// invariant. The bound of the rule is for drivers that return ABORTED while a call is running.
#[test]
fn without_quiescing_a_late_call_does_harm() {
    let mut scope = Scope::new(1);
    scope.policy.quiesce_attempts = Some(0);
    let found = explore(&scope, 24, 400_000).err().unwrap();
    assert_eq!(found.violation.invariant, "I1", "{:?}", found.actions);
    assert!(found.actions.iter().any(|action| {
        matches!(action, Action::Answer(Answer::NoneYet) | Action::Crash { call: Interrupted::Running, .. })
    }));
}
