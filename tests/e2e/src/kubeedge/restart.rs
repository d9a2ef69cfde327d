//! edgecore starts again under running pods, with and without cloudcore.
//!
//! edged unpublishes and unstages the volumes of running pods at each of its starts, which kubelet does not do. A container keeps
//! its own mount of a directory, so it sees its files all the time.

use std::time::{Duration, Instant};

use edge_csi_tests::wait;

use super::away::RECONNECT;
use super::cluster::{KubeEdge, NODE, REPORT};
use super::pods::Pod;
use crate::error::E2eError;
use crate::kubernetes::cluster::Findings;
use crate::kubernetes::edge::DRIVERS;
use crate::setup::Setup;

/// Time for which the volumes are watched after a start.
const WATCHED: Duration = Duration::from_secs(45);

/// Time for edged to mount again what it unmounted, without cloudcore.
const SETTLED: Duration = Duration::from_secs(20);

/// The agent's option that keeps the volumes of running pods published, and its log line when it does.
const KEEP: &str = "--keep-mounts-in-use";
const KEPT: &str = "kept a volume published";

/// The rule that edged breaks when it starts.
const BROKEN: &str = "unpublish_while_in_use";

/// The calls of a node's volume, as the driver logs them when they are done.
const CALLS: [&str; 4] =
    ["node_unpublish_volume", "node_unstage_volume", "node_stage_volume", "node_publish_volume"];

/// Counts the calls that both drivers have completed, in the order of [`CALLS`].
fn calls(setup: &Setup<'_>) -> [usize; 4] {
    let done = |method: &str| -> usize {
        let words = format!("done method=\"{method}\"");
        DRIVERS.iter().map(|driver| setup.logged(&format!("driver-{NODE}-{driver}"), &words)).sum()
    };
    CALLS.map(done)
}

/// Returns the calls since an earlier count, in words.
fn since(setup: &Setup<'_>, before: [usize; 4]) -> ([usize; 4], String) {
    let mut more = calls(setup);
    more.iter_mut().zip(before).for_each(|(now, before)| *now -= before);
    let words: Vec<String> = CALLS.iter().zip(more).map(|(call, count)| format!("{call} {count}")).collect();
    (more, words.join(", "))
}

/// Creates a pod with each driver.
fn pods(kubeedge: &KubeEdge) -> Result<Vec<Pod>, E2eError> {
    DRIVERS.iter().map(|driver| Pod::make(&kubeedge.cluster, &format!("on-{driver}"), driver)).collect()
}

/// Checks that no pod has lost a file, and that no container was restarted.
fn check(kubeedge: &KubeEdge, findings: &mut Findings, pods: &[Pod], processes: &[Option<u32>]) {
    for (pod, process) in pods.iter().zip(processes) {
        let same = pod.process() == *process && process.is_some();
        let restarts = pod.restarts(&kubeedge.cluster).unwrap_or_default();
        findings.note(
            same && pod.is_written() && pod.sees_its_file(),
            format!("{}: the container runs as before and sees its file; restarts: {restarts}", pod.name),
        );
    }
}

/// Restarts edgecore while cloudcore is there.
pub(super) fn with_cloud(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let pods = pods(kubeedge)?;
    let processes: Vec<_> = pods.iter().map(Pod::process).collect();
    let (before, begun) = (calls(setup), Instant::now());
    kubeedge.edgecore.restart(setup)?;
    let again = wait::poll(WATCHED, || (since(setup, before).0[3] >= pods.len()).then_some(()));
    let (_, words) = since(setup, before);
    let times = if again.is_some() { "all published again" } else { "watched" };
    findings.note(
        true,
        format!(
            "edgecore restarted under {} pods: {words}; {times} after {:.1?}",
            pods.len(),
            begun.elapsed()
        ),
    );
    let mounted = wait::poll(WATCHED, || pods.iter().all(Pod::is_mounted).then_some(()));
    findings.note(mounted.is_some(), "all volumes are mounted");
    let named = setup.logged(&format!("agent-{NODE}"), BROKEN);
    findings.note(named > 0, format!("the agent names {BROKEN}, {named} times"));
    check(kubeedge, findings, &pods, &processes);
    kubeedge.cluster.clear(findings)
}

