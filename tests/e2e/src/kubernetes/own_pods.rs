//! The features that a pod can request beyond a claim, on a node with the agent's volume plugin: groups, secrets, tokens,
//! inline volumes, a claim for a single pod, and expansion; and the pod's events if a request cannot be met.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::DRIVERS;
use super::features::size_of;
use super::objects::{self, CLAIMS, CLASSES, CSI_DRIVERS, PODS, SECRETS, VOLUMES, class_of, events_of};
use super::own::{read, write};
use super::plugin::{self, OWN};
use super::secrets;
use super::vault::{self, Vault};
use crate::error::E2eError;
use crate::sanity::SECRET;
use crate::setup::Setup;

const NODE: &str = OWN[0];
const DRIVER: &str = DRIVERS[0];

/// The class whose volumes need the secret on the node.
const GUARDED: &str = "guarded";

/// The class whose volumes have a filesystem that grows while it is mounted.
const GROWING: &str = "growing";

/// Groups that no other process has.
const GROUP: u32 = 4711;
const OTHER_GROUP: u32 = 4712;

/// The secret's value after its change.
const ROTATED: &str = "another-value";

/// The number of failed mounts before a pod's events are counted.
const FAILURES: usize = 3;

/// Time for which a pod that must not get a volume is watched.
const WATCHED: Duration = Duration::from_secs(3);

/// The agent's log message after it has applied a pod's group to the volume's files.
const GIVEN: &str = "fsGroup applied";

/// The error of volume-manager for a volume that allows only one pod and already has one.
const SINGLE: &str = "one consumer at a time";

const TOKEN_REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";

/// A pod with its mounted volume.
#[derive(Debug)]
struct Mounted {
    name: &'static str,
    uid: String,
    place: PathBuf,
}

pub(super) fn run(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let Some(node) = cluster.edge.node(NODE) else { return Ok(()) };
    let vault = Vault::start(setup, node)?;
    cluster.api.create(CSI_DRIVERS, &vault::csi_driver())?;
    let parameters = secrets::parameters(&["node-stage", "node-publish"]);
    cluster.api.create(CLASSES, &objects::class(GUARDED, DRIVER, &parameters, "Delete"))?;
    // The driver stays until the last of its volumes is unmounted.
    let outcome = plugin::with(setup, cluster, findings, &[NODE], |cluster, findings| {
        for node in cluster.edge.nodes.iter_mut().filter(|node| node.name == NODE) {
            node.mount_pods_with(setup, vault.options())?;
        }
        let pods = guarded(setup, cluster, findings)?;
        let before = failure_counts(cluster, &pods)?;
        groups(setup, cluster, findings)?;
        one_pod(cluster, findings)?;
        grows(cluster, findings)?;
        findings.same(
            "since they had their volumes, the first three got no more events than",
            &json!(failure_counts(cluster, &pods)?),
            &json!(before),
        );
        Ok(())
    });
    drop(vault);
    let classes = [GUARDED, GROWING].map(|name| format!("{CLASSES}/{name}"));
    for object in classes.into_iter().chain([vault::path(), format!("{SECRETS}/{}", secrets::NAME)]) {
        cluster.api.delete(&object)?;
    }
    outcome
}

