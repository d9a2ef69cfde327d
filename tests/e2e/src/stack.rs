//! The processes of one leg.

use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::link::{HubLink, LinkKind};
use edge_csi_tests::process::Process;
use edge_csi_tests::stand::{DRIVER, NODE};
use edge_csi_tests::{port, wait};

use super::error::RealError;
use super::leg::{Leg, Subject, Way};
use super::setup::{Folders, Setup};
use super::weather::{Wiring, cable_option};

/// Name of edge-csi-driver in its certificate.
pub(crate) const PROXY: &str = "csi-proxy";

/// Time for open calls when hub or agent shut down: less than a sidecar waits, so that it is told of it.
const DRAIN: &str = "1s";

/// Longest path that a unix socket takes on Linux.
const SOCKET_PATH: usize = 107;

/// A driver, and what stands between it and csi-sanity.
#[derive(Debug)]
pub(crate) struct Stack {
    /// In the order in which they were started.
    processes: Vec<Process>,
    /// The driver's own socket.
    pub(crate) node: PathBuf,
    /// The socket for the controller; none if it is the driver's own.
    pub(crate) controller: Option<PathBuf>,
}

impl Stack {
    /// Starts every process, each after the one before it is ready.
    pub(crate) fn start(leg: Leg, setup: Setup<'_>) -> Result<Self, RealError> {
        let node = socket(setup.scratch, "d.sock")?;
        let mut driver = match leg.subject {
            Subject::Hostpath | Subject::HostpathBlock => start_hostpath(setup, &node)?,
            Subject::Mock => {
                let arguments =
                    Arguments::new().pair("--endpoint", &node).pair("--drivername", driver_name(leg));
                Process::spawn(
                    setup.logs,
                    "driver",
                    Command::new(&setup.components.mock_driver).args(arguments),
                )?
            }
        };
        driver.ready("its socket", || wait::accepts(&node))?;
        let mut stack = Self { processes: vec![driver], node, controller: None };
        let driver = driver_name(leg);
        let named = Arguments::new().serving(driver, &stack.node);
        match leg.way {
            Way::Direct => {}
            Way::Relayed(kind, weather) => {
                stack.relay(driver, named, Wiring { kind, weather }, setup)?;
            }
            Way::Shim => {
                let road = Road::new(LinkKind::Uds, setup.scratch)?;
                stack.add("hub", &setup.components.hub, road.hub(setup), setup)?;
                let shim = setup.scratch.join("shim");
                let agent = road.agent(named, setup).pair("--shim", &shim);
                stack.add("agent", &setup.components.agent, agent, setup)?;
                stack.node = socket(&shim, &format!("{driver}.sock"))?;
            }
        }
        Ok(stack)
    }

    /// The mock driver by itself.
    pub(crate) fn mock(setup: Setup<'_>) -> Result<Self, RealError> {
        let node = socket(setup.scratch, "d.sock")?;
        let arguments = Arguments::new().pair("--endpoint", &node).pair("--drivername", MOCK);
        let mut driver = Process::spawn(
            setup.logs,
            "driver",
            Command::new(&setup.components.mock_driver).args(arguments),
        )?;
        driver.ready("its socket", || wait::accepts(&node))?;
        Ok(Self { processes: vec![driver], node, controller: None })
    }

    /// A driver that the agent finds by its registration socket in `registry`, and the way to it.
    pub(crate) fn registered(setup: Setup<'_>, registry: &Path) -> Result<Self, RealError> {
        std::fs::create_dir_all(registry)
            .map_err(|cause| RealError::Folder { path: registry.to_owned(), cause })?;
        let (node, registration) = (socket(setup.scratch, "d.sock")?, socket(registry, REGISTRATION)?);
        let arguments = Arguments::new()
            .pair("--registration", &registration)
            .pair("--endpoint", &node)
            .pair("--drivername", REGISTERED);
        let mut plugin = Process::spawn(
            setup.logs,
            "plugin",
            Command::new(&setup.components.example_plugin).args(arguments),
        )?;
        plugin.ready("its registration socket", || wait::accepts(&registration))?;
        let mut stack = Self { processes: vec![plugin], node, controller: None };
        let found = Arguments::new().pair("--plugins-registry", registry);
        stack.relay(REGISTERED, found, LinkKind::Uds, setup)?;
        Ok(stack)
    }

