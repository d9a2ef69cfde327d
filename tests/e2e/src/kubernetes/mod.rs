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
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use libtest_mimic::Failed;

use super::component::Part;
use super::error::RealError;
use super::setup::Setup;
use super::{Place, report, table};
pub(crate) use api::Api;
use cluster::{Cluster, Findings};
pub(crate) use kubelet::{CGROUP, HOST_FOLDERS};
pub(crate) use plane::Plane;

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
    pub(crate) const ALL: [Self; 24] = [
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

    /// Whether it has pods that run.
    pub(crate) const fn needs_kubelet(self) -> bool {
        !matches!(self, Self::Own | Self::OwnPods | Self::OwnStorm | Self::Offline)
    }

    fn run(self, setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), RealError> {
        match self {
            Self::Life => life::workflows(cluster, findings),
            Self::OtherNodes => life::other_nodes(cluster, findings),
            Self::Static => life::static_volume(cluster, findings),
            Self::Snapshot => features::snapshot(cluster, findings),
            Self::Expansion => features::expansion(cluster, findings),
            Self::Growth => growth::run(setup, cluster, findings),
            Self::Group => group::run(cluster, findings),
            Self::Modification => features::modification(cluster, findings),
            Self::Block => features::block(cluster, findings),
            Self::OnePod => features::one_pod(cluster, findings),
            Self::Secrets => secrets::run(setup, cluster, findings),
            Self::FileSystem => features::filesystem(cluster, findings),
            Self::Capacity => absence::capacity(setup, cluster, findings),
            Self::Own => own::workflows(setup, cluster, findings),
            Self::OwnPods => own_pods::run(setup, cluster, findings),
            Self::Offline => outage::offline(setup, cluster, findings),
            Self::HubTests => hub_tests::run(setup, cluster, findings),
            Self::Hub => absence::hub(setup, cluster, findings),
            Self::Cut => cuts::deleted_meanwhile(setup, cluster, findings),
            Self::Deaths => deaths::run(setup, cluster, findings),
            Self::Lease => lease::run(setup, cluster, findings),
            Self::Storm => cuts::storm(setup, cluster, findings),
            Self::OwnStorm => own_storm::run(setup, cluster, findings),
            Self::Crowd => crowd::run(setup, cluster, findings),
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

/// Where the scenes are played: everything is brought up for the first one, and taken down after the last.
pub(crate) struct Stage {
    place: &'static Place,
    with_kubelet: bool,
    up: Mutex<Option<Result<(Setup<'static>, Cluster), String>>>,
}

impl Stage {
    pub(crate) const fn new(place: &'static Place, with_kubelet: bool) -> Self {
        Self { place, with_kubelet, up: Mutex::new(None) }
    }

    /// Plays one, and leaves nothing of it for the next one.
    pub(crate) fn play(&self, scene: Scene) -> Result<(), Failed> {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let up = up.get_or_insert_with(|| self.set_up().map_err(|error| error.to_string()));
        let (setup, cluster) = up.as_mut().map_err(|error| format!("the cluster is not up: {error}"))?;
        let (started, mut findings) = (Instant::now(), Findings::default());
        if let Err(error) = scene.run(setup, cluster, &mut findings) {
            findings.note(false, error.to_string());
            if let Err(error) = cluster.clear(&mut findings) {
                findings.note(false, error.to_string());
            }
        }
        table::found(&scene.to_string(), findings.0, started.elapsed())
    }

    fn set_up(&self) -> Result<(Setup<'static>, Cluster), RealError> {
        let started = Instant::now();
        let components = self.place.components()?;
        for part in [Part::MockDriver, Part::Sidecars, Part::Kubernetes] {
            components.build(part)?;
        }
        let (scratch, logs) = self.place.folders("kubernetes")?;
        let certificates = &self.place.certificates;
        let (scratch, logs) = (Box::leak(scratch.into_boxed_path()), Box::leak(logs.into_boxed_path()));
        let setup = Setup { components, certificates, scratch, logs };
        let cluster = Cluster::start(&setup, self.with_kubelet)?;
        let seconds = started.elapsed().as_secs_f64();
        table::say(&format!("control plane, nodes, proxies and sidecars are up after {seconds:.1} s"));
        Ok((setup, cluster))
    }

    /// Stops everything, and looks at what it leaves.
    pub(crate) fn end(&self) -> Result<(), Failed> {
        let up = self.up.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Ok((setup, cluster))) = up else { return Ok(()) };
        let (started, mut findings) = (Instant::now(), Findings::default());
        let mut check = |words: &str, result: Result<(), RealError>| match result {
            Ok(()) => findings.note(true, words),
            Err(error) => findings.note(false, error.to_string()),
        };
        check("hub, agents, proxies and drivers stop in good order", cluster.stop());
        let names = edge::Edge::logs();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check("no secret and no panic in their logs", report::search_logs(setup.logs, &names));
        let lines = report::broken_rules(&setup.logs.join(format!("agent-{}.log", edge::NODES[0])));
        findings.note(true, format!("rules of the spec that kubelet and the sidecars broke: {lines:?}"));
        table::found("kubernetes-down", findings.0, started.elapsed())
    }
}
