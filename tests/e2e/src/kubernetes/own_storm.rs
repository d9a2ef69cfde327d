//! Creates and deletes pods on nodes with the agent's volume plugin while every link is cut every two seconds.

use std::time::{Duration, Instant};

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{Cluster, Findings, text};
use super::edge::{DRIVERS, NODES};
use super::objects::{self, CLAIMS, PODS, VOLUMES, class_of};
use super::own::{read, write};
use super::plugin;
use crate::error::E2eError;
use crate::link_condition::LinkCondition;
use crate::offline;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// All nodes without a kubelet.
const PLACES: [&str; 3] = [NODES[1], NODES[2], NODES[3]];

/// Claims of one round, each with a pod, in a short run and in a run of minutes.
const FEW: usize = 12;
const MANY: usize = 198;

/// Time limit for all pods of a round to get their volumes, and for all to be removed.
const STORM: Duration = Duration::from_secs(420);

/// A claim, and its pod.
#[derive(Debug)]
struct Case {
    name: String,
    node: &'static str,
    uid: String,
}

/// Runs one round, or as many as fit into the configured minutes.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let length = offline::length()?;
    let cases = if length.is_zero() { FEW } else { MANY };
    plugin::with(setup, cluster, findings, &PLACES, |cluster, findings| {
        let begun = Instant::now();
        let outcome = condition(setup, cluster, LinkCondition::Cuts).and_then(|()| {
            for number in 0.. {
                round(setup, cluster, findings, number, cases)?;
                if begun.elapsed() >= length {
                    break;
                }
            }
            Ok(())
        });
        // Leftovers are removed over intact links.
        condition(setup, cluster, LinkCondition::Clean)?;
        outcome
    })
}

fn condition(setup: &Setup<'_>, cluster: &mut Cluster, condition: LinkCondition) -> Result<(), E2eError> {
    cluster.edge.nodes.iter_mut().try_for_each(|node| node.connect(setup, condition))
}

fn round(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
    number: usize,
    cases: usize,
) -> Result<(), E2eError> {
    let begun = Instant::now();
    let mut made = Vec::new();
    for (case, node) in (0..cases).zip(PLACES.into_iter().cycle()) {
        let name = format!("storm-{number}-{case}");
        let claim = objects::claim(&name, &class_of(DRIVER), "1Mi");
        cluster.make(&claim, &objects::pod(&name, node, &name, &["wait"]))?;
        let uid = cluster.uid(&name)?;
        made.push(Case { name, node, uid });
    }
    let mut last = 0;
    let all = wait::poll_every(Duration::from_millis(500), STORM, || {
        last = made.iter().filter(|case| mounts(cluster, case) == 1).count();
        (last == cases).then_some(())
    });
    let words = format!("{last} of {cases} pods have their volumes after {:.0?}", begun.elapsed());
    findings.note(all.is_some(), words);
    if all.is_none() {
        return Ok(());
    }
    let mut own = 0;
    for case in &made {
        let volume = cluster.api.read(&format!("{CLAIMS}/{}", case.name))?.unwrap_or_default();
        let volume = text(&volume["spec"]["volumeName"]);
        if let Some(node) = cluster.edge.node(case.node) {
            let file = node.mounted(&node.place_of(&case.uid, &volume, false))?.place.join("file");
            write(&file, &case.name)?;
            own += usize::from(read(&file, &case.name)? == case.name);
        }
    }
    findings.note(own == cases, format!("{own} of {cases} pods have written to their volumes"));
    let volumes: Vec<usize> = PLACES.iter().map(|name| volumes(cluster, name)).collect();
    findings.same("volumes on the nodes", &json!(volumes), &json!(vec![cases / PLACES.len(); PLACES.len()]));
    let times: Vec<usize> = made.iter().map(|case| published(setup, case)).collect();
    findings.note(times.iter().all(|times| *times == 1), format!("how often each was mounted: {times:?}"));

    // Half of the pods complete, the others are deleted; their claims are deleted with them.
    let begun = Instant::now();
    for (number, case) in made.iter().enumerate() {
        let path = format!("{PODS}/{}", case.name);
        if number % 2 == 0 {
            cluster.api.merge(&format!("{path}/status"), &json!({"status": {"phase": "Succeeded"}}))?;
        } else {
            cluster.api.delete(&format!("{path}?gracePeriodSeconds=0"))?;
        }
        cluster.api.delete(&format!("{CLAIMS}/{}", case.name))?;
    }
    let remaining = |cluster: &Cluster| {
        let there =
            |case: &&Case| cluster.edge.node(case.node).is_some_and(|node| node.pod(&case.uid).exists());
        made.iter().filter(there).count()
    };
    let removed = wait::poll_every(Duration::from_millis(500), STORM, || {
        last = remaining(cluster);
        (last == 0).then_some(())
    });
    let words = format!("{last} pods' directories left {:.0?} after they ended", begun.elapsed());
    findings.note(removed.is_some(), words);
    for case in made.iter().step_by(2) {
        cluster.api.delete(&format!("{PODS}/{}?gracePeriodSeconds=0", case.name))?;
    }
    let forgotten = wait::poll_every(Duration::from_millis(500), STORM, || {
        last = cluster.api.list(VOLUMES).as_deref().map_or(usize::MAX, <[Value]>::len);
        (last == 0).then_some(())
    });
    let words =
        format!("{last} PersistentVolumes left {:.0?} after their claims were deleted", begun.elapsed());
    findings.note(forgotten.is_some(), words);
    let volumes: Vec<usize> = PLACES.iter().map(|name| self::volumes(cluster, name)).collect();
    findings.same("volumes left with the drivers", &json!(volumes), &json!(vec![0; PLACES.len()]));
    Ok(())
}

/// Counts the mounts of a pod.
fn mounts(cluster: &Cluster, case: &Case) -> usize {
    let Some(node) = cluster.edge.node(case.node) else { return 0 };
    let below = node.pod(&case.uid);
    node.mounts().iter().filter(|mount| mount.place.starts_with(&below)).count()
}

fn volumes(cluster: &Cluster, node: &str) -> usize {
    cluster.edge.node(node).map_or(0, |node| node.volumes(DRIVER))
}

/// Counts the log messages about a published volume of a pod.
fn published(setup: &Setup<'_>, case: &Case) -> usize {
    let log = setup.logs.join(format!("agent-{}.log", case.node));
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.matches(&format!("published for {}/", case.uid)).count()
}
