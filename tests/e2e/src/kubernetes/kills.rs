//! Three hubs, two proxies with their sidecars, and four nodes, whose processes are killed while claims are created.
//!
//! `EDGE_CSI_DRILL_SECONDS=600` makes the run longer, with a claim every three seconds. `EDGE_CSI_SEED` selects the victims.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::random::Random;
use edge_csi_tests::{port, wait};
use serde_json::{Value, json};

use super::cluster::{Cluster, Findings, add_node, remove_node, text};
use super::cuts::SELECTED_NODE;
use super::edge::{hub_options, start};
use super::node::MADE;
use super::objects::{self, CLAIMS, CLASSES, CSI_DRIVERS, VOLUMES, class_of};
use super::part::{Part, Ready};
use super::proxy_pod::{ProxyPod, Served, define, lease_of};
use crate::error::E2eError;
use crate::setup::Setup;
use crate::table;

const DRIVER: &str = "csi-killed";

const NODES: [&str; 4] = ["killed-1", "killed-2", "killed-3", "killed-4"];

const HUBS: usize = 3;

/// Time between two kills of a hub, an agent or a driver, and of the active proxy.
const EVERY: Duration = Duration::from_secs(5);
const ACTIVE_EVERY: Duration = Duration::from_secs(60);

/// Seconds for each claim, and the least number of claims.
const SECONDS_FOR_CLAIM: u64 = 3;
const MIN_CLAIMS: u64 = 20;

/// Time limit for what is left to do after the last kill.
const SETTLED: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(200);

/// Runs the kills, and checks that each claim has one volume, and that nothing is left of it.
pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let api = cluster.api;
    define(setup, &cluster.plane)?;
    api.create(CSI_DRIVERS, &objects::csi_driver(DRIVER))?;
    api.create(CLASSES, &objects::class(&class_of(DRIVER), DRIVER, &json!({}), "Delete"))?;
    for name in NODES {
        add_node(api, name, &[DRIVER])?;
    }
    let outcome = Killed::start(setup, cluster).and_then(|mut killed| {
        killed.drill(setup, cluster, findings)?;
        killed.settle(setup, cluster, findings)
    });
    for name in NODES {
        remove_node(api, name)?;
    }
    api.delete(&format!("{CLASSES}/{}", class_of(DRIVER)))?;
    api.delete(&format!("{CSI_DRIVERS}/{DRIVER}"))?;
    api.delete(&lease_of(DRIVER))?;
    outcome
}

/// Returns the number in an environment variable, or the default if it is unset.
pub(super) fn number(name: &'static str, default: u64) -> Result<u64, E2eError> {
    let Some(found) = std::env::var_os(name) else { return Ok(default) };
    let number = found.to_str().and_then(|text| text.parse().ok());
    number.ok_or(E2eError::Variable { name, found, expected: "a number" })
}

/// The processes.
struct Killed {
    /// Hubs, agents and drivers.
    parts: Vec<Part>,
    pods: [ProxyPod; 2],
    length: Duration,
    claims: u64,
    created: u64,
    random: Random,
    kills: u32,
    next_kill: Duration,
    fail_overs: u32,
    next_fail_over: Duration,
}

impl Killed {
    fn start(setup: &Setup<'_>, cluster: &Cluster) -> Result<Self, E2eError> {
        let (seconds, seed) = (number("EDGE_CSI_DRILL_SECONDS", 30)?, number("EDGE_CSI_SEED", 1)?);
        table::say(&format!(
            "EDGE_CSI_DRILL_SECONDS={seconds} EDGE_CSI_SEED={seed} cargo test -p edge-csi-e2e --test kubernetes -- --ignored \
             kubernetes-kills"
        ));
        let folder = setup.folder("killed")?;
        let hubs: Vec<u16> = (0..HUBS).map(|_| port::free()).collect();
        let mut parts = Vec::new();
        for (index, port) in hubs.iter().enumerate() {
            let arguments = hub_options(setup, &folder.join(format!("hub-{index}.sock")), *port);
            parts.push(start(&format!("killed-hub-{index}"), &setup.components.hub, arguments, setup)?);
        }
        for name in NODES {
            let (socket, state) =
                (folder.join(format!("{name}.sock")), setup.folder(&format!("killed/{name}"))?);
            let options = Arguments::driver(DRIVER, &socket, name, &state.join("driver")).flag("-v");
            let log = format!("{name}-driver");
            let ready = Ready::Socket(socket.clone());
            parts.push(Part::start(setup, log, &setup.components.hostpath_driver, options, ready)?);
            let options = Arguments::new()
                .serving(DRIVER, &socket)
                .pair("--nodeid", name)
                .pair("--state-dir", state.join("agent"))
                .dialer(&setup.certificates.issue(&[name]));
            let options =
                hubs.iter().fold(options, |all, hub| all.pair("--hub", format!("wss://localhost:{hub}")));
            parts.push(start(&format!("{name}-agent"), &setup.components.agent, options, setup)?);
        }
        let served = Served { driver: DRIVER, nodes: &NODES, hubs: &hubs };
        let pod = |name| ProxyPod::start(setup, &cluster.plane, name, served);
        let pods = [pod("killed-first")?, pod("killed-second")?];
        let length = Duration::from_secs(seconds);
        Ok(Self {
            parts,
            pods,
            length,
            claims: MIN_CLAIMS.max(seconds / SECONDS_FOR_CLAIM),
            created: 0,
            random: Random::new(seed),
            kills: 0,
            next_kill: EVERY,
            fail_overs: 0,
            next_fail_over: ACTIVE_EVERY.min(length / 2),
        })
    }

