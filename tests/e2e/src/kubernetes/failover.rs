//! Two proxies of a driver, each with its sidecars: the active one is lost in three ways, then both are replaced.

use std::fmt;
use std::time::Instant;

use edge_csi_tests::callers::{Callers, pair};
use edge_csi_tests::csi;
use serde_json::json;
use tokio::runtime::Runtime;

use super::cluster::{Cluster, Findings};
use super::cuts::SELECTED_NODE;
use super::edge::{DRIVERS, NODES, STRICT, Victim};
use super::node::MADE;
use super::objects::{self, CLAIMS, class_of, topology_key};
use super::proxy_pod::{ProxyPod, Served, define, lease_of};
use super::sweep;
use crate::error::E2eError;
use crate::setup::Setup;

const DRIVER: &str = DRIVERS[0];

/// The node of the volumes.
const NODE: &str = NODES[1];

/// The callers during the replacement of both proxies.
const CALLERS: usize = 64;

/// How the active pod is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// Its processes are killed.
    Killed,
    /// Nothing on its node runs: connections stay open, and nothing answers on them.
    Node,
    /// Its processes run, and nothing reaches them any more.
    Network,
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Killed => "is killed",
            Self::Node => "loses its node",
            Self::Network => "loses its network",
        })
    }
}

/// Loses the active pod in each way, and checks that the other one creates volumes, each once.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    define(setup, &cluster.plane)?;
    cluster.edge.end_provisioner();
    cluster.edge.kill(Victim::Proxy, NODE);
    let outcome = with_two(setup, cluster, findings);
    // Also after a failure: deleting a remaining claim needs a provisioner.
    cluster.edge.restore(setup, Victim::Proxy, NODE)?;
    cluster.edge.provision_with(setup, &cluster.plane, &[STRICT])?;
    cluster.edge.renew_sidecars(setup)?;
    cluster.api.delete(&lease_of(DRIVER))?;
    outcome.and_then(|()| cluster.clear(findings))
}

fn with_two(setup: &Setup<'_>, cluster: &Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let served = Served { driver: DRIVER, nodes: &NODES, hubs: &[cluster.edge.hub_port] };
    let mut active = ProxyPod::start(setup, &cluster.plane, "first", served)?;
    active.until_active()?;
    let mut standby = ProxyPod::start(setup, &cluster.plane, "second", served)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.map_err(|cause| E2eError::Runtime { cause })?;
    for loss in [Loss::Killed, Loss::Node, Loss::Network] {
        lost(setup, cluster, findings, &runtime, loss, (&mut active, &standby))?;
        active.restart(setup)?;
        std::mem::swap(&mut active, &mut standby);
    }
    sweep::run(setup, cluster, findings, &runtime, (DRIVER, NODE, &active.socket))?;
    replaced(setup, findings, &runtime, [&mut active, &mut standby])
}

/// Replaces both proxies, the active one first, under calls. No call gets a final error, and nothing is made twice.
fn replaced(
    setup: &Setup<'_>,
    findings: &mut Findings,
    runtime: &Runtime,
    pods: [&mut ProxyPod; 2],
) -> Result<(), E2eError> {
    let before = made(setup);
    let callers = {
        let _guard = runtime.enter();
        let sockets = pods.each_ref().map(|pod| pod.socket.as_path());
        Callers::start(CALLERS, &sockets, |name| csi::create_volume_on(NODE, &topology_key(DRIVER), name))
    };
    let [first, second] = pods;
    let outcome = replace(setup, first, second).and_then(|()| replace(setup, second, first));
    let report = runtime.block_on(callers.stop());
    outcome?;
    let made = made(setup) - before;
    let words = format!(
        "both proxies are replaced under {CALLERS} callers: {} volumes, made {made} times; {} calls were repeated; p99 \
         {:.1?}, the slowest {:.1?}; final errors: {:?}",
        report.volumes,
        report.repeated,
        report.p99(),
        report.slowest(),
        report.failed
    );
    findings.note(report.failed.is_empty() && made == report.volumes && made > 0, words);
    Ok(())
}

fn lost(
    setup: &Setup<'_>,
    cluster: &Cluster,
    findings: &mut Findings,
    runtime: &Runtime,
    loss: Loss,
    (active, standby): (&mut ProxyPod, &ProxyPod),
) -> Result<(), E2eError> {
    let before = made(setup);
    let begun = Instant::now();
    match loss {
        Loss::Killed => active.kill(),
        Loss::Node => active.freeze(true),
        Loss::Network => active.isolate(),
    }
    let claim = format!("after-{loss:?}").to_lowercase();
    let mut object = objects::claim(&claim, &class_of(DRIVER), "16Mi");
    object["metadata"]["annotations"][SELECTED_NODE] = json!(NODE);
    cluster.api.create(CLAIMS, &object)?;
    // As a sidecar beside the other proxy that does not wait for Probe.
    let request = csi::create_volume_on(NODE, &topology_key(DRIVER), &format!("direct-{loss:?}"));
    let direct = runtime.spawn(pair(standby.socket.clone(), request));
    cluster.bound(&claim)?;
    let by_sidecars = begun.elapsed();
    let report = runtime.block_on(direct).unwrap_or_default();
    findings.note(
        report.volumes == 1 && report.failed.is_empty(),
        format!(
            "the active pod {loss}: a client at the other proxy has a volume after {:.1?}, the sidecars after \
             {by_sidecars:.1?}; final errors: {:?}",
            report.slowest(),
            report.failed
        ),
    );
    if loss != Loss::Killed {
        if loss == Loss::Node {
            active.freeze(false);
        }
        let ended = active.ended();
        let words = format!("the proxy that {loss} ends: {}", ended.as_deref().unwrap_or_default());
        findings.note(ended.is_some(), words);
    }
    let made = made(setup) - before;
    findings.note(made == 2, format!("volumes made for a claim and a client: {made}"));
    cluster.end_claim(&claim)?;
    let left = cluster.edge.node(NODE).map(|node| node.holds(DRIVER)).unwrap_or_default();
    findings.note(left.is_empty(), format!("left of both volumes: {left:?}"));
    Ok(())
}

/// Replaces the active proxy, once the other one is active: a new proxy could acquire a released Lease first.
fn replace(setup: &Setup<'_>, active: &mut ProxyPod, other: &mut ProxyPod) -> Result<(), E2eError> {
    active.until_active()?;
    active.end()?;
    other.until_active()?;
    active.restart(setup)
}

/// How often the drivers of all nodes have made a volume.
fn made(setup: &Setup<'_>) -> usize {
    NODES.iter().map(|node| setup.logged(&format!("driver-{node}-{DRIVER}"), MADE)).sum()
}
