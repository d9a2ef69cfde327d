//! The state as the node reports it and as the mount table and the files show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::driver::{Deviation, TracedDriver};
use super::model::{CONSUMERS, Model, VOLUMES};
use crate::volumes::namespace;

/// The file that identifies a volume.
pub(super) const CANARY: &str = "canary";

/// The directories of the targets and of the staging paths, and the driver with its deviations.
#[derive(Debug)]
pub(super) struct Fixture<'a> {
    pub(super) pods: &'a Path,
    pub(super) staging: &'a Path,
    pub(super) driver: &'a TracedDriver,
}

/// Returns the id of a consumer. The id contains the volume, since each pair has its own target.
pub(super) fn consumer(volume: usize, consumer: usize) -> String {
    format!("{}-{}", VOLUMES[volume], CONSUMERS[consumer])
}

/// Returns the state of all targets in the model, in one line.
pub(super) fn expected(model: &Model) -> String {
    line(|volume, consumer| match model.held().get(&(volume, consumer)) {
        Some(true) => "ro".to_owned(),
        Some(false) => "rw".to_owned(),
        None => "-".to_owned(),
    })
}

/// Returns the observed state of all targets in one line, and every other difference from the model.
///
/// `holders` are the consumers that the node reports, by volume id. `ids` are the ids of [`VOLUMES`].
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
        let reported =
            ids.get(volume).and_then(|id| holders.get(id)).is_some_and(|named| named.contains(&name));
        if reported == (there != "-") { there } else { format!("{there}, but the node reports {reported}") }
    });

    let mut wrong = Vec::new();
    let below = |place: &Path| table.within(place).filter(|mount| mount.mount_point != place).count();
    let other = below(namespace.pods) - mounts;
    if other > 0 {
        wrong.push(format!("{other} mounts outside the targets, expected none"));
    }
    let held = (0..VOLUMES.len()).filter(|volume| model.is_held(*volume)).count();
    let staged = below(namespace.staging);
    let mounted = if namespace.driver.has(Deviation::StagesWithoutMount) { 0 } else { held };
    if staged != mounted {
        wrong.push(format!("{staged} mounts at staging paths, expected {mounted}"));
    }
    let directories: usize = fs::read_dir(namespace.staging)
        .into_iter()
        .flatten()
        .flatten()
        .map(|driver| fs::read_dir(driver.path()).into_iter().flatten().count())
        .sum();
    if directories != held {
        wrong.push(format!("{directories} staging directories, expected {held}"));
    }
    let moving = holders.values().flatten().filter(|holder| holder.starts_with('!'));
    wrong.extend(moving.map(|holder| format!("{holder} is in transition")));
    for (volume, id) in ids.iter().enumerate() {
        if holders.contains_key(id) != model.is_held(volume) {
            let what = if model.is_held(volume) { "does not manage" } else { "still manages" };
            wrong.push(format!("the node {what} volume {}", VOLUMES[volume]));
        }
    }
    (targets, wrong)
}

/// Parses the node's answer to `holders`. A consumer in transition begins with `!`.
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