/// Creates three pods whose volumes need a secret that is created later: by a class, by a manual PersistentVolume, and inline.
fn guarded(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<[Mounted; 3], E2eError> {
    cluster.make(
        &objects::claim("by-class", GUARDED, "16Mi"),
        &objects::pod("by-class", NODE, "by-class", &["wait"]),
    )?;
    cluster.api.create(VOLUMES, &vault::persistent_volume("by-hand"))?;
    let mut claim = objects::claim("by-hand", "", "1Mi");
    claim["spec"]["volumeName"] = json!("by-hand");
    cluster.make(&claim, &objects::pod("by-hand", NODE, "by-hand", &["wait"]))?;
    cluster.api.create(PODS, &in_group(objects::pod_with_inline("inline", NODE, &vault::inline()), GROUP))?;

    for name in ["by-class", "by-hand", "inline"] {
        let events = failures(cluster, &cluster.uid(name)?)?;
        let message = text(&events[0]["message"]);
        findings.note(
            message.contains(secrets::NAME),
            format!("{name} waits for a secret, with the event: {message}"),
        );
    }
    let volume = cluster.bound("by-class")?;
    let handle = text(&volume["spec"]["csi"]["volumeHandle"]);
    let failed = wait::poll(BOUND, || {
        let text = agent_log(setup);
        let lines = text.lines().filter(|line| line.contains(&handle) && line.contains(secrets::NAME));
        Some(lines.count()).filter(|count| *count >= FAILURES)
    });
    let events = failures(cluster, &cluster.uid("by-class")?)?;
    let words =
        format!("its mount has failed {failed:?} times, and the number of its events: {}", events.len());
    findings.note(failed.is_some() && events.len() == 1, words);
    findings.note(mounts_of(cluster, "by-class")?.is_empty(), "nothing is mounted for the pod");

    cluster.api.create(SECRETS, &secrets::secret())?;
    let by_class = mounted(cluster, "by-class", &text(&volume["metadata"]["name"]))?;
    let by_hand = mounted(cluster, "by-hand", "by-hand")?;
    let inline = mounted(cluster, "inline", "v")?;
    findings.note(true, "with the secret all three have their volumes");

    let said = wait::poll(BOUND, || vault::context(&by_hand.place)).unwrap_or_default();
    let values = json!([said["staged"]["password"], said["secrets"]["password"]]);
    findings.same("NodeStageVolume and NodePublishVolume had", &values, &json!([SECRET, SECRET]));
    let folder = by_hand.place.parent().map(names_in).unwrap_or_default();
    findings.same("beside the mount is", &json!(folder), &json!(["mount"]));
    let token = check_inline_volume(cluster, findings, &inline)?;
    check_republish(cluster, findings, &inline, &token)?;
    // The secret must not be on any disk while the pods have it: one check is enough, since no process removes it meanwhile.
    let places = ["edge".to_owned(), format!("{NODE}/agent")].map(|part| setup.scratch.join(part));
    for (what, text) in texts(&token) {
        let holders = holders_below(&places, text);
        findings.note(
            !text.is_empty() && holders.is_empty(),
            format!("while the pods run, files of hub, agent and proxies with the {what}: {holders:?}"),
        );
    }

    for pod in [&by_hand, &inline] {
        cluster.forget_pod(pod.name)?;
        check_removed(cluster, pod)?;
    }
    // The driver kept the texts in memory, which is unmounted.
    let [edge, agent] = places;
    let places = [edge, agent, setup.scratch.join(NODE).join("volumes")];
    for (what, text) in texts(&token) {
        let mut holders: Vec<PathBuf> = Vec::new();
        wait::poll(BOUND, || {
            holders = holders_below(&places, text);
            holders.is_empty().then_some(())
        });
        findings.note(
            !text.is_empty() && holders.is_empty(),
            format!("files of hub, agent and proxies with the {what}: {holders:?}"),
        );
    }
    let printed = token.is_empty() || agent_log(setup).contains(&token);
    findings.note(!printed, "the agent's log does not have the token");
    cluster.api.delete(&format!("{CLAIMS}/by-hand"))?;
    cluster.api.delete(&format!("{VOLUMES}/by-hand"))?;
    Ok([by_class, by_hand, inline])
}

/// Returns the texts that must not be on any disk, with their names. The token is empty if the agent has passed none.
fn texts(token: &str) -> [(&'static str, &str); 3] {
    [("secret", SECRET), ("new secret", ROTATED), ("token", token)]
}

fn holders_below(places: &[PathBuf], text: &str) -> Vec<PathBuf> {
    places.iter().flat_map(|place| secrets::holders_of(text, place)).collect()
}

/// Checks that an inline volume gets its pod's context and token, and the pod's group. Returns the token, which is empty if the
/// agent has passed none.
fn check_inline_volume(
    cluster: &Cluster,
    findings: &mut Findings,
    inline: &Mounted,
) -> Result<String, E2eError> {
    let said = wait::poll(BOUND, || vault::context(&inline.place)).unwrap_or_default();
    let key = |part: &str| said["context"][format!("csi.storage.k8s.io/{part}")].clone();
    let context = json!([
        said["context"]["role"],
        key("ephemeral"),
        key("pod.name"),
        key("pod.namespace"),
        key("pod.uid"),
        key("serviceAccount.name"),
        said["secrets"]["password"],
        said["staged"],
        said["staging"],
    ]);
    let expected = json!(["reader", "true", inline.name, "default", inline.uid, "default", SECRET, null, ""]);
    findings.same("an inline volume gets its pod's context, and is not staged", &context, &expected);
    let Some(token) = vault::token(&inline.place).filter(|token| !token.is_empty()) else {
        findings.note(false, "the agent has passed no token");
        return Ok(String::new());
    };
    let review = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": token, "audiences": [vault::AUDIENCE]},
    });
    let status = cluster.api.ask_with(TOKEN_REVIEWS, &review)?["status"].take();
    let user = &status["user"];
    let found =
        json!([status["audiences"], user["username"], user["extra"]["authentication.kubernetes.io/pod-uid"]]);
    let expected = json!([[vault::AUDIENCE], "system:serviceaccount:default:default", [inline.uid]]);
    findings.same("its token is valid for", &found, &expected);
    Ok(token)
}

