//! One of the edge-csi nodes: its drivers, its agent, and the cable to the hub.

use std::path::PathBuf;
use std::process::Command;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::port;
use edge_csi_tests::process::Process;

use super::edge::{DRIVERS, FOREIGN, NODES, start};
use super::part::{Part, Ready};
use crate::error::E2eError;
use crate::link_condition::LinkCondition;
use crate::sanity::SECRET;
use crate::setup::Setup;

/// The driver's log message for a created volume.
pub(super) const MADE: &str = "volume created";

/// A node with its drivers, its agent and the cable to the hub. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) name: &'static str,
    pub(super) drivers: Vec<Part>,
    pub(super) agent: Part,
    cable: Cable,
    pub(super) folder: PathBuf,
    /// The number of boots so far.
    pub(super) boots: u32,
}

/// The cable from a node to the hub, which can be cut.
#[derive(Debug)]
struct Cable {
    log: String,
    /// The listening and the forwarding address.
    ends: String,
    process: Option<Process>,
}

impl Node {
    /// Starts the drivers, then the agent, and waits until the agent is connected to the hub.
    pub(super) fn start(setup: &Setup<'_>, name: &'static str, hub: u16) -> Result<Self, E2eError> {
        let folder = setup.folder(name)?;
        let mut drivers = Vec::new();
        let mut arguments = Arguments::new();
        for driver in DRIVERS {
            let socket = folder.join(format!("{driver}.sock"));
            let options = Arguments::driver(driver, &socket, name, &folder.join(driver))
                .pair("--mutable-parameters", "iops")
                .flag("-v");
            let log = format!("driver-{name}-{driver}");
            arguments = arguments.serving(driver, &socket);
            let program = &setup.components.hostpath_driver;
            drivers.push(Part::start(setup, log, program, options, Ready::Socket(socket))?);
        }
        if name == NODES[0] {
            let socket = folder.join("foreign.sock");
            let options = Arguments::new()
                .pair("--endpoint", &socket)
                .pair("--drivername", FOREIGN)
                .flag("--no-controller-expansion")
                .pair("--secret", SECRET);
            arguments = arguments.serving(FOREIGN, &socket);
            let program = &setup.components.mock_driver;
            drivers.push(Part::start(setup, FOREIGN.to_owned(), program, options, Ready::Socket(socket))?);
        }
        let dialled = port::free();
        let ends = format!("127.0.0.1:{dialled}=127.0.0.1:{hub}");
        let mut cable = Cable { log: format!("cable-{name}"), ends, process: None };
        cable.connect(setup, LinkCondition::Clean)?;
        let arguments = arguments
            .pair("--nodeid", name)
            .pair("--hub", format!("wss://localhost:{dialled}"))
            .pair("--state-dir", folder.join("agent"))
            .pair("--kubelet-socket-dir", folder.join("shim"))
            .dialer(&setup.certificates.issue(&[name]));
        let agent = start(&format!("agent-{name}"), &setup.components.agent, arguments, setup)?;
        Ok(Self { name, drivers, agent, cable, folder, boots: 0 })
    }

    /// Stops agent and drivers, and returns the result of each stop.
    pub(super) fn stop(self) -> Vec<Result<(), E2eError>> {
        let mut ends = vec![self.agent.stop()];
        drop(self.cable);
        ends.extend(self.drivers.into_iter().map(Part::stop));
        ends
    }

    /// Connects the cable to the hub.
    pub(crate) fn connect(&mut self, setup: &Setup<'_>, condition: LinkCondition) -> Result<(), E2eError> {
        self.cable.connect(setup, condition)
    }

    /// Disconnects the cable: the node is offline.
    pub(crate) fn cut(&mut self) {
        self.cable.process = None;
    }

    /// Returns the process of a driver.
    pub(crate) fn driver(&self, name: &str) -> Option<&Process> {
        DRIVERS
            .iter()
            .position(|driver| *driver == name)
            .and_then(|place| self.drivers.get(place))
            .and_then(Part::process)
    }

    /// Returns the path of the driver's own socket.
    pub(crate) fn driver_socket(&self, driver: &str) -> PathBuf {
        self.folder.join(format!("{driver}.sock"))
    }

    /// Returns the path of the driver's socket for kubelet.
    pub(crate) fn kubelet_socket(&self, driver: &str) -> PathBuf {
        self.folder.join("shim").join(format!("{driver}.sock"))
    }

    /// Returns the path of a volume's data in a driver.
    pub(crate) fn data(&self, driver: &str, volume: &str) -> PathBuf {
        self.folder.join(driver).join("data").join(volume)
    }

    /// Lists the volumes and snapshots of a driver, as records and as data.
    pub(crate) fn holds(&self, driver: &str) -> Vec<String> {
        let folders = ["data", "volumes", "snapshots"].map(|part| self.folder.join(driver).join(part));
        let entries = folders.iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten());
        entries.flatten().map(|entry| entry.path().display().to_string()).collect()
    }

    /// Reads a driver's volume records.
    pub(crate) fn records(&self, driver: &str) -> Vec<serde_json::Value> {
        let folder = self.folder.join(driver).join("volumes");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.filter_map(|file| serde_json::from_slice(&std::fs::read(file.path()).ok()?).ok()).collect()
    }

    /// Returns the number of volumes of a driver.
    pub(crate) fn volumes(&self, driver: &str) -> usize {
        let folder = self.folder.join(driver).join("volumes");
        std::fs::read_dir(folder).into_iter().flatten().count()
    }
}

impl Cable {
    fn connect(&mut self, setup: &Setup<'_>, condition: LinkCondition) -> Result<(), E2eError> {
        // The port is free once the previous process has ended.
        self.process = None;
        let options = Arguments::new().flags(condition.cable().unwrap_or_default());
        self.process = Some(start_cable(setup, &self.log, options, std::slice::from_ref(&self.ends))?);
        Ok(())
    }
}

/// Starts a cable with these options between these listening and forwarding addresses.
pub(super) fn start_cable(
    setup: &Setup<'_>,
    log: &str,
    options: Arguments,
    ends: &[String],
) -> Result<Process, E2eError> {
    let arguments = ends.iter().fold(options, |all, ends| all.pair("--tcp", ends));
    let mut command = Command::new(&setup.components.cable);
    Ok(Process::respawn(setup.logs, log, command.args(arguments))?)
}
