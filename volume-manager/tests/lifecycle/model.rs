//! The model check: every interleaving of what may happen to a volume, breadth first, to a stated depth.
//!
//! Two volumes share nothing in the machine: a step takes one volume and answers one. What they share outside is a
//! process, a boot and a driver, which end for both at once, and a store, which takes the records of both in one commit or
//! of neither. So one volume alone, to which these can happen at any time, goes through every state that it can go through
//! beside another, and every invariant here is one of one volume: the check of one volume with two consumers is that of
//! two. `two_volumes_that_share_a_store...` is no check of anything in the machine beyond that: it is one of this
//! reasoning, to a small depth. What `node` makes of many volumes, such as their turns at a driver, is not modelled.
//!
//! States are told apart by a 64-bit hash: among ten million the odds that any two are mixed up are about 1 to 400,000.

use std::collections::HashMap;
use std::collections::HashSet;
use std::hash::{Hash, Hasher};

use volume_manager::lifecycle::{Attach, DriverCapabilities};

use crate::actions::{Action, Answer, Interrupted, Scope};
use crate::mutants::Mutant;
use crate::world::{Violation, World};

/// What an exploration found out.
#[derive(Debug)]
pub(crate) struct Explored {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    /// Steps from the beginning; less than asked for if there are no more states.
    pub(crate) depth: usize,
    /// Nothing is left to explore.
    pub(crate) complete: bool,
}

/// How an invariant was broken.
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

/// A hash that is quick without optimization: SplitMix64 over words.
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

/// Lets everything go well from here, and checks that this ends where it should. States that are known to are in `good`.
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

/// Explores from the beginning to a depth, or to `most` states.
pub(crate) fn explore(scope: &Scope, depth: usize, most: usize) -> Result<Explored, Box<Counterexample>> {
    let first = World::new(scope);
    let mut seen = HashSet::from([fingerprint(&first)]);
    let mut good = HashSet::new();
    // For each state: the one it was reached from, and how.
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

/// The depth to explore to: the default, or what the environment asks for beyond it, such as for a nightly run.
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

/// Anchors (f) 1: a crash or a reboot may come before and after every effect, with and without its record on disk.
#[test]
fn one_volume_with_two_consumers_keeps_every_invariant_under_every_interleaving() {
    passes("stage, two consumers", &Scope::new(2), 10);
}

#[test]
fn one_consumer_keeps_every_invariant_to_the_last_reachable_state() {
    let explored = passes("stage, one consumer", &Scope::new(1), 60);
    assert!(explored.complete);
}

/// Anchors (f) 1: attach and detach as well.
#[test]
fn a_volume_that_is_attached_here_keeps_every_invariant() {
    let scope = Scope { attach: Attach::Here, capabilities: ATTACH, ..Scope::new(1) };
    passes("attach and stage, one consumer", &scope, 14);
}

/// Whoever takes an attach away can make the repetition of a call illegal, so there are no late ends here.
#[test]
fn a_volume_whose_attach_is_awaited_keeps_every_invariant() {
    let scope = Scope { attach: Attach::Awaited, late_ends: false, ..Scope::new(1) };
    passes("awaited attach, one consumer", &scope, 11);
}

/// Whoever unmounts a staging can make the repetition of a publish illegal, so there are no late ends here.
#[test]
fn a_volume_that_others_meddle_with_is_healed() {
    let scope = Scope { meddling: true, late_ends: false, ..Scope::new(2) };
    passes("meddling, two consumers", &scope, 8);
}

/// Anchors (f) 21, 22: a crash may come between the halves of an expansion, and during a republish.
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

/// A controller that is not there keeps no volume from its consumers, and none of them in it.
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

/// What the driver was never asked for is not asked to be undone, and what is owed stays owed.
#[test]
fn calls_that_were_never_sent_keep_every_invariant() {
    let scope = Scope { not_sent: true, lies: false, ..Scope::new(1) };
    passes("never sent, one consumer", &scope, 12);
    let scope = Scope { attach: Attach::Here, capabilities: ATTACH, ..scope };
    passes("never sent, attach, one consumer", &scope, 12);
}

/// A driver may lose and gain what it can do with each generation. What was made is taken down in the legal order.
#[test]
fn capabilities_that_change_with_a_generation_leave_nothing_behind() {
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

/// What happens to both volumes at once.
fn is_global(action: &Action) -> bool {
    matches!(
        action,
        Action::Crash { .. } | Action::Reboot { .. } | Action::NewGeneration { .. } | Action::Proceed
    )
}

/// Anchors (f) 1: two volumes with two consumers each, which share the process, the boot, the driver and the store: a
/// commit takes what both have to write, and fails for both.
#[test]
fn two_volumes_that_share_a_store_and_a_driver_keep_every_invariant() {
    let scope = Scope::new(2);
    let first = [World::new(&scope), World::new(&scope)];
    let (mut seen, mut frontier) = (HashSet::from([fingerprint(&first)]), vec![first]);
    let mut transitions = 0;
    // One step more is four times as many states, each of two volumes: 8 is what fits a small machine's memory.
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

/// Whether two volumes can have gone through the same with these. Their calls may be anywhere, each on its own.
fn is_alike(one: &Action, other: &Action, both_write: bool) -> bool {
    let written = |action: &Action| match action {
        Action::Crash { written, .. } | Action::Reboot { written } => *written,
        _ => false,
    };
    let same_commit = !both_write || written(one) == written(other);
    std::mem::discriminant(one) == std::mem::discriminant(other) && same_commit
}

#[test]
fn each_way_to_break_the_machine_breaks_the_invariant_that_it_should() {
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

/// Anchors (f) 4: without the rule that a call's end has to be known before its opposite is sent, the late end of an old
/// one does harm. The bound that gives the rule up is for drivers that say ABORTED while they are at it.
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
