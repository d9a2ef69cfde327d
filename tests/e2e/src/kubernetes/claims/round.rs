//! One round: all claims are bound, and then deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::counting::{Counting, Executions, Phase};
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::STEP;
use super::figures::Figures;
use super::path::Path;
use crate::error::E2eError;
use crate::kubernetes::api::Api;
use crate::kubernetes::cluster::{Cluster, Findings, text};
use crate::kubernetes::edge::sidecar_options;
use crate::kubernetes::objects::{self, CLAIMS, VOLUMES, class_of};
use crate::kubernetes::part::{Part, Ready};
use crate::setup::Setup;

/// Options of the provisioner: as many workers as claims, and no limit of its requests to the API server.
const LIMITS: [&str; 5] = [
    "--immediate-topology=false",
    "--worker-threads=1000",
    "--kube-api-qps=10000",
    "--kube-api-burst=10000",
    "--v=2",
];

/// The annotation of a claim that waits for its provisioner.
const PROVISIONER: &str = "volume.kubernetes.io/storage-provisioner";

/// The provisioner's log message for a claim that it tries again.
const REPEATED: &str = "Retrying syncing claim";

/// Creates the claims, starts the provisioner, and deletes the claims once all are bound.
pub(super) fn run(
    setup: &Setup<'_>,
    cluster: &Cluster,
    findings: &mut Findings,
    path: Path,
    (claims, number): (usize, u64),
) -> Result<Figures, E2eError> {
    let (api, round) = (cluster.api, format!("{}-{number}", path.way));
    for claim in 0..claims {
        api.create(
            CLAIMS,
            &objects::claim(&format!("{round}-{claim}"), &class_of(path.way.driver()), "1Mi"),
        )?;
    }
    let mut waiting = BTreeSet::new();
    api.watch(CLAIMS, "all wait for the provisioner", STEP, |claim| {
        if claim["metadata"]["annotations"][PROVISIONER].is_string() {
            waiting.insert(text(&claim["metadata"]["name"]));
        }
        (waiting.len() == claims).then_some(())
    })?;

    let (relay, plane) = (path.processor_time(), cluster.plane.processor_time());
    let begun = Instant::now();
    let log = format!("claims-provisioner-{round}");
    let sockets = (path.socket.as_path(), cluster.plane.kubeconfig.as_path());
    let options = sidecar_options(Arguments::new(), sockets, &LIMITS);
    let program = setup.components.sidecar("csi-provisioner");
    let provisioner = Part::start(setup, log.clone(), &program, options, Ready::AtOnce)?;
    let (volumes, owners) = std::thread::scope(|scope| {
        let volumes = scope.spawn(|| all_created(api, claims).map(|()| begun.elapsed()));
        let owners = all_bound(api, claims);
        (volumes.join().unwrap_or_else(|panic| resume_unwind(panic)), owners)
    });
    let (volumes, owners, bound) = (volumes?, owners?, begun.elapsed());
    let used = provisioner.process().map(Process::processor_time).unwrap_or_default();
    let mut figures = Figures {
        claims,
        volumes,
        bound,
        relay: path.processor_time().saturating_sub(relay),
        provisioner: used,
        plane: cluster.plane.processor_time().saturating_sub(plane),
        relay_kib: path.peak_kib(),
        repeated: setup.logged(&log, REPEATED),
        ..Figures::default()
    };
    if let Some(Phase { first, last, max_concurrent, .. }) = path.driver.phase("CreateVolume") {
        figures.first = first.saturating_duration_since(begun);
        figures.at_driver = last.saturating_duration_since(first);
        figures.at_once = max_concurrent;
    }
    check(api, findings, &path.driver, &owners, &round)?;

    let deletion = Instant::now();
    api.delete(CLAIMS)?;
    let mut left = 0;
    let removed = wait::poll_every(Duration::from_millis(100), STEP, || {
        left = api.list(&format!("{VOLUMES}?limit=1")).ok()?.len();
        (left == 0).then_some(())
    });
    figures.deleted = deletion.elapsed();
    let deleted = of(&path.driver, "DeleteVolume").len();
    findings.note(
        removed.is_some() && deleted == claims,
        format!("{round}: {deleted} of {claims} volumes are deleted with their claims"),
    );
    drop(provisioner);
    path.stop()?;
    Ok(figures)
}

/// Waits until there are this many PersistentVolumes.
fn all_created(api: Api, count: usize) -> Result<(), E2eError> {
    let mut created = BTreeSet::new();
    api.watch(VOLUMES, "one for each claim", STEP, |volume| {
        created.insert(text(&volume["metadata"]["name"]));
        (created.len() == count).then_some(())
    })
}

/// Waits until this many claims are bound, and returns the claim of each PersistentVolume.
fn all_bound(api: Api, count: usize) -> Result<BTreeMap<String, String>, E2eError> {
    let mut volumes = BTreeMap::new();
    api.watch(CLAIMS, "all bound", STEP, |claim| {
        if claim["status"]["phase"] == "Bound" {
            volumes.insert(text(&claim["metadata"]["name"]), text(&claim["spec"]["volumeName"]));
        }
        (volumes.len() == count).then_some(())
    })?;
    Ok(volumes.into_iter().map(|(claim, volume)| (volume, claim)).collect())
}

/// Checks that each claim has its own volume, which the driver has made once.
fn check(
    api: Api,
    findings: &mut Findings,
    driver: &Counting,
    owners: &BTreeMap<String, String>,
    round: &str,
) -> Result<(), E2eError> {
    let volumes = api.list(VOLUMES)?;
    let handles: BTreeSet<String> =
        volumes.iter().map(|volume| text(&volume["spec"]["csi"]["volumeHandle"])).collect();
    let owned = |volume: &&Value| {
        let owner = owners.get(&text(&volume["metadata"]["name"]));
        owner.is_some_and(|owner| volume["spec"]["claimRef"]["name"] == json!(owner))
    };
    let owned = volumes.iter().filter(owned).count();
    let made = of(driver, "CreateVolume");
    let once = made.iter().filter(|executions| (executions.begun, executions.ended) == (1, 1)).count();
    let right = [volumes.len(), handles.len(), owned, made.len(), once].iter().all(|n| *n == owners.len());
    findings.note(
        right,
        format!(
            "{round}: {} claims bound; PersistentVolumes: {}, with {} ids, {owned} bound to their own claim; made by the driver: \
             {}, once: {once}",
            owners.len(),
            volumes.len(),
            handles.len(),
            made.len()
        ),
    );
    Ok(())
}

/// Returns the executions of a method, for each volume.
fn of(driver: &Counting, method: &str) -> Vec<Executions> {
    let all = driver.executions().into_iter();
    all.filter(|(operation, _)| operation.method == method).map(|(_, executions)| executions).collect()
}
