//! csi-sanity, with every optional part enabled.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::arguments::unix;
use edge_csi_tests::process::Process;

use super::driver::DriverUnderTest;
use super::error::E2eError;
use super::report::{self, Outcomes};
use super::setup::Setup;
use super::test_run::{Subject, TestRun};

/// Time limit of the suite: a run takes a second or two, ten on a busy host, and minutes over bad links.
const BOUND: Duration = Duration::from_secs(300);

/// 1 MiB for each volume: block volumes are fully allocated, and the suite's default is 10 GiB.
const VOLUME: &str = "1048576";
const EXPANDED: &str = "2097152";

/// The secret in every request; no log may contain it.
pub(crate) const SECRET: &str = "canary-5ec2e7-value";

/// The requests with secrets, as the suite's file names them.
const WITH_SECRETS: [&str; 12] = [
    "CreateVolumeSecret",
    "DeleteVolumeSecret",
    "ControllerPublishVolumeSecret",
    "ControllerUnpublishVolumeSecret",
    "ControllerValidateVolumeCapabilitiesSecret",
    "ControllerExpandVolumeSecret",
    "NodeStageVolumeSecret",
    "NodePublishVolumeSecret",
    "CreateSnapshotSecret",
    "DeleteSnapshotSecret",
    "ListSnapshotsSecret",
    "ControllerModifyVolumeSecret",
];

/// Runs the suite. The identity calls also run on the controller's socket, since sidecars start with them.
pub(crate) fn run(
    test_run: TestRun,
    setup: Setup<'_>,
    driver: &DriverUnderTest,
) -> Result<Outcomes, E2eError> {
    let mut arguments =
        vec![flag("csi.endpoint", &unix(&driver.node)), "-csi.testnodevolumeattachlimit".to_owned()];
    arguments
        .extend(driver.controller.as_deref().map(|socket| flag("csi.controllerendpoint", &unix(socket))));
    if test_run.subject == Subject::HostpathBlock {
        arguments.push(flag("csi.testvolumeaccesstype", "block"));
    }
    let mut outcomes = once("sanity", arguments, setup)?;

    if let Some(controller) = driver.controller.as_deref() {
        outcomes.merge(&identity(controller, setup)?);
    }
    Ok(outcomes)
}

/// Runs the identity calls on one socket.
pub(crate) fn identity(socket: &Path, setup: Setup<'_>) -> Result<Outcomes, E2eError> {
    let arguments = vec![flag("csi.endpoint", &unix(socket)), flag("ginkgo.focus", "Identity Service")];
    let identity = once("identity", arguments, setup)?;
    if identity.run() == 0 {
        let path = setup.logs.join("identity.json");
        let cause = "no identity case ran".to_owned();
        return Err(E2eError::Report { path, cause, tail: String::new() });
    }
    Ok(identity)
}

fn once(name: &'static str, mut arguments: Vec<String>, setup: Setup<'_>) -> Result<Outcomes, E2eError> {
    let report = setup.logs.join(name).with_extension("json");
    let secrets = setup.scratch.join("secrets.yaml");
    let mutable = setup.scratch.join("mutable.yaml");
    let text: String = WITH_SECRETS.iter().map(|request| format!("{request}:\n  key: {SECRET}\n")).collect();
    for (path, text) in [(&secrets, text.as_str()), (&mutable, "iops: \"100\"\n")] {
        std::fs::write(path, text).map_err(|cause| E2eError::File { path: path.clone(), cause })?;
    }
    arguments.extend([
        flag("csi.mountdir", &setup.scratch.join("mnt").display().to_string()),
        flag("csi.stagingdir", &setup.scratch.join("stage").display().to_string()),
        flag("csi.secrets", &secrets.display().to_string()),
        flag("csi.testvolumemutableparameters", &mutable.display().to_string()),
        flag("csi.testvolumesize", VOLUME),
        flag("csi.testvolumeexpandsize", EXPANDED),
        flag("ginkgo.json-report", &report.display().to_string()),
        "-ginkgo.no-color".to_owned(),
    ]);
    let mut suite =
        Process::spawn(setup.logs, name, Command::new(&setup.components.csi_sanity).args(arguments))?;
    suite.finish(BOUND)?;
    // The exit code only reports that some case failed; the report has the details.
    report::read(&report, || suite.tail())
}

fn flag(name: &str, value: &str) -> String {
    format!("-{name}={value}")
}
