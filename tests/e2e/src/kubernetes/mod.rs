//! A real control plane with stock sidecars in front of our hub, proxies and agents, and a real kubelet on one node.
//!
//! etcd, API server, controllers, scheduler, kubelet and containerd are the programs of a real cluster; the last two are not
//! started if no case needs running pods. Four nodes have two drivers each, and the first node also has a third-party driver
//! without topology. `edge-1` has the kubelet; the others are a Node and a CSINode to which pods are only bound, unless a case
//! makes the agents of some of them their volume plugin (`plugin`). One edge-csi-driver for each driver routes calls to the
//! nodes by topology; its clients are provisioner, attacher, resizer and snapshotter.

mod absence;
mod api;
mod claims;
pub(crate) mod cluster;
mod cuts;
mod deaths;
pub(crate) mod edge;
mod failover;
pub(crate) mod features;
mod group;
mod growth;
mod hub_tests;
pub(crate) mod image;
mod kills;
pub(crate) mod kubelet;
mod lease;
pub(crate) mod lifecycle;
mod many_nodes;
mod node;
pub(crate) mod objects;
mod outage;
mod own;
mod own_pods;
mod own_storm;
pub(crate) mod part;
pub(crate) mod plane;
mod plugin;
mod proxy_pod;
mod renewal;
pub(crate) mod secrets;
mod sweep;
mod vault;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use libtest_mimic::Failed;

use super::component::Part;
use super::error::E2eError;
use super::setup::Setup;
use super::{Environment, report, table};
pub(crate) use api::Api;
use cluster::{Cluster, Findings};
pub(crate) use kubelet::{CGROUP, HOST_FOLDERS};
pub(crate) use plane::{Plane, serve_api};

/// One test case: its operations on claims, and its checks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// A claim is created, attached, mounted, unmounted, detached and deleted.
    Lifecycle,
    /// The same steps on nodes without kubelet, without the mounts.
    OtherNodes,
    /// A manually written PersistentVolume.
    Static,
    /// Snapshot, restore and clone.
    Snapshot,
    /// A claim that expands under its pod.
    Expansion,
    /// A claim that expands only on its node.
    Growth,
    /// Group snapshots of several claims.
    Group,
    /// A claim that changes its VolumeAttributesClass.
    Modification,
    /// A raw block device.
    Block,
    /// A claim for a single pod.
    OnePod,
    /// Secrets specified by the class.
    Secrets,
    /// Filesystems specified by the class.
    FileSystem,
    /// The scheduler, with storage capacity of nodes.
    Capacity,
    /// All workflows with the agent's own volume plugin.
    Own,
    /// Features of pods beyond claims, with the agent's volume plugin.
    OwnPods,
    /// A node that boots while hub and API server are offline.
    Offline,
    /// The hub's own test of its Kubernetes client, with the real API server.
    HubTests,
    /// A node that renews its certificate.
    Renewal,
    /// A hub that is offline for some time.
    Hub,
    /// A claim that is deleted while its volume is created behind a cut link.
    Cut,
    /// A kill of each process that takes part in the creation of a volume.
    Deaths,
    /// A provisioner that loses its lease during a call.
    Lease,
    /// Two proxies; the active one is lost.
    Failover,
    /// Many claims, several hubs and proxies, and many kills.
    Kills,
    /// Many claims and many cuts.
    Storm,
    /// Many pods on nodes with the agent's volume plugin, and many cuts.
    OwnStorm,
    /// Many claims at once, with a driver beside the provisioner and behind the relay.
    Claims,
    /// Request size and node selection with a thousand nodes.
    ManyNodes,
}

impl Case {
    pub(crate) const ALL: [Self; 28] = [
        Self::Lifecycle,
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
        Self::Renewal,
        Self::Hub,
        Self::Cut,
        Self::Deaths,
        Self::Lease,
        Self::Failover,
        Self::Kills,
        Self::Storm,
        Self::OwnStorm,
        Self::Claims,
        Self::ManyNodes,
    ];

    /// Returns true if the case has pods that run.
    pub(crate) const fn needs_kubelet(self) -> bool {
        !matches!(
            self,
            Self::Own | Self::OwnPods | Self::OwnStorm | Self::Offline | Self::Renewal | Self::Claims
        )
    }

