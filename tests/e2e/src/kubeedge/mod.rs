//! A real KubeEdge: cloudcore and edgecore with containerd, in place of kubelet on the first node of the tests with Kubernetes.
//!
//! Control plane, sidecars, hub, proxies, agents and drivers are those of `kubernetes`. edged, the kubelet in edgecore, registers
//! the drivers on the sockets that the agent puts in front of them. Several cases are those of `kubernetes` without a change;
//! the others are about what differs: a cloud that is away, and edgecore that starts again.

mod away;
mod cloudcore;
mod cluster;
mod csi_node;
mod csidriver;
mod edgecore;
mod expansion;
mod guide;
mod idle;
mod messages;
mod network;
mod pods;
mod restart;
mod settings;
mod steps;
mod two_nodes;

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use libtest_mimic::Failed;

use super::component::{Components, Part};
use super::error::E2eError;
use super::kubernetes::cluster::Findings;
use super::kubernetes::{features, lifecycle, secrets, stopped};
use super::setup::Setup;
use super::{Environment, table};
use cluster::KubeEdge;
pub(crate) use edgecore::FOLDERS as HOST_FOLDERS;
pub(crate) use guide::FOLDERS as GUIDE_FOLDERS;

/// One test case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Case {
    /// A claim is created, attached, mounted, unmounted, detached and deleted.
    Lifecycle,
    /// A raw block device.
    Block,
    /// Snapshot, restore and clone.
    Snapshot,
    /// Secrets that the class specifies.
    Secrets,
    /// Filesystems that the class specifies.
    FileSystem,
    /// A claim for a single pod.
    OnePod,
    /// A claim that changes its VolumeAttributesClass.
    Modification,
    /// A claim that expands under its pod.
    Expansion,
    /// cloudcore is killed, and comes back.
    CloudAway,
    /// edgecore is restarted.
    Restart,
    /// edgecore is restarted while cloudcore is away.
    RestartAway,
    /// edgecore is restarted with and without cloudcore, and the agent keeps the volumes of running pods published.
    RestartKept,
    /// Settings of CSIDriver objects.
    Settings,
    /// The guide's page on KubeEdge.
    Guide,
    /// A second node.
    TwoNodes,
    /// KubeEdge's own csidriver.
    CsiDriver,
    /// Calls over the messages of KubeEdge.
    Messages,
    /// The connection of edgecore while nothing happens.
    Idle,
}

impl Case {
    pub(crate) const ALL: [Self; 18] = [
        Self::Lifecycle,
        Self::Block,
        Self::Snapshot,
        Self::Secrets,
        Self::FileSystem,
        Self::OnePod,
        Self::Modification,
        Self::Expansion,
        Self::CloudAway,
        Self::Restart,
        Self::RestartAway,
        Self::RestartKept,
        Self::Settings,
        Self::Guide,
        Self::TwoNodes,
        Self::CsiDriver,
        Self::Messages,
        Self::Idle,
    ];

    fn run(
        self,
        setup: &Setup<'_>,
        kubeedge: &mut KubeEdge,
        findings: &mut Findings,
    ) -> Result<(), E2eError> {
        let cluster = &mut kubeedge.cluster;
        match self {
            Self::Lifecycle => lifecycle::workflows(cluster, findings)?,
            Self::Block => features::block(cluster, findings)?,
            Self::Snapshot => features::snapshot(cluster, findings)?,
            Self::Secrets => secrets::run(setup, cluster, findings)?,
            Self::FileSystem => features::filesystem(cluster, findings)?,
            Self::OnePod => features::one_pod(cluster, findings)?,
            Self::Modification => features::modification(cluster, findings)?,
            Self::Expansion => expansion::run(setup, kubeedge, findings)?,
            Self::CloudAway => away::run(setup, kubeedge, findings)?,
            Self::Restart => restart::with_cloud(setup, kubeedge, findings)?,
            Self::RestartAway => restart::without_cloud(setup, kubeedge, findings)?,
            Self::RestartKept => restart::kept(setup, kubeedge, findings)?,
            Self::Settings => settings::run(setup, kubeedge, findings)?,
            Self::Guide => guide::run(setup, kubeedge, findings)?,
            Self::TwoNodes => two_nodes::run(setup, kubeedge, findings)?,
            Self::CsiDriver => csidriver::run(setup, kubeedge, findings)?,
            Self::Messages => messages::run(setup, kubeedge, findings)?,
            Self::Idle => idle::run(setup, kubeedge, findings)?,
        }
        pods::nothing_is_left(findings);
        Ok(())
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Lifecycle => "kubeedge-lifecycle",
            Self::Block => "kubeedge-block",
            Self::Snapshot => "kubeedge-snapshot",
            Self::Secrets => "kubeedge-secrets",
            Self::FileSystem => "kubeedge-fstype",
            Self::OnePod => "kubeedge-rwop",
            Self::Modification => "kubeedge-modify",
            Self::Expansion => "kubeedge-expansion",
            Self::CloudAway => "kubeedge-cloud-away",
            Self::Restart => "kubeedge-restart",
            Self::RestartAway => "kubeedge-restart-away",
            Self::RestartKept => "kubeedge-restart-kept",
            Self::Settings => "kubeedge-settings",
            Self::Guide => "kubeedge-guide",
            Self::TwoNodes => "kubeedge-two-nodes",
            Self::CsiDriver => "kubeedge-csidriver",
            Self::Messages => "kubeedge-messages",
            Self::Idle => "kubeedge-idle",
        })
    }
}

/// Builds everything that the cases need.
pub(crate) fn build(components: &Components) -> Result<(), E2eError> {
    let parts = [Part::MockDriver, Part::Sidecars, Part::Kubernetes, Part::KubeEdge];
    parts.into_iter().try_for_each(|part| components.build(part))
}

/// The cluster of the cases: started for the first case, and stopped after the last.
pub(crate) struct Shared {
    environment: &'static Environment,
    up: Mutex<Option<Result<(Setup<'static>, KubeEdge), String>>>,
}

impl Shared {
    pub(crate) const fn new(environment: &'static Environment) -> Self {
        Self { environment, up: Mutex::new(None) }
    }

    /// Runs a case, and removes all that it created.
    pub(crate) fn run(&self, case: Case) -> Result<(), Failed> {
        let mut up = self.up.lock().unwrap_or_else(PoisonError::into_inner);
        let up = up.get_or_insert_with(|| self.set_up().map_err(|error| error.to_string()));
        let (setup, kubeedge) = up.as_mut().map_err(|error| format!("the cluster is not up: {error}"))?;
        let (started, mut findings) = (Instant::now(), Findings::default());
        if let Err(error) = case.run(setup, kubeedge, &mut findings) {
            findings.note(false, error.to_string());
            // The next case needs both, and these errors matter less than the first one.
            let _ = kubeedge.cloudcore.restart(setup);
            if let Err(error) = kubeedge.cluster.clear(&mut findings) {
                findings.note(false, error.to_string());
            }
        }
        table::found(&case.to_string(), findings.0, started.elapsed())
    }

    fn set_up(&self) -> Result<(Setup<'static>, KubeEdge), E2eError> {
        // The process outside of the namespaces has built the Go programs.
        let setup = self.environment.setup("kubeedge")?;
        let kubeedge = KubeEdge::start(&setup)?;
        Ok((setup, kubeedge))
    }

    /// Stops everything, and checks for leftovers.
    pub(crate) fn end(&self) -> Result<(), Failed> {
        let up = self.up.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(Ok((setup, kubeedge))) = up else { return Ok(()) };
        stopped(&setup, ("kubeedge-down", "edged"), || kubeedge.stop())
    }
}