/// Checks that the volume gets the pod's context again, with the present values, and that its files keep the group.
fn check_republish(
    cluster: &Cluster,
    findings: &mut Findings,
    inline: &Mounted,
    token: &str,
) -> Result<(), E2eError> {
    let secret = format!("{SECRETS}/{}", secrets::NAME);
    cluster.api.merge(&secret, &json!({"stringData": {"password": ROTATED}}))?;
    let later = wait::poll(BOUND, || {
        vault::context(&inline.place).filter(|context| context["secrets"]["password"] == ROTATED)
    });
    let times = later.unwrap_or_default()["published"].as_u64();
    findings.note(times > Some(1), format!("published {times:?} times, the volume has the new secret"));
    let another = vault::token(&inline.place).is_some_and(|later| later != token);
    findings.note(another, "the volume has another token");
    // The driver rewrites its files each time, readable only by root.
    let expected = json!({"context": format!("{GROUP} 660"), "tokens": format!("{GROUP} 660")});
    let files = || owned(&inline.place, &["context", "tokens"]);
    wait::poll(BOUND, || (files() == expected).then_some(()));
    findings.same("its files have group and mode", &files(), &expected);
    Ok(())
}

/// Checks that a volume's files have the group that its pod requests.
fn groups(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    cluster.make(
        &objects::claim("shared", &class_of(DRIVER), "16Mi"),
        &objects::pod("of-none", NODE, "shared", &["wait"]),
    )?;
    let volume = text(&cluster.bound("shared")?["metadata"]["name"]);
    let first = mounted(cluster, "of-none", &volume)?;
    let outside = setup.scratch.join(NODE).join("outside");
    write(&outside, "not of the volume")?;
    fill(&first.place, &outside).map_err(|cause| E2eError::File { path: first.place.clone(), cause })?;
    let files = ["inner", "inner/file", "script", "late"];
    let expected = json!({"inner": "0 700", "inner/file": "0 600", "script": "0 755", "late": "0 600"});
    findings.same("a pod without a group has created", &owned(&first.place, &files), &expected);
    cluster.forget_pod(first.name)?;
    check_removed(cluster, &first)?;

    let given = |group: u32, late: &str| {
        json!({
            "inner": format!("{group} 2770"), "inner/file": format!("{group} 660"),
            "script": format!("{group} 775"), "late": late,
        })
    };
    let second = of_group(cluster, "of-group", &volume, GROUP, "Always")?;
    logged(setup, &second)?;
    let expected = given(GROUP, &format!("{GROUP} 660"));
    findings.same("a pod of a group finds", &owned(&second.place, &files), &expected);
    let root = fs::metadata(&second.place).map(|root| (root.gid(), root.mode() & 0o2770)).ok();
    findings.note(root == Some((GROUP, 0o2770)), format!("and the root: {root:?}"));
    let left = fs::metadata(&outside).map(|file| file.gid()).ok();
    findings.note(left == Some(0), format!("the group of a link's target outside of the volume: {left:?}"));

    let late = second.place.join("late");
    let back = chown(&late, None, Some(0)).and_then(|()| fs::set_permissions(&late, mode(0o600)));
    back.map_err(|cause| E2eError::File { path: late, cause })?;
    let third = of_group(cluster, "of-root", &volume, GROUP, "OnRootMismatch")?;
    logged(setup, &third)?;
    let expected = given(GROUP, "0 600");
    findings.same("OnRootMismatch, where the root is the group's", &owned(&third.place, &files), &expected);
    let fourth = of_group(cluster, "of-other", &volume, OTHER_GROUP, "OnRootMismatch")?;
    logged(setup, &fourth)?;
    let expected = given(OTHER_GROUP, &format!("{OTHER_GROUP} 660"));
    findings.same("OnRootMismatch, for another group", &owned(&fourth.place, &files), &expected);
    Ok(())
}

