//! A real control plane with stock sidecars before our hub, proxies and agents, and a real kubelet on one node.
//!
//! etcd, API server, controllers, scheduler, kubelet and containerd are what a cluster has, in its own programs; the last two are
//! left out if no scene has pods that run. Four nodes have two drivers each, and the first one a third, of others, that names no
//! topology. `edge-1` has the kubelet; the others are a Node and a CSINode, where pods are only ever bound, until a scene makes the
//! agents of some of them their volume plugin (`plugin`). One edge-csi-driver for each driver chooses among them by topology, before
//! provisioner, attacher, resizer and snapshotter.

mod absence;
mod api;
mod cluster;
mod crowd;
mod cuts;
mod deaths;
mod edge;
mod features;
mod group;
mod growth;
mod hub_tests;
mod image;
mod kubelet;
mod lease;
mod life;
mod node;
mod objects;
mod outage;
mod own;
mod own_pods;
mod own_storm;
mod part;
mod plane;
mod plugin;
mod secrets;
mod vault;

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::certificates::Certificates;
use super::component::Components;
use super::error::RealError;
use super::report;
use super::table::{self, Fact, Row};
use cluster::{Cluster, Findings};
pub(crate) use kubelet::{CGROUP, HOST_FOLDERS};

/// What all of this stands on.
#[derive(Debug)]
pub(crate) struct Ground<'a> {
    pub(crate) components: &'a Components,
    pub(crate) certificates: &'a Certificates,
    pub(crate) scratch: &'a Path,
    pub(crate) logs: &'a Path,
    /// How long the edge is to be off at least.
    pub(crate) offline: Duration,
}

/// One leg: what is done with claims, and what is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scene {
    /// Made, attached, mounted, unmounted, detached, deleted.
    Life,
    /// The same on nodes without kubelet, as far as it goes.
    OtherNodes,
    /// A PersistentVolume that a person wrote.
    Static,
    /// Snapshot, restore and clone.
    Snapshot,
    /// A claim that grows under its pod.
    Expansion,
    /// A claim that grows on its node alone.
    Growth,
    /// Snapshots of several claims at once.
    Group,
    /// A claim that changes its class of attributes.
    Modification,
    /// A raw block device.
    Block,
    /// A claim for one pod.
    OnePod,
    /// Secrets by the class.
    Secrets,
    /// Filesystems by the class.
    FileSystem,
    /// The scheduler, told of room on nodes.
    Capacity,
    /// All workflows with the agent's own volume plugin.
    Own,
    /// What a pod can ask for beyond a claim, there.
    OwnPods,
    /// A node with that boots while hub and API server are away.
    Offline,
    /// The tests of the hub alone.
    HubTests,
    /// No hub for some time.
    Hub,
    /// A claim that is deleted while its volume is made behind a cut.
    Cut,
    /// Each who has a hand in the making of a volume dies meanwhile.
    Deaths,
    /// A provisioner loses its lease meanwhile.
    Lease,
    /// Many claims and many cuts.
    Storm,
    /// Many pods of such nodes, and many cuts.
    OwnStorm,
    /// A thousand nodes.
    Crowd,
}

impl Scene {
    const ALL: [Self; 24] = [
        Self::Life,
        Self::OtherNodes,
        Self::Static,
        Self::Snapshot,
        Self::Expansion,
        Self::Growth,
        Self::Group,
        Self::Modification,
        Self::Block,
        Self::OnePod,
        Self::Secrets,
        Self::FileSystem,
        Self::Capacity,
        Self::Own,
        Self::OwnPods,
        Self::Offline,
        Self::HubTests,
        Self::Hub,
        Self::Cut,
        Self::Deaths,
        Self::Lease,
        Self::Storm,
        Self::OwnStorm,
        Self::Crowd,
    ];

    /// The scenes whose name contains `text`.
    pub(crate) fn matching(text: Option<&str>) -> Vec<Self> {
        let named = |scene: &Self| text.is_none_or(|text| scene.to_string().contains(text));
        Self::ALL.into_iter().filter(named).collect()
    }

    pub(crate) fn names() -> String {
        Self::ALL.map(|scene| scene.to_string()).join(", ")
    }

    /// Whether it has pods that run.
    pub(crate) const fn needs_kubelet(self) -> bool {
        !matches!(self, Self::Own | Self::OwnPods | Self::OwnStorm | Self::Offline)
    }