    /// Creates the claims, evenly over the time, and kills processes meanwhile.
    fn drill(
        &mut self,
        setup: &Setup<'_>,
        cluster: &Cluster,
        findings: &mut Findings,
    ) -> Result<(), E2eError> {
        let begun = Instant::now();
        let ended = wait::poll_every(PAUSE, self.length + SETTLED, || {
            let now = begun.elapsed();
            match self.step(setup, cluster, now) {
                Err(error) => Some(Err(error)),
                Ok(()) => (now >= self.length && self.created == self.claims).then_some(Ok(())),
            }
        });
        ended.unwrap_or(Ok(()))?;
        let words = format!(
            "{} claims in {:.0?}; killed meanwhile: {} hubs, agents and drivers, {} active proxies",
            self.created,
            begun.elapsed(),
            self.kills,
            self.fail_overs
        );
        findings.note(self.created == self.claims && self.kills > 0 && self.fail_overs > 0, words);
        Ok(())
    }

    /// Does what is due at this time after the begin.
    fn step(&mut self, setup: &Setup<'_>, cluster: &Cluster, now: Duration) -> Result<(), E2eError> {
        while self.created < self.claims
            && now.as_secs_f64() * self.claims as f64 >= self.length.as_secs_f64() * self.created as f64
        {
            let mut claim = objects::claim(&claim_of(self.created), &class_of(DRIVER), "1Mi");
            let index = usize::try_from(self.created).unwrap_or_default() % NODES.len();
            claim["metadata"]["annotations"][SELECTED_NODE] = json!(NODES.get(index));
            cluster.api.create(CLAIMS, &claim)?;
            self.created += 1;
        }
        if now >= self.next_kill {
            self.next_kill += EVERY;
            self.kill(setup)?;
        }
        if now >= self.next_fail_over {
            self.next_fail_over += ACTIVE_EVERY;
            if let Some(active) = self.pods.iter_mut().find(|pod| pod.is_active()) {
                active.restart(setup)?;
                self.fail_overs += 1;
            }
        }
        self.revive(setup)
    }

    /// Starts what has ended in the pods, as kubelet does.
    fn revive(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.pods.iter_mut().try_for_each(|pod| pod.revive(setup))
    }

    /// Kills a hub, an agent or a driver, and starts it again.
    fn kill(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        let index = self.random.below(self.parts.len() as u64);
        self.kills += 1;
        let part = usize::try_from(index).ok().and_then(|index| self.parts.get_mut(index));
        part.map_or(Ok(()), |part| part.revive(setup))
    }

    /// Waits until all claims are bound, and checks their volumes; deletes them, and checks that nothing is left.
    fn settle(
        &mut self,
        setup: &Setup<'_>,
        cluster: &Cluster,
        findings: &mut Findings,
    ) -> Result<(), E2eError> {
        let (api, wanted) = (cluster.api, usize::try_from(self.claims).unwrap_or_default());
        let own = |all: Vec<Value>| {
            all.into_iter()
                .filter(|volume| volume["spec"]["csi"]["driver"] == DRIVER)
                .map(|volume| text(&volume["spec"]["csi"]["volumeHandle"]))
                .collect::<Vec<_>>()
        };
        let begun = Instant::now();
        let mut bound = 0;
        let all = self.until(setup, || {
            let claims = api.list(CLAIMS).ok()?;
            bound = claims.iter().filter(|claim| claim["status"]["phase"] == "Bound").count();
            (bound == wanted).then_some(())
        })?;
        findings.note(
            all,
            format!("{bound} of {wanted} claims are bound {:.1?} after the last", begun.elapsed()),
        );
        let volumes = own(api.list(VOLUMES)?);
        let handles: BTreeSet<&String> = volumes.iter().collect();
        let counts: Vec<usize> = NODES.iter().map(|node| held(setup, node, "volumes").len()).collect();
        let made: usize = NODES.iter().map(|node| setup.logged(&format!("{node}-driver"), MADE)).sum();
        findings.note(
            handles.len() == wanted && volumes.len() == wanted && counts.iter().sum::<usize>() == wanted,
            format!(
                "PersistentVolumes: {} with {} ids; volumes on the nodes: {counts:?}, made: {made}",
                volumes.len(),
                handles.len()
            ),
        );
        for created in 0..self.claims {
            api.delete(&format!("{CLAIMS}/{}", claim_of(created)))?;
        }
        let begun = Instant::now();
        let mut left = 0;
        let none = self.until(setup, || {
            left = own(api.list(VOLUMES).ok()?).len();
            (left == 0).then_some(())
        })?;
        findings.note(
            none,
            format!("PersistentVolumes left {:.1?} after all claims were deleted: {left}", begun.elapsed()),
        );
        let left: Vec<String> = NODES
            .iter()
            .flat_map(|node| ["volumes", "data", "snapshots"].map(|part| held(setup, node, part)))
            .flatten()
            .collect();
        findings.note(left.is_empty(), format!("left with the drivers: {left:?}"));
        Ok(())
    }

    /// Waits until `reached`, and starts meanwhile what has ended, as kubelet does. Returns whether it was reached.
    fn until(
        &mut self,
        setup: &Setup<'_>,
        mut reached: impl FnMut() -> Option<()>,
    ) -> Result<bool, E2eError> {
        let waited = wait::poll_every(PAUSE, SETTLED, || {
            if let Err(error) = self.revive(setup) {
                return Some(Err(error));
            }
            reached().map(Ok)
        });
        waited.map_or(Ok(false), |reached| reached.map(|()| true))
    }
}

fn claim_of(number: u64) -> String {
    format!("killed-{number}")
}

/// The volumes, their data or the snapshots of the driver of a node.
fn held(setup: &Setup<'_>, node: &str, part: &str) -> Vec<String> {
    let folder = setup.scratch.join("killed").join(node).join("driver").join(part);
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.path().display().to_string()).collect()
}
