//! The state as the node reports it and as the mount table and the files show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::driver::{Deviation, TracedDriver};
use super::model::{CONSUMERS, Model, VOLUMES};
use crate::volumes::namespace;

/// The file that identifies a volume.
pub(super) const CANARY: &str = "canary";

/// Where the targets and the staging paths are, and what the driver may do otherwise.
#[derive(Debug)]
pub(super) struct Fixture<'a> {
    pub(super) pods: &'a Path,
    pub(super) staging: &'a Path,
    pub(super) driver: &'a TracedDriver,
}

/// What a consumer is called: its targets lie by volume and consumer.
pub(super) fn consumer(volume: usize, consumer: usize) -> String {
    format!("{}-{}", VOLUMES[volume], CONSUMERS[consumer])
}

/// One line for all targets, as the model has it.
pub(super) fn expected(model: &Model) -> String {
    line(|volume, consumer| match model.held().get(&(volume, consumer)) {
        Some(true) => "ro".to_owned(),
        Some(false) => "rw".to_owned(),
        None => "-".to_owned(),
    })
}

/// The observed state, and what was found in addition that must not be there.
///
/// `holders` is what the node says, by volume id, and `ids` are the ids of the volumes.
pub(super) fn found(
    namespace: &Fixture<'_>,
    holders: &BTreeMap<String, BTreeSet<String>>,
    ids: &[String],
    model: &Model,
) -> (String, Vec<String>) {
    let table = namespace::table();
    let mut mounts = 0;
    let targets = line(|volume, number| {
        let name = consumer(volume, number);
        let target = namespace.pods.join(&name).join("mount");
        let stack = table.stack(&target);
        mounts += stack.len();
        let there = match stack.as_slice() {
            [] if fs::symlink_metadata(&target).is_ok() => "a directory is left".to_owned(),
            [] => "-".to_owned(),
            [mount] => {
                let canary =
                    fs::read_to_string(target.join(CANARY)).unwrap_or_else(|cause| cause.to_string());
                match (canary == VOLUMES[volume], mount.is_read_only()) {
                    (true, true) => "ro".to_owned(),
                    (true, false) => "rw".to_owned(),
                    (false, _) => format!("something else: {canary}"),
                }
            }
            more => format!("{} mounts on each other", more.len()),
        };
        let said = ids.get(volume).and_then(|id| holders.get(id)).is_some_and(|named| named.contains(&name));
        if said == (there != "-") { there } else { format!("{there}, and the node says {said}") }
    });

    let mut wrong = Vec::new();
    let below = |place: &Path| table.within(place).filter(|mount| mount.mount_point != place).count();
    let other = below(namespace.pods) - mounts;
    if other > 0 {
        wrong.push(format!("{other} mounts beside the targets"));
    }
    let held = (0..VOLUMES.len()).filter(|volume| model.is_held(*volume)).count();
    let staged = below(namespace.staging);
    let mounted = if namespace.driver.has(Deviation::StagesWithoutMount) { 0 } else { held };
    if staged != mounted {
        wrong.push(format!("{staged} mounts where volumes are staged, expected {mounted}"));
    }
    let directories: usize = fs::read_dir(namespace.staging)
        .into_iter()
        .flatten()
        .flatten()
        .map(|driver| fs::read_dir(driver.path()).into_iter().flatten().count())
        .sum();
    if directories != held {
        wrong.push(format!("{directories} directories for volumes to be staged in, expected {held}"));
    }
    let moving = holders.values().flatten().filter(|holder| holder.starts_with('!'));
    wrong.extend(moving.map(|holder| format!("{holder} is in transition")));
    for (volume, id) in ids.iter().enumerate() {
        if holders.contains_key(id) != model.is_held(volume) {
            let what = if model.is_held(volume) { "does not know" } else { "still manages" };
            wrong.push(format!("the node {what} volume {}", VOLUMES[volume]));
        }
    }
    (targets, wrong)
}

/// The node's answer to `holders`; one in transition has a `!`.
pub(super) fn holders(answer: &str) -> BTreeMap<String, BTreeSet<String>> {
    let volumes = answer.split(';').filter(|volume| !volume.trim().is_empty());
    volumes
        .map(|volume| {
            let mut words = volume.split_whitespace().map(ToOwned::to_owned);
            (words.next().unwrap_or_default(), words.collect())
        })
        .collect()
}

fn line(mut of: impl FnMut(usize, usize) -> String) -> String {
    let mut volumes = Vec::new();
    for (volume, name) in VOLUMES.iter().enumerate() {
        let targets: Vec<String> = (0..CONSUMERS.len()).map(|consumer| of(volume, consumer)).collect();
        volumes.push(format!("{name} [{}]", targets.join(" ")));
    }
    volumes.join(" ")
}
