//! Boots a node with the agent's volume plugin without a hub and an API server.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, Victim};
use super::objects::{self, CLAIMS, PODS, VOLUMES, class_of};
use super::own::{read, write};
use super::plugin::{self, Mount, OWN};
use crate::error::E2eError;
use crate::setup::Setup;

const NODE: &str = OWN[0];

/// A pod from before the boot, and its volume.
#[derive(Debug)]
struct Before {
    uid: String,
    /// The PersistentVolume, and its id in the driver.
    volume: String,
    handle: String,
    driver: &'static str,
    /// The path of its mount.
    place: PathBuf,
    device: bool,
}

impl Before {
    /// Creates a claim and a pod with this name, and writes the name as the pod.
    fn make(cluster: &Cluster, name: &str, driver: &'static str, device: bool) -> Result<Self, E2eError> {
        let claim = if device { objects::device_claim } else { objects::claim };
        let claim = claim(name, &class_of(driver), "16Mi");
        let pod = if device { objects::pod_with_device } else { objects::pod };
        cluster.make(&claim, &pod(name, NODE, name, &["wait"]))?;
        let bound = cluster.bound(name)?;
        let (uid, volume) = (cluster.uid(name)?, text(&bound["metadata"]["name"]));
        let handle = text(&bound["spec"]["csi"]["volumeHandle"]);
        let place = place(cluster, &uid, &volume, device);
        let before = Self { uid, volume, handle, driver, place, device };
        mounted(cluster, &before.place)?;
        write(&before.file(), name)?;
        Ok(before)
    }

    /// Returns the path that the pod has written to.
    fn file(&self) -> PathBuf {
        if self.device { self.place.clone() } else { self.place.join("file") }
    }
}

fn place(cluster: &Cluster, uid: &str, volume: &str, device: bool) -> PathBuf {
    cluster.edge.node(NODE).map(|node| node.place_of(uid, volume, device)).unwrap_or_default()
}

fn mounted(cluster: &Cluster, place: &Path) -> Result<Option<Mount>, E2eError> {
    cluster.edge.node(NODE).map(|node| node.mounted(place)).transpose()
}

/// Checks that the pods' volumes are mounted after the boot, and that missed changes are applied after the outage.
pub(super) fn offline(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    plugin::with(setup, cluster, findings, &OWN, |cluster, findings| {
        boots(setup, cluster, findings).inspect_err(|_| {
            // The next cases need the server and the cables, and these errors matter less than the first one.
            let _ = cluster.plane.restore_server(setup);
            let _ = cluster.edge.restore(setup, Victim::Hub, NODE);
        })
    })
}

fn boots(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), E2eError> {
    let stays = Before::make(cluster, "stays", DRIVERS[0], false)?;
    let device = Before::make(cluster, "device", DRIVERS[0], true)?;
    let goes = Before::make(cluster, "goes", DRIVERS[1], false)?;

    cluster.edge.kill(Victim::Hub, NODE);
    cluster.plane.lose_server();
    for node in cluster.edge.nodes.iter_mut().filter(|node| node.name == NODE) {
        node.lose_power()?;
        findings.same("hub, API server, power and mounts are lost", &json!(node.mounts().len()), &json!(0));
        node.boot(setup)?;
    }
    let begun = Instant::now();
    for (name, pod) in [("stays", &stays), ("device", &device), ("goes", &goes)] {
        mounted(cluster, &pod.place)?;
        findings.same("after the boot, a pod reads", &json!(read(&pod.file(), name)?), &json!(name));
    }
    findings.note(true, format!("all volumes are back after {:.1?}", begun.elapsed()));

    // The cluster changes while the node is offline.
    cluster.plane.restore_server(setup)?;
    cluster.forget_pod("goes")?;
    cluster.api.delete(&format!("{CLAIMS}/goes"))?;
    cluster.api.create(PODS, &objects::pod("next", NODE, "stays", &["wait"]))?;
    cluster.make(
        &objects::claim("new", &class_of(DRIVERS[1]), "16Mi"),
        &objects::pod("new", NODE, "new", &["wait"]),
    )?;
    let scheduled = |pod: &Value| (pod["spec"]["nodeName"] == NODE).then_some(());
    cluster.api.until(&format!("{PODS}/next"), "bound to its node", BOUND, scheduled)?;
    let of_stays = mounted(cluster, &stays.place)?;
    let there = goes.place.join("file").exists();
    findings.note(there, "while the hub is offline, the volume of a deleted pod stays mounted");

    cluster.edge.restore(setup, Victim::Hub, NODE)?;
    let begun = Instant::now();
    let at_next = place(cluster, &cluster.uid("next")?, &stays.volume, false);
    mounted(cluster, &at_next)?;
    let found = read(&at_next.join("file"), "stays")?;
    findings.same(
        "after the outage, a pod created during it reads what the first one wrote",
        &json!(found),
        &json!("stays"),
    );
    if let Some(node) = cluster.edge.node(NODE) {
        node.check_removed(&goes.uid)?;
    }
    findings.note(true, "after the outage, nothing is left of the pod deleted during it");
    let volume = cluster.bound("new")?;
    let at_new = place(cluster, &cluster.uid("new")?, &text(&volume["metadata"]["name"]), false);
    mounted(cluster, &at_new)?;
    findings.note(true, "after the outage, a claim created during it is bound, and its pod has the volume");
    let same = mounted(cluster, &stays.place)? == of_stays;
    findings.note(same, "the volume of a remaining pod was not remounted");
    cluster.api.until_removed(&format!("{VOLUMES}/{}", goes.volume), BOUND)?;
    findings.note(true, "the volume of the deleted claim is detached and deleted");
    let new = plugin::used(DRIVERS[1], &text(&volume["spec"]["csi"]["volumeHandle"]));
    let of_before = [&stays, &device].map(|pod| plugin::used(pod.driver, &pod.handle));
    plugin::uses(cluster, NODE, of_before.into_iter().chain([new]).collect())?;
    findings.note(
        true,
        format!(
            "the Node reports the volumes in use; all changes are applied {:.1?} after the hub is back",
            begun.elapsed()
        ),
    );
    Ok(())
}
