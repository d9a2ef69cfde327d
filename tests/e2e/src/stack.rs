//! The processes of one leg.

use std::path::{Path, PathBuf};
use std::process::Command;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::link::{HubLink, LinkKind};
use edge_csi_tests::process::Process;
use edge_csi_tests::stand::{DRIVER, NODE};
use edge_csi_tests::{port, wait};

use super::certificates::Certificates;
use super::component::Components;
use super::error::RealError;
use super::leg::{Leg, Subject, Way};
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
    pub(crate) fn start(
        leg: Leg,
        components: &Components,
        certificates: &Certificates,
        scratch: &Path,
        logs: &Path,
    ) -> Result<Self, RealError> {
        let node = socket(scratch, "d.sock")?;
        let mut driver = match leg.subject {
            Subject::Hostpath | Subject::HostpathBlock => start_hostpath(components, &node, scratch, logs)?,
            Subject::Mock => {
                let arguments =
                    Arguments::new().pair("--endpoint", &node).pair("--drivername", driver_name(leg));
                Process::spawn(logs, "driver", Command::new(&components.mock_driver).args(arguments))?
            }
        };
        driver.ready("its socket", || wait::accepts(&node))?;
        let mut stack = Self { processes: vec![driver], node, controller: None };
        let driver = driver_name(leg);
        let named = Arguments::new().serving(driver, &stack.node);
        match leg.way {
            Way::Direct => {}
            Way::Relayed(kind, weather) => {
                stack.relay(
                    driver,
                    named,
                    Wiring { kind, weather },
                    components,
                    certificates,
                    scratch,
                    logs,
                )?;
            }
            Way::Shim => {
                let road = Road::new(LinkKind::Uds, scratch)?;
                stack.add("hub", &components.hub, road.hub(certificates), logs)?;
                let shim = scratch.join("shim");
                let agent = road.agent(named, certificates, scratch).pair("--shim", &shim);
                stack.add("agent", &components.agent, agent, logs)?;
                stack.node = socket(&shim, &format!("{driver}.sock"))?;
            }
        }
        Ok(stack)
    }

    /// The mock driver by itself.
    pub(crate) fn mock(components: &Components, scratch: &Path, logs: &Path) -> Result<Self, RealError> {
        let node = socket(scratch, "d.sock")?;
        let arguments = Arguments::new().pair("--endpoint", &node).pair("--drivername", MOCK);
        let mut driver =
            Process::spawn(logs, "driver", Command::new(&components.mock_driver).args(arguments))?;
        driver.ready("its socket", || wait::accepts(&node))?;
        Ok(Self { processes: vec![driver], node, controller: None })
    }

    /// A driver that the agent finds by its registration socket in `registry`, and the way to it.
    pub(crate) fn registered(
        components: &Components,
        certificates: &Certificates,
        registry: &Path,
        scratch: &Path,
        logs: &Path,
    ) -> Result<Self, RealError> {
        std::fs::create_dir_all(registry)
            .map_err(|cause| RealError::Folder { path: registry.to_owned(), cause })?;
        let (node, registration) = (socket(scratch, "d.sock")?, socket(registry, REGISTRATION)?);
        let arguments = Arguments::new()
            .pair("--registration", &registration)
            .pair("--endpoint", &node)
            .pair("--drivername", REGISTERED);
        let mut plugin =
            Process::spawn(logs, "plugin", Command::new(&components.example_plugin).args(arguments))?;
        plugin.ready("its registration socket", || wait::accepts(&registration))?;
        let mut stack = Self { processes: vec![plugin], node, controller: None };
        let found = Arguments::new().pair("--plugins-registry", registry);
        stack.relay(REGISTERED, found, LinkKind::Uds, components, certificates, scratch, logs)?;
        Ok(stack)
    }

    /// A driver that answers as its caller tells it to, and the way to it.
    pub(crate) fn classified(
        components: &Components,
        certificates: &Certificates,
        kind: LinkKind,
        scratch: &Path,
        logs: &Path,
    ) -> Result<Self, RealError> {
        let node = socket(scratch, "d.sock")?;
        let driver = start_classified(components, &node, logs)?;
        let mut stack = Self { processes: vec![driver], node, controller: None };
        let named = Arguments::new().serving(CLASSIFIED, &stack.node);
        stack.relay(CLASSIFIED, named, kind, components, certificates, scratch, logs)?;
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

    #[allow(clippy::too_many_arguments, reason = "each is a part of the way")]
    fn relay(
        &mut self,
        driver: &str,
        drivers: Arguments,
        wiring: impl Into<Wiring>,
        components: &Components,
        certificates: &Certificates,
        scratch: &Path,
        logs: &Path,
    ) -> Result<(), RealError> {
        let road = Road::new(wiring, scratch)?;
        self.add("hub", &components.hub, road.hub(certificates), logs)?;
        if let Some(cable) = &road.cable {
            self.processes.push(Process::spawn(logs, "cable", Command::new(&components.cable).args(cable))?);
        }
        self.add("agent", &components.agent, road.agent(drivers, certificates, scratch), logs)?;
        let controller = socket(scratch, "csi.sock")?;
        let endpoint = road.endpoint(driver, &controller, certificates, scratch);
        self.add("endpoint", &components.endpoint, endpoint, logs)?;
        self.controller = Some(controller);
        Ok(())
    }

    /// edge-csi-driver alone, with nothing behind it.
    pub(crate) fn offline(
        components: &Components,
        certificates: &Certificates,
        scratch: &Path,
        logs: &Path,
    ) -> Result<Self, RealError> {
        let (node, controller) = (socket(scratch, "d.sock")?, socket(scratch, "csi.sock")?);
        let road = Road::new(LinkKind::Uds, scratch)?;
        let arguments = road.endpoint(CLASSIFIED, &controller, certificates, scratch).flag("-vv");
        let mut endpoint =
            Process::spawn(logs, "endpoint", Command::new(&components.endpoint).args(arguments))?;
        endpoint.ready("its socket", || wait::accepts(&controller))?;
        Ok(Self { processes: vec![endpoint], node, controller: Some(controller) })
    }

    /// One more edge-csi-driver with nothing behind it, whose calls wait so long for the hub, and its socket.
    pub(crate) fn waiting(
        grace: &str,
        components: &Components,
        certificates: &Certificates,
        scratch: &Path,
        logs: &Path,
    ) -> Result<(Process, PathBuf), RealError> {
        let scratch = scratch.join("waiting");
        std::fs::create_dir_all(&scratch)
            .map_err(|cause| RealError::Folder { path: scratch.clone(), cause })?;
        let controller = socket(&scratch, "csi.sock")?;
        let road = Road::new(LinkKind::Uds, &scratch)?;
        let arguments = road.endpoint(CLASSIFIED, &controller, certificates, &scratch);
        let arguments = arguments.pair("--reconnect-grace", grace).flag("-vv");
        let mut endpoint =
            Process::spawn(logs, "endpoint-waiting", Command::new(&components.endpoint).args(arguments))?;
        endpoint.ready("its socket", || wait::accepts(&controller))?;
        Ok((endpoint, controller))
    }

    /// Starts all that is behind an edge-csi-driver that was [`offline`](Self::offline).
    pub(crate) fn come_online(
        &mut self,
        components: &Components,
        certificates: &Certificates,
        scratch: &Path,
        logs: &Path,
    ) -> Result<(), RealError> {
        self.processes.push(start_classified(components, &self.node, logs)?);
        let road = Road::new(LinkKind::Uds, scratch)?;
        self.add("hub", &components.hub, road.hub(certificates), logs)?;
        let named = Arguments::new().serving(CLASSIFIED, &self.node);
        self.add("agent", &components.agent, road.agent(named, certificates, scratch), logs)
    }

    /// Starts one of the binaries that have a status page.
    fn add(
        &mut self,
        name: &'static str,
        program: &Path,
        arguments: Arguments,
        logs: &Path,
    ) -> Result<(), RealError> {
        let port = port::free();
        let arguments = arguments.pair("--http", format!("127.0.0.1:{port}")).flag("-vv");
        // What it logged when it ran before has to be there to be searched.
        let mut process = Process::respawn(logs, name, Command::new(program).args(arguments))?;
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

fn start_hostpath(
    components: &Components,
    socket: &Path,
    scratch: &Path,
    logs: &Path,
) -> Result<Process, RealError> {
    let arguments = Arguments::driver(DRIVER, socket, NODE, &scratch.join("driver"))
        .pair("--attach-limit", "20")
        .pair("--mutable-parameters", "iops")
        .flag("-v");
    Ok(Process::spawn(logs, "driver", Command::new(&components.hostpath_driver).args(arguments))?)
}

fn start_classified(components: &Components, node: &Path, logs: &Path) -> Result<Process, RealError> {
    let arguments = Arguments::new().flag("driver").pair("--endpoint", node).pair("--drivername", CLASSIFIED);
    let mut driver = Process::spawn(logs, "driver", Command::new(&components.sidecars).args(arguments))?;
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

    fn hub(&self, certificates: &Certificates) -> Arguments {
        self.link.hub(&certificates.hub).pair("--drain-timeout", DRAIN)
    }

    /// The agent, with the drivers that it is started with.
    fn agent(&self, drivers: Arguments, certificates: &Certificates, scratch: &Path) -> Arguments {
        let agent = self.link.agent(NODE, &scratch.join("agent"), &certificates.agent);
        agent.pair("--drain-timeout", DRAIN).flags(drivers)
    }

    fn endpoint(
        &self,
        driver: &str,
        controller: &Path,
        certificates: &Certificates,
        scratch: &Path,
    ) -> Arguments {
        self.link
            .proxy(driver, &certificates.endpoint)
            .pair("--endpoint", unix(controller))
            .pair("--nodeid", NODE)
            .pair("--state-dir", scratch.join("endpoint"))
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