    /// A driver that answers as its caller tells it to, and the way to it.
    pub(crate) fn classified(setup: Setup<'_>, kind: LinkKind) -> Result<Self, RealError> {
        let node = socket(setup.scratch, "d.sock")?;
        let driver = start_classified(setup, &node)?;
        let mut stack = Self { processes: vec![driver], node, controller: None };
        let named = Arguments::new().serving(CLASSIFIED, &stack.node);
        stack.relay(CLASSIFIED, named, kind, setup)?;
        Ok(stack)
    }

    /// Kills one of the processes as a power cut would.
    pub(crate) fn kill(&mut self, name: &str) {
        self.processes.retain(|process| process.name() != name);
    }

    /// Asks one of the processes to stop.
    pub(crate) fn terminate(&self, name: &str) {
        self.processes.iter().filter(|process| process.name() == name).for_each(Process::terminate);
    }

    fn relay(
        &mut self,
        driver: &str,
        drivers: Arguments,
        wiring: impl Into<Wiring>,
        setup: Setup<'_>,
    ) -> Result<(), RealError> {
        let road = Road::new(wiring, setup.scratch)?;
        self.add("hub", &setup.components.hub, road.hub(setup), setup)?;
        if let Some(cable) = &road.cable {
            self.processes.push(Process::spawn(
                setup.logs,
                "cable",
                Command::new(&setup.components.cable).args(cable),
            )?);
        }
        self.add("agent", &setup.components.agent, road.agent(drivers, setup), setup)?;
        let controller = socket(setup.scratch, "csi.sock")?;
        let endpoint = road.endpoint(driver, &controller, setup);
        self.add("endpoint", &setup.components.endpoint, endpoint, setup)?;
        self.controller = Some(controller);
        Ok(())
    }

    /// edge-csi-driver alone, with nothing behind it.
    pub(crate) fn offline(setup: Setup<'_>) -> Result<Self, RealError> {
        let (node, controller) = (socket(setup.scratch, "d.sock")?, socket(setup.scratch, "csi.sock")?);
        let road = Road::new(LinkKind::Uds, setup.scratch)?;
        let arguments = road.endpoint(CLASSIFIED, &controller, setup).flag("-vv");
        let mut endpoint =
            Process::spawn(setup.logs, "endpoint", Command::new(&setup.components.endpoint).args(arguments))?;
        endpoint.ready("its socket", || wait::accepts(&controller))?;
        Ok(Self { processes: vec![endpoint], node, controller: Some(controller) })
    }

    /// One more edge-csi-driver with nothing behind it, whose calls wait so long for the hub, and its socket.
    pub(crate) fn waiting(grace: &str, setup: Setup<'_>) -> Result<(Process, PathBuf), RealError> {
        let part = Folders::make(setup, "waiting")?;
        let setup = part.of(setup);
        let controller = socket(setup.scratch, "csi.sock")?;
        let road = Road::new(LinkKind::Uds, setup.scratch)?;
        let arguments = road.endpoint(CLASSIFIED, &controller, setup);
        let arguments = arguments.pair("--reconnect-grace", grace).flag("-vv");
        let mut endpoint = Process::spawn(
            setup.logs,
            "endpoint-waiting",
            Command::new(&setup.components.endpoint).args(arguments),
        )?;
        endpoint.ready("its socket", || wait::accepts(&controller))?;
        Ok((endpoint, controller))
    }

    /// Starts all that is behind an edge-csi-driver that was [`offline`](Self::offline).
    pub(crate) fn come_online(&mut self, setup: Setup<'_>) -> Result<(), RealError> {
        self.processes.push(start_classified(setup, &self.node)?);
        let road = Road::new(LinkKind::Uds, setup.scratch)?;
        self.add("hub", &setup.components.hub, road.hub(setup), setup)?;
        let named = Arguments::new().serving(CLASSIFIED, &self.node);
        self.add("agent", &setup.components.agent, road.agent(named, setup), setup)
    }

