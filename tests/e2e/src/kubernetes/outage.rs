//! A node that is its own volume plugin boots with no hub and no API server in sight.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::{Value, json};

use super::cluster::{BOUND, Cluster, Findings, text};
use super::edge::{DRIVERS, Victim};
use super::objects::{self, CLAIMS, PODS, VOLUMES, class_of};
use super::own::{read, write};
use super::plugin::{self, Mount, OWN};
use crate::error::RealError;
use crate::setup::Setup;

const NODE: &str = OWN[0];

/// A pod of before, and its volume.
#[derive(Debug)]
struct Before {
    uid: String,
    /// The PersistentVolume, and what the driver calls it.
    volume: String,
    handle: String,
    driver: &'static str,
    /// Where it is mounted.
    place: PathBuf,
    device: bool,
}

impl Before {
    /// Claim and pod of this name, until the pod has written its name.
    fn make(cluster: &Cluster, name: &str, driver: &'static str, device: bool) -> Result<Self, RealError> {
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

    /// Where the pod has written.
    fn file(&self) -> PathBuf {
        if self.device { self.place.clone() } else { self.place.join("file") }
    }
}

fn place(cluster: &Cluster, uid: &str, volume: &str, device: bool) -> PathBuf {
    cluster.edge.node(NODE).map(|node| node.place_of(uid, volume, device)).unwrap_or_default()
}

fn mounted(cluster: &Cluster, place: &Path) -> Result<Option<Mount>, RealError> {
    cluster.edge.node(NODE).map(|node| node.mounted(place)).transpose()
}

/// All that pods had is there after the boot, and what changed meanwhile is made up for afterwards.
pub(super) fn offline(
    setup: &Setup<'_>,
    cluster: &mut Cluster,
    findings: &mut Findings,
) -> Result<(), RealError> {
    plugin::with(setup, cluster, findings, &OWN, |cluster, findings| {
        boots(setup, cluster, findings).inspect_err(|_| {
            // The next scenes need them, and what these would say is worth less than the first error.
            let _ = cluster.plane.restore_server(setup);
            let _ = cluster.edge.restore(setup, Victim::Hub, NODE);
        })
    })
}

fn boots(setup: &Setup<'_>, cluster: &mut Cluster, findings: &mut Findings) -> Result<(), RealError> {
    let stays = Before::make(cluster, "stays", DRIVERS[0], false)?;
    let device = Before::make(cluster, "device", DRIVERS[0], true)?;
    let goes = Before::make(cluster, "goes", DRIVERS[1], false)?;

    cluster.edge.kill(Victim::Hub, NODE);
    cluster.plane.lose_server();
    for node in cluster.edge.nodes.iter_mut().filter(|node| node.name == NODE) {
        node.lose_power()?;
        findings.same(
            "hub, API server and power are gone, and mounts",
            &json!(node.mounts().len()),
            &json!(0),
        );
        node.boot(setup)?;
    }
    let begun = Instant::now();
    for (name, pod) in [("stays", &stays), ("device", &device), ("goes", &goes)] {
        mounted(cluster, &pod.place)?;
        findings.same("booted alone, a pod reads", &json!(read(&pod.file(), name)?), &json!(name));
    }
    findings.note(true, format!("all volumes are back after {:.1?}", begun.elapsed()));

    // The cluster goes on while the node hears of nothing.
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
    findings.note(there, "while the hub is away, what a deleted pod had is not touched");

    cluster.edge.restore(setup, Victim::Hub, NODE)?;
    let begun = Instant::now();
    let at_next = place(cluster, &cluster.uid("next")?, &stays.volume, false);
    mounted(cluster, &at_next)?;
    let found = read(&at_next.join("file"), "stays")?;
    findings.same(
        "merged: a pod of meanwhile reads what the first one wrote",
        &json!(found),
        &json!("stays"),
    );
    if let Some(node) = cluster.edge.node(NODE) {
        node.vacated(&goes.uid)?;
    }
    findings.note(true, "merged: nothing is left of the pod that went meanwhile");
    let volume = cluster.bound("new")?;
    let at_new = place(cluster, &cluster.uid("new")?, &text(&volume["metadata"]["name"]), false);
    mounted(cluster, &at_new)?;
    findings.note(true, "merged: a claim of meanwhile is bound, and its pod has it");
    let same = mounted(cluster, &stays.place)? == of_stays;
    findings.note(same, "whose pod stayed was not mounted anew");
    cluster.api.until_gone(&format!("{VOLUMES}/{}", goes.volume), BOUND)?;
    findings.note(true, "the volume of the claim that went is detached and deleted");
    let new = plugin::used(DRIVERS[1], &text(&volume["spec"]["csi"]["volumeHandle"]));
    let of_before = [&stays, &device].map(|pod| plugin::used(pod.driver, &pod.handle));
    plugin::uses(cluster, NODE, of_before.into_iter().chain([new]).collect())?;
    findings.note(
        true,
        format!("the Node says so; all is as it should be {:.1?} after the hub is back", begun.elapsed()),
    );
    Ok(())
}
