//! The guide's page on KubeEdge, followed word by word: its processes in place of those of the other cases.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use edge_csi_tests::certificates::Files;
use edge_csi_tests::guide::{KUBEEDGE_PAGE, Mark, script};
use edge_csi_tests::process::Process;

use super::cluster::{KubeEdge, NODE, REPORT};
use crate::error::E2eError;
use crate::kubernetes::cluster::Findings;
use crate::kubernetes::edge::Victim;
use crate::kubernetes::image;
use crate::kubernetes::kubelet;
use crate::kubernetes::plane::write;
use crate::setup::Setup;

/// Host folders that the page uses.
pub(crate) const FOLDERS: [&str; 3] = ["/etc/edge-csi", "/var/lib/edge-csi", "/run/edge-csi"];

/// Time limit for all commands of the page.
const PAGE: Duration = Duration::from_secs(400);

/// The name of the hub on the page.
const HUB: &str = "hub.example.org";

/// Ends the processes of the page with its commands, also if one of them fails.
const END: &str = "trap 'kill $(jobs -p); wait' EXIT\n";

pub(super) fn run(
    setup: &Setup<'_>,
    kubeedge: &mut KubeEdge,
    findings: &mut Findings,
) -> Result<(), E2eError> {
    let folder = setup.folder("guide")?;
    kubelet::separate(&FOLDERS)?;
    certificates(setup, kubeedge)?;
    // Both machines of the page are this one.
    let hosts = folder.join("hosts");
    write(&hosts, &format!("127.0.0.1 localhost {HUB}\n"))?;
    image::run(Command::new("mount").arg("--bind").arg(&hosts).arg("/etc/hosts"))?;
    // A node has one agent.
    kubeedge.cluster.edge.kill(Victim::Agent, NODE);

    let begun = Instant::now();
    let [page, end] = [false, true].map(|is_cleanup| script(KUBEEDGE_PAGE, &[Mark::KubeEdge], is_cleanup));
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", &format!("{END}{page}{end}")]);
    shell.env("PATH", programs(setup, &folder.join("bin"))?);
    let mut process = Process::spawn(setup.logs, "guide", &mut shell)?;
    let is_done = process.finish(PAGE)?;
    findings.note(is_done, format!("the commands of {KUBEEDGE_PAGE}, after {:.1?}", begun.elapsed()));
    if !is_done {
        findings.note(false, process.tail());
    }
    let left = ["data", "volumes"].map(|part| Path::new(FOLDERS[1]).join("volumes").join(part));
    let left: Vec<PathBuf> = left
        .iter()
        .flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .collect();
    findings.note(left.is_empty(), format!("left with the driver of the page: {left:?}"));
    image::run(Command::new("umount").arg("/etc/hosts"))?;
    kubeedge.restart_agent(setup, &[REPORT])
}

/// Writes the files that the page expects, to the folder of both machines.
fn certificates(setup: &Setup<'_>, kubeedge: &KubeEdge) -> Result<(), E2eError> {
    let folder = Path::new(FOLDERS[0]);
    let copy = |from: &Path, to: &str| {
        fs::copy(from, folder.join(to))
            .map(drop)
            .map_err(|cause| E2eError::File { path: from.to_owned(), cause })
    };
    for (names, name) in [([HUB], "hub"), (["csi-proxy"], "csi-proxy"), ([NODE], NODE)] {
        let Files { certificate, key, authority, .. } = setup.certificates.issue(&names);
        copy(&certificate, &format!("{name}.pem"))?;
        copy(&key, &format!("{name}.key"))?;
        copy(&authority, "ca.pem")?;
    }
    copy(&kubeedge.cluster.plane.kubeconfig, "kubeconfig")
}

/// Creates a folder with the programs, by the names of the page. Returns the search path of its commands.
fn programs(setup: &Setup<'_>, folder: &Path) -> Result<String, E2eError> {
    let components = setup.components;
    let (provisioner, attacher) = (components.sidecar("csi-provisioner"), components.sidecar("csi-attacher"));
    let programs = [
        ("edge-hub", &components.hub),
        ("edge-agent", &components.agent),
        ("edge-csi-driver", &components.proxy),
        ("hostpath-driver", &components.hostpath_driver),
        ("node-driver-registrar", &components.registrar),
        ("kubectl", &components.kubernetes),
        ("csi-provisioner", &provisioner),
        ("csi-attacher", &attacher),
    ];
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| E2eError::File { path, cause }
    };
    fs::create_dir_all(folder).map_err(failed(folder))?;
    for (name, program) in programs {
        let link = folder.join(name);
        symlink(program, &link).map_err(failed(&link))?;
    }
    let found = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{found}", folder.display()))
}