    /// Starts one of the binaries that have a status page.
    fn add(
        &mut self,
        name: &'static str,
        program: &Path,
        arguments: Arguments,
        setup: Setup<'_>,
    ) -> Result<(), RealError> {
        let port = port::free();
        let arguments = arguments.pair("--http", format!("127.0.0.1:{port}")).flag("-vv");
        // What it logged when it ran before has to be there to be searched.
        let mut process = Process::respawn(setup.logs, name, Command::new(program).args(arguments))?;
        process.ready("/readyz", || wait::is_ready(([127, 0, 0, 1], port).into()))?;
        self.processes.push(process);
        Ok(())
    }

    /// Stops all, the last one first. All are stopped even if one of them does not in good order.
    pub(crate) fn stop(self) -> Result<(), RealError> {
        self.processes.into_iter().rev().map(Process::stop).fold(Ok(()), Result::and)?;
        Ok(())
    }
}

fn start_hostpath(setup: Setup<'_>, socket: &Path) -> Result<Process, RealError> {
    let arguments = Arguments::driver(DRIVER, socket, NODE, &setup.scratch.join("driver"))
        .pair("--attach-limit", "20")
        .pair("--mutable-parameters", "iops")
        .flag("-v");
    Ok(Process::spawn(setup.logs, "driver", Command::new(&setup.components.hostpath_driver).args(arguments))?)
}

fn start_classified(setup: Setup<'_>, node: &Path) -> Result<Process, RealError> {
    let arguments = Arguments::new().flag("driver").pair("--endpoint", node).pair("--drivername", CLASSIFIED);
    let mut driver =
        Process::spawn(setup.logs, "driver", Command::new(&setup.components.sidecars).args(arguments))?;
    driver.ready("its socket", || wait::accepts(node))?;
    Ok(driver)
}

/// The way between edge-csi-driver and edge-agent.
struct Road {
    link: HubLink,
    /// What stands between the hub and those that dial it.
    cable: Option<Arguments>,
}

impl Road {
    fn new(wiring: impl Into<Wiring>, scratch: &Path) -> Result<Self, RealError> {
        let Wiring { kind, weather } = wiring.into();
        socket(scratch, "hub.sock")?;
        let link = HubLink::new(kind, "localhost", scratch);
        let Some(options) = weather.cable() else { return Ok(Self { link, cable: None }) };
        let dialled = port::free();
        let ends = format!("127.0.0.1:{dialled}={}", link.address());
        let cable = Arguments::new().flags(options).pair(cable_option(kind), ends);
        Ok(Self { link: link.through(dialled), cable: Some(cable) })
    }

    fn hub(&self, setup: Setup<'_>) -> Arguments {
        self.link.hub(&setup.certificates.hub).pair("--drain-timeout", DRAIN)
    }

    /// The agent, with the drivers that it is started with.
    fn agent(&self, drivers: Arguments, setup: Setup<'_>) -> Arguments {
        let agent = self.link.agent(NODE, &setup.scratch.join("agent"), &setup.certificates.agent);
        agent.pair("--drain-timeout", DRAIN).flags(drivers)
    }

    fn endpoint(&self, driver: &str, controller: &Path, setup: Setup<'_>) -> Arguments {
        self.link
            .proxy(driver, &setup.certificates.endpoint)
            .pair("--endpoint", unix(controller))
            .pair("--nodeid", NODE)
            .pair("--state-dir", setup.scratch.join("endpoint"))
    }
}

/// Name of the mock driver.
pub(crate) const MOCK: &str = "mock.csi.edge";

/// Name of the driver that answers as it is told to.
pub(crate) const CLASSIFIED: &str = "classified.csi.edge";

/// Name of the driver that registers.
const REGISTERED: &str = "example.csi.edge";

/// Name of its registration socket.
pub(crate) const REGISTRATION: &str = "example-reg.sock";

const fn driver_name(leg: Leg) -> &'static str {
    match leg.subject {
        Subject::Hostpath | Subject::HostpathBlock => DRIVER,
        Subject::Mock => MOCK,
    }
}

fn socket(scratch: &Path, name: &str) -> Result<PathBuf, RealError> {
    let path = scratch.join(name);
    if path.as_os_str().len() > SOCKET_PATH { Err(RealError::PathTooLong { path }) } else { Ok(path) }
}