    fn run(self, setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
        match self {
            Self::Lifecycle => lifecycle::workflows(cluster, findings),
            Self::OtherNodes => lifecycle::other_nodes(cluster, findings),
            Self::Static => lifecycle::static_volume(cluster, findings),
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
            Self::Renewal => renewal::run(setup, cluster, findings),
            Self::Hub => absence::hub(setup, cluster, findings),
            Self::Cut => cuts::deleted_meanwhile(setup, cluster, findings),
            Self::Deaths => deaths::run(setup, cluster, findings),
            Self::Lease => lease::run(setup, cluster, findings),
            Self::Failover => failover::run(setup, cluster, findings),
            Self::Kills => kills::run(setup, cluster, findings),
            Self::Storm => cuts::storm(setup, cluster, findings),
            Self::OwnStorm => own_storm::run(setup, cluster, findings),
            Self::Claims => claims::run(setup, cluster, findings),
            Self::ManyNodes => many_nodes::run(setup, cluster, findings),
        }
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lifecycle => "kubernetes-lifecycle",
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
            Self::Renewal => "kubernetes-renewal",
            Self::Hub => "kubernetes-hub",
            Self::Cut => "kubernetes-cut",
            Self::Deaths => "kubernetes-deaths",
            Self::Lease => "kubernetes-lease",
            Self::Failover => "kubernetes-failover",
            Self::Kills => "kubernetes-kills",
            Self::Storm => "kubernetes-storm",
            Self::OwnStorm => "kubernetes-own-storm",
            Self::Claims => "kubernetes-claims",
            Self::ManyNodes => "kubernetes-many-nodes",
        })
    }
}

/// The cluster of the test cases: started for the first case, and stopped after the last.
pub(crate) struct SharedCluster {
    environment: &'static Environment,
    with_kubelet: bool,
    up: Mutex<Option<Result<(Setup<'static>, Cluster), String>>>,
}

impl SharedCluster {
    pub(crate) const fn new(environment: &'static Environment, with_kubelet: bool) -> Self {
        Self { environment, with_kubelet, up: Mutex::new(None) }
    }

    /// Runs a case, and removes all that it created.
    pub(crate) fn run(&self, case: Case) -> Result<(), Failed> {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let up = up.get_or_insert_with(|| self.set_up().map_err(|error| error.to_string()));
        let (setup, cluster) = up.as_mut().map_err(|error| format!("the cluster is not up: {error}"))?;
        let (started, mut findings) = (Instant::now(), Findings::default());
        if let Err(error) = case.run(setup, cluster, &mut findings) {
            findings.note(false, error.to_string());
            if let Err(error) = cluster.clear(&mut findings) {
                findings.note(false, error.to_string());
            }
        }
        table::found(&case.to_string(), findings.0, started.elapsed())
    }

    fn set_up(&self) -> Result<(Setup<'static>, Cluster), E2eError> {
        let started = Instant::now();
        let setup = self.environment.setup("kubernetes")?;
        for part in [Part::MockDriver, Part::Sidecars, Part::Kubernetes] {
            setup.components.build(part)?;
        }
        let cluster = Cluster::start(&setup, self.with_kubelet)?;
        let seconds = started.elapsed().as_secs_f64();
        table::say(&format!("control plane, nodes, proxies and sidecars are up after {seconds:.1} s"));
        Ok((setup, cluster))
    }

    /// Stops everything, and checks for leftovers.
    pub(crate) fn end(&self) -> Result<(), Failed> {
        let up = self.up.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Ok((setup, cluster))) = up else { return Ok(()) };
        stopped(&setup, ("kubernetes-down", "kubelet"), || cluster.stop())
    }
}

/// Stops the processes of a cluster, and checks their logs. `kubelet` is what used the sockets of the first node.
pub(crate) fn stopped(
    setup: &Setup<'_>,
    (name, kubelet): (&str, &str),
    stop: impl FnOnce() -> Result<(), E2eError>,
) -> Result<(), Failed> {
    let (started, mut findings) = (Instant::now(), Findings::default());
    let mut check = |words: &str, result: Result<(), E2eError>| match result {
        Ok(()) => findings.note(true, words),
        Err(error) => findings.note(false, error.to_string()),
    };
    check("hub, agents, proxies and drivers stop without an error", stop());
    let names = edge::Edge::logs();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    check("no secret and no panic in their logs", report::search_logs(setup.logs, &names));
    let lines = report::broken_rules(&setup.logs.join(format!("agent-{}.log", edge::NODES[0])));
    findings.note(true, format!("rules of the spec that {kubelet} and the sidecars broke: {lines:?}"));
    table::found(name, findings.0, started.elapsed())
}