    fn run(
        self,
        ground: &Ground<'_>,
        cluster: &mut Cluster,
        findings: &mut Findings,
    ) -> Result<(), RealError> {
        match self {
            Self::Life => life::workflows(cluster, findings),
            Self::OtherNodes => life::other_nodes(cluster, findings),
            Self::Static => life::static_volume(cluster, findings),
            Self::Snapshot => features::snapshot(cluster, findings),
            Self::Expansion => features::expansion(cluster, findings),
            Self::Growth => growth::run(ground, cluster, findings),
            Self::Group => group::run(cluster, findings),
            Self::Modification => features::modification(cluster, findings),
            Self::Block => features::block(cluster, findings),
            Self::OnePod => features::one_pod(cluster, findings),
            Self::Secrets => secrets::run(ground, cluster, findings),
            Self::FileSystem => features::filesystem(cluster, findings),
            Self::Capacity => absence::capacity(ground, cluster, findings),
            Self::Own => own::workflows(ground, cluster, findings),
            Self::OwnPods => own_pods::run(ground, cluster, findings),
            Self::Offline => outage::offline(ground, cluster, findings),
            Self::HubTests => hub_tests::run(ground, cluster, findings),
            Self::Hub => absence::hub(ground, cluster, findings),
            Self::Cut => cuts::deleted_meanwhile(ground, cluster, findings),
            Self::Deaths => deaths::run(ground, cluster, findings),
            Self::Lease => lease::run(ground, cluster, findings),
            Self::Storm => cuts::storm(ground, cluster, findings),
            Self::OwnStorm => own_storm::run(ground, cluster, findings),
            Self::Crowd => crowd::run(ground, cluster, findings),
        }
    }
}

impl fmt::Display for Scene {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Life => "kubernetes-life",
            Self::OtherNodes => "kubernetes-nodes",
            Self::Static => "kubernetes-static",
            Self::Snapshot => "kubernetes-snapshot",
            Self::Expansion => "kubernetes-expansion",
            Self::Growth => "kubernetes-growth",
            Self::Group => "kubernetes-group",
            Self::Modification => "kubernetes-modify",
            Self::Block => "kubernetes-block",
            Self::OnePod => "kubernetes-rwop",
            Self::Secrets => "kubernetes-secrets",
            Self::FileSystem => "kubernetes-fstype",
            Self::Capacity => "kubernetes-capacity",
            Self::Own => "kubernetes-own",
            Self::OwnPods => "kubernetes-own-pods",
            Self::Offline => "kubernetes-offline",
            Self::HubTests => "kubernetes-watch",
            Self::Hub => "kubernetes-hub",
            Self::Cut => "kubernetes-cut",
            Self::Deaths => "kubernetes-deaths",
            Self::Lease => "kubernetes-lease",
            Self::Storm => "kubernetes-storm",
            Self::OwnStorm => "kubernetes-own-storm",
            Self::Crowd => "kubernetes-crowd",
        })
    }
}

impl Ground<'_> {
    /// A folder of one part, made.
    fn folder(&self, name: &str) -> Result<PathBuf, RealError> {
        let path = self.scratch.join(name);
        std::fs::create_dir_all(&path).map_err(|cause| RealError::Folder { path: path.clone(), cause })?;
        Ok(path)
    }
}

/// Brings everything up, plays the scenes, and takes everything down; a row for each.
pub(crate) fn run(scenes: &[Scene], ground: &Ground<'_>) -> Vec<Row> {
    let mut rows = Vec::new();
    let mut add = |row: Row| {
        table::say(&row.line());
        rows.push(row);
    };
    let started = Instant::now();
    match Cluster::start(ground, scenes.iter().any(|scene| scene.needs_kubelet())) {
        Err(error) => add(Row::broken("kubernetes-up".to_owned(), &error, started.elapsed())),
        Ok(mut cluster) => {
            let fact =
                Fact { words: "control plane, nodes, proxies and sidecars are up".to_owned(), right: true };
            add(Row::of_errand("kubernetes-up".to_owned(), vec![fact], started.elapsed()));
            for scene in scenes {
                add(play(*scene, ground, &mut cluster));
            }
            let started = Instant::now();
            let facts = end(cluster, ground);
            add(Row::of_errand("kubernetes-down".to_owned(), facts, started.elapsed()));
        }
    }
    rows
}

fn play(scene: Scene, ground: &Ground<'_>, cluster: &mut Cluster) -> Row {
    let (started, mut findings) = (Instant::now(), Findings::default());
    if let Err(error) = scene.run(ground, cluster, &mut findings) {
        findings.note(false, error.to_string());
        // What is left must not be in the way of the next one.
        if let Err(error) = cluster.clear(&mut findings) {
            findings.note(false, error.to_string());
        }
    }
    Row::of_errand(scene.to_string(), findings.0, started.elapsed())
}

/// Stops everything, and looks at what it leaves.
fn end(cluster: Cluster, ground: &Ground<'_>) -> Vec<Fact> {
    let mut findings = Findings::default();
    let mut check = |words: &str, result: Result<(), RealError>| match result {
        Ok(()) => findings.note(true, words),
        Err(error) => findings.note(false, error.to_string()),
    };
    check("hub, agents, proxies and drivers stop in good order", cluster.stop());
    let names = edge::Edge::logs();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check("no secret and no panic in their logs", report::search_logs(ground.logs, &names));
    let lines = report::broken_rules(&ground.logs.join(format!("agent-{}.log", edge::NODES[0])));
    findings.note(true, format!("rules of the spec that kubelet and the sidecars broke: {lines:?}"));
    findings.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scene_is_chosen_by_a_part_of_its_name() {
        assert_eq!(Scene::matching(Some("kubernetes-block")), [Scene::Block]);
        assert_eq!(Scene::matching(None), Scene::ALL);
        assert_eq!(Scene::matching(Some("block-quic")), []);
    }
}