/// Restarts edgecore with and without cloudcore, where the agent keeps the volumes of running pods published.
pub(super) fn kept(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    kubeedge.restart_agent(setup, &[REPORT, KEEP])?;
    let pods = pods(kubeedge)?;
    let processes: Vec<_> = pods.iter().map(Pod::process).collect();
    let refusals = || setup.logged(&format!("agent-{NODE}"), KEPT);
    for is_away in [false, true] {
        let (before, refused) = (calls(setup), refusals());
        if is_away {
            kubeedge.cloudcore.kill();
        }
        kubeedge.edgecore.restart(setup)?;
        let bound = if is_away { SETTLED } else { WATCHED };
        let tried = wait::poll(bound, || (refusals() - refused >= pods.len()).then_some(()));
        let lost = wait::poll(SETTLED, || pods.iter().any(|pod| !pod.is_mounted()).then_some(()));
        let ([unpublished, unstaged, ..], words) = since(setup, before);
        let cloud = if is_away { "without cloudcore" } else { "with cloudcore" };
        findings.note(
            (tried.is_some() || is_away) && lost.is_none() && unpublished + unstaged == 0,
            format!("edgecore restarted {cloud}: refused {}; at the drivers: {words}", refusals() - refused),
        );
        check(kubeedge, findings, &pods, &processes);
        if is_away {
            kubeedge.cloudcore.restart(setup)?;
            kubeedge.renew_registrars(setup)?;
        }
    }
    // Pods that have ended are unmounted.
    kubeedge.cluster.clear(findings)?;
    kubeedge.restart_agent(setup, &[REPORT])
}

/// Restarts edgecore while cloudcore is away, then starts cloudcore.
pub(super) fn without_cloud(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let pods = pods(kubeedge)?;
    let processes: Vec<_> = pods.iter().map(Pod::process).collect();
    let (before, begun) = (calls(setup), Instant::now());
    kubeedge.cloudcore.kill();
    kubeedge.edgecore.restart(setup)?;
    let lost = wait::poll(WATCHED, || pods.iter().all(|pod| !pod.is_mounted()).then_some(()));
    let times = if lost.is_some() { "all unmounted" } else { "watched" };
    let (_, words) = since(setup, before);
    findings.note(
        true,
        format!("edgecore restarted without cloudcore: {words}; {times} after {:.1?}", begun.elapsed()),
    );
    wait::poll(SETTLED, || pods.iter().all(Pod::is_mounted).then_some(()));
    let count = pods.iter().filter(|pod| pod.is_mounted()).count();
    findings.note(
        true,
        format!("mounted again without cloudcore, within {SETTLED:?}: {count} of {}", pods.len()),
    );
    check(kubeedge, findings, &pods, &processes);

    let begun = Instant::now();
    kubeedge.cloudcore.restart(setup)?;
    let listens = begun.elapsed();
    let refused: usize =
        DRIVERS.iter().map(|driver| setup.logged(&format!("registrar-{NODE}-{driver}"), "refused")).sum();
    kubeedge.renew_registrars(setup)?;
    findings.note(
        true,
        format!(
            "registrations that edged refused without cloudcore: {refused}; all registered {:.1?} after its start",
            begun.elapsed()
        ),
    );
    let mounted = wait::poll(RECONNECT, || pods.iter().all(Pod::is_mounted).then_some(()));
    findings.note(
        mounted.is_some(),
        format!(
            "cloudcore listens {listens:.1?} after its start, and all volumes are mounted after {:.1?}",
            begun.elapsed()
        ),
    );
    check(kubeedge, findings, &pods, &processes);
    kubeedge.cluster.clear(findings)
}
