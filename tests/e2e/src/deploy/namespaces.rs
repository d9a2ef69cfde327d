//! Runs the nodes and their pods in separate namespaces: network, processes and mounts end with the namespaces. Loop devices
//! and control groups, which no namespace holds, are searched for and removed afterwards.

use std::path::Path;
use std::process::{Command, ExitCode};

use serde_json::{from_str, to_string};

use super::{pods, read, write};
use crate::enclosure::{self, UNSHARE};
use crate::error::E2eError;
use crate::setup::Setup;
use crate::table::Fact;
use crate::{Environment, leftovers};

/// The variable that makes this program run only the pods.
const INSIDE: &str = "EDGE_CSI_E2E_PODS";

/// The file with the facts, below the scratch folder.
const FACTS: &str = "facts.json";

/// Returns the name of a run's control groups.
pub(super) fn control_group(scratch: &Path) -> String {
    // The last part of the path is the same in every run.
    scratch.display().to_string().trim_start_matches('/').replace('/', "-")
}

/// Runs this program again in the namespaces, and returns the facts that it found and anything that it left behind.
pub(super) fn run(setup: Setup<'_>) -> Result<Vec<Fact>, E2eError> {
    let program = std::env::current_exe();
    let missing = |cause| E2eError::CannotRun {
        program: "setpriv and unshare".to_owned(),
        cause,
        fix: "install util-linux",
    };
    let mut inside = Command::new("setpriv");
    inside.args(UNSHARE).arg("--net").arg(program.map_err(missing)?);
    let status = inside.env(enclosure::INSIDE, setup.scratch).env(INSIDE, "").status().map_err(missing)?;
    let found = read(&setup.scratch.join(FACTS)).ok().and_then(|text| from_str::<Vec<Fact>>(&text).ok());
    let mut facts = found.unwrap_or_default();
    if !status.success() || facts.is_empty() {
        facts.push(Fact { words: format!("the run in the namespaces ended with {status}"), right: false });
    }
    let left = loop_devices(setup.scratch);
    facts.push(Fact { words: format!("loop devices that are left: {left:?}"), right: left.is_empty() });
    leftovers::remove_cgroups(&leftovers::cgroups(&control_group(setup.scratch)));
    Ok(facts)
}

/// Runs the pods if this process is the one in the namespaces.
pub(crate) fn inside(environment: &Environment) -> Option<ExitCode> {
    std::env::var_os(INSIDE)?;
    let run = || {
        let (scratch, logs) = (&environment.scratch, environment.logs.join("deploy-pods"));
        let setup = Setup {
            components: environment.components()?,
            certificates: &environment.certificates,
            scratch,
            logs: &logs,
        };
        pods::run(setup, &environment.root)
    };
    let facts = run().unwrap_or_else(|error| vec![Fact { words: error.to_string(), right: false }]);
    let written = to_string(&facts).map(|text| write(&environment.scratch.join(FACTS), &text));
    Some(if matches!(written, Ok(Ok(()))) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Detaches the loop devices of a finished run, and returns their names.
fn loop_devices(scratch: &Path) -> Vec<String> {
    let mut left = Vec::new();
    // All mounts of the files have ended, so the kernel's paths are relative to the unmounted filesystem: volumes are found by
    // id.
    let logs: String = pods::NODES
        .iter()
        .filter_map(|node| read(&scratch.join(node.name).join("kubelet.log")).ok())
        .collect();
    for (device, file) in leftovers::all_loop_devices() {
        let Some(path) = file.trim_end_matches(" (deleted)").strip_suffix("/disk.img") else { continue };
        let id = path.rsplit('/').next().unwrap_or_default();
        let made = pods::volumes(scratch).join("data").join(id).exists();
        if Path::new(path).starts_with(scratch) || made || logs.contains(id) {
            detach(&device, &mut left);
        }
    }
    left
}

/// Detaches a loop device after the devices stacked on it: kubelet attaches one over a block volume to keep its number stable.
fn detach(device: &str, left: &mut Vec<String>) {
    left.push(device.to_owned());
    let over =
        Command::new("losetup").args(["--noheadings", "--output", "NAME", "--associated", device]).output();
    let over = over.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    over.lines().for_each(|device| detach(device.trim(), left));
    // A device that cannot be detached is also reported.
    let _ = Command::new("losetup").arg("--detach").arg(device).status();
}