/// Checks that only one pod gets a claim for a single pod, although a second pod was bound to the node without the scheduler.
fn one_pod(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let mut claim = objects::claim("single", &class_of(DRIVER), "16Mi");
    claim["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    cluster.make(&claim, &objects::pod("alone", NODE, "single", &["wait"]))?;
    let volume = text(&cluster.bound("single")?["metadata"]["name"]);
    let first = mounted(cluster, "alone", &volume)?;
    write(&first.place.join("file"), "mine")?;
    let mut second = objects::pod("second", NODE, "single", &["wait"]);
    second["spec"]["nodeName"] = json!(NODE);
    cluster.api.create(PODS, &second)?;
    let events = failures(cluster, &cluster.uid("second")?)?;
    let message = text(&events[0]["message"]);
    findings.note(
        message.contains(SINGLE),
        format!("a second pod of a ReadWriteOncePod claim gets the event: {message}"),
    );
    let got = wait::poll(WATCHED, || mounts_of(cluster, "second").ok().filter(|mounts| !mounts.is_empty()));
    findings.note(got.is_none(), "the second pod has no mount");
    cluster.forget_pod("alone")?;
    check_removed(cluster, &first)?;
    let second = mounted(cluster, "second", &volume)?;
    let found = read(&second.place.join("file"), "mine")?;
    findings.same("when the first one is removed it reads", &json!(found), &json!("mine"));
    Ok(())
}

/// Expands a claim under its pod, and checks the pod's event.
fn grows(cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let parameters = json!({"csi.storage.k8s.io/fstype": "xfs"});
    cluster.api.create(CLASSES, &objects::class(GROWING, DRIVER, &parameters, "Delete"))?;
    cluster
        .make(&objects::claim("grows", GROWING, "320Mi"), &objects::pod("grows", NODE, "grows", &["wait"]))?;
    let volume = text(&cluster.bound("grows")?["metadata"]["name"]);
    mounted(cluster, "grows", &volume)?;
    let before = size_of(&volume);
    let path = format!("{CLAIMS}/grows");
    cluster.api.merge(&path, &json!({"spec": {"resources": {"requests": {"storage": "480Mi"}}}}))?;
    let claim = cluster.api.until(&path, "grown", BOUND, |claim| {
        // The node reports bytes.
        (claim["status"]["capacity"]["storage"] == "503316480").then(|| claim.clone())
    })?;
    let after = size_of(&volume);
    let right = before.zip(after).is_some_and(|(before, after)| after > before + (100 << 20));
    findings.note(right, format!("the filesystem under the pod: {before:?} bytes before, {after:?} after"));
    let events = events_of(&text(&claim["metadata"]["uid"]));
    let said = cluster.api.until(&events, "an event FileSystemResizeSuccessful", BOUND, |events| {
        let mut events = events["items"].as_array()?.iter();
        events
            .find(|event| event["reason"] == "FileSystemResizeSuccessful")
            .map(|event| text(&event["message"]))
    })?;
    findings.note(said.contains(&volume), format!("the claim gets the event: {said}"));
    Ok(())
}

fn in_group(mut pod: Value, group: u32) -> Value {
    pod["spec"]["securityContext"] = json!({"fsGroup": group});
    pod
}

/// Creates another pod of the shared claim, and waits until it is mounted.
fn of_group(
    cluster: &Cluster,
    name: &'static str,
    volume: &str,
    group: u32,
    policy: &str,
) -> Result<Mounted, E2eError> {
    let mut pod = in_group(objects::pod(name, NODE, "shared", &["wait"]), group);
    pod["spec"]["securityContext"]["fsGroupChangePolicy"] = json!(policy);
    cluster.api.create(PODS, &pod)?;
    mounted(cluster, name, volume)
}

/// Waits until a pod has its volume, which the name of the volume's directory identifies.
fn mounted(cluster: &Cluster, name: &'static str, volume: &str) -> Result<Mounted, E2eError> {
    let uid = cluster.uid(name)?;
    let place = match cluster.edge.node(NODE) {
        Some(node) => node.mounted(&node.place_of(&uid, volume, false))?.place,
        None => PathBuf::new(),
    };
    Ok(Mounted { name, uid, place })
}

fn check_removed(cluster: &Cluster, pod: &Mounted) -> Result<(), E2eError> {
    cluster.edge.node(NODE).map_or(Ok(()), |node| node.check_removed(&pod.uid))
}

/// Returns the mounts of a pod.
fn mounts_of(cluster: &Cluster, pod: &str) -> Result<Vec<plugin::Mount>, E2eError> {
    let uid = cluster.uid(pod)?;
    let Some(node) = cluster.edge.node(NODE) else { return Ok(Vec::new()) };
    let below = node.pod(&uid);
    Ok(node.mounts().into_iter().filter(|mount| mount.place.starts_with(&below)).collect())
}

/// Waits until a pod has an event of a failed mount, and returns its failure events.
fn failures(cluster: &Cluster, uid: &str) -> Result<Vec<Value>, E2eError> {
    cluster.api.until(&events_of(uid), "a failed mount", BOUND, |events| {
        let events = events["items"].as_array()?.iter();
        let failures: Vec<Value> = events.filter(|event| is_failure(event)).cloned().collect();
        Some(failures).filter(|failures| !failures.is_empty())
    })
}

/// Returns true if the hub reports a failed mount in this event.
fn is_failure(event: &Value) -> bool {
    event["reason"] == "FailedMount" && event["source"]["component"] == "edge-csi"
}

/// Returns each pod's event counts, one for each failure so far.
fn failure_counts(cluster: &Cluster, pods: &[Mounted]) -> Result<Vec<Value>, E2eError> {
    let mut all = Vec::new();
    for pod in pods {
        let events = cluster.api.list(&events_of(&pod.uid))?;
        let counts = events.iter().filter(|event| is_failure(event)).map(|event| event["count"].clone());
        all.push(json!([pod.name, counts.collect::<Vec<_>>()]));
    }
    Ok(all)
}

/// Waits until the agent logs that it has applied the group of a pod.
fn logged(setup: &Setup<'_>, pod: &Mounted) -> Result<(), E2eError> {
    let is_said = |line: &str| line.contains(&pod.uid) && line.contains(GIVEN);
    let said = wait::poll(BOUND, || agent_log(setup).lines().any(is_said).then_some(()));
    said.ok_or_else(|| E2eError::Timeout {
        waited_for: format!("{GIVEN:?} of pod {} in the agent's log", pod.name),
        bound: BOUND,
        last: String::new(),
    })
}

fn agent_log(setup: &Setup<'_>) -> String {
    fs::read_to_string(setup.logs.join(format!("agent-{NODE}.log"))).unwrap_or_default()
}

/// Creates the files of the first pod: private files, and a link that leads out of the volume.
fn fill(place: &Path, outside: &Path) -> std::io::Result<()> {
    fs::create_dir(place.join("inner"))?;
    for (name, permissions) in [("inner/file", 0o600), ("script", 0o755), ("late", 0o600)] {
        fs::write(place.join(name), name)?;
        fs::set_permissions(place.join(name), mode(permissions))?;
    }
    symlink(outside, place.join("out"))?;
    fs::set_permissions(place.join("inner"), mode(0o700))
}

fn mode(bits: u32) -> fs::Permissions {
    fs::Permissions::from_mode(bits)
}

/// Returns the group and mode of each of these files.
fn owned(place: &Path, names: &[&str]) -> Value {
    let facts = names.iter().map(|name| {
        let facts = fs::symlink_metadata(place.join(name));
        let facts = facts.map(|file| format!("{} {:o}", file.gid(), file.mode() & 0o7777));
        ((*name).to_owned(), json!(facts.unwrap_or_else(|error| error.to_string())))
    });
    Value::Object(facts.collect())
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}
