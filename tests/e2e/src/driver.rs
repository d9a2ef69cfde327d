//! A driver under test, directly or behind a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::cluster::{ClusterBuilder, ClusterError, DRIVER, Programs, Role, TestCluster};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;

use super::error::E2eError;
use super::link_condition::LinkCondition;
use super::on_runtime;
use super::setup::{Folders, Setup};
use super::test_run::{Route, Subject, TestRun};

/// Drain timeout of hub and agent: shorter than a sidecar's timeout, so that the sidecar receives the status of open calls.
const DRAIN: [&str; 2] = ["--drain-timeout", "1s"];

/// The CSI name of the mock driver.
pub(crate) const MOCK: &str = "mock.csi.edge";

/// The CSI name of the driver that returns the status code selected by the request.
pub(crate) const CLASSIFIED: &str = "classified.csi.edge";

/// The CSI name of the driver that registers with the agent.
const REGISTERED: &str = "example.csi.edge";

/// The name of that driver's registration socket.
pub(crate) const REGISTRATION: &str = "example-reg.sock";

/// A driver, and the processes between it and its client.
#[derive(Debug)]
pub(crate) struct DriverUnderTest {
    cluster: TestCluster,
    /// The processes of an example that relays calls.
    embedded: Vec<Process>,
    /// The socket for Node calls.
    pub(crate) node: PathBuf,
    /// The socket for Controller calls; `None` if these use the socket for Node calls.
    pub(crate) controller: Option<PathBuf>,
}

impl DriverUnderTest {
    /// Starts every process, each after its predecessor is ready.
    pub(crate) fn start(test_run: TestRun, setup: Setup<'_>) -> Result<Self, E2eError> {
        let (kind, fault) = match test_run.route {
            Route::Direct | Route::Shim | Route::Embedded(_) => (LinkKind::Uds, LinkCondition::Clean),
            Route::Relayed(kind, condition) => (kind, condition),
        };
        let driver = match test_run.subject {
            Subject::Hostpath | Subject::HostpathBlock => DRIVER,
            Subject::Mock => MOCK,
        };
        let mut this = Self::new(settings(kind, fault, driver, setup))?;
        match test_run.subject {
            Subject::Hostpath | Subject::HostpathBlock => {
                this.cluster.start_driver(&["--attach-limit", "20", "--mutable-parameters", "iops"])?;
            }
            Subject::Mock => this.start_mock(setup)?,
        }
        this.ready(Role::Driver)?;
        match test_run.route {
            Route::Direct => {}
            Route::Relayed(..) => this.relay()?,
            Route::Embedded(example) => {
                let (processes, socket) = example.start(&this.node, setup)?;
                (this.embedded, this.controller) = (processes, Some(socket));
            }
            Route::Shim => {
                this.start_hub()?;
                let shim = setup.scratch.join("shim");
                let agent = this.cluster.driver_option().pair("--kubelet-socket-dir", &shim);
                this.start_agent(agent)?;
                this.node = shim.join(format!("{driver}.sock"));
            }
        }
        Ok(this)
    }

    /// Starts the mock driver without a relay.
    pub(crate) fn mock(setup: Setup<'_>) -> Result<Self, E2eError> {
        let mut this = Self::new(settings(LinkKind::Uds, LinkCondition::Clean, MOCK, setup))?;
        this.start_mock(setup)?;
        this.ready(Role::Driver)?;
        Ok(this)
    }

    fn start_mock(&mut self, setup: Setup<'_>) -> Result<(), ClusterError> {
        let arguments = Arguments::new().pair("--endpoint", &self.node).pair("--drivername", MOCK);
        self.cluster.start_other_driver(&setup.components.mock_driver, arguments)
    }

    /// Starts a driver behind a relay; the agent finds the driver by its registration socket in `registry`.
    pub(crate) fn registered(setup: Setup<'_>, registry: &Path) -> Result<Self, E2eError> {
        std::fs::create_dir_all(registry)
            .map_err(|cause| E2eError::Folder { path: registry.to_owned(), cause })?;
        let mut this = Self::new(settings(LinkKind::Uds, LinkCondition::Clean, REGISTERED, setup))?;
        let registration = registry.join(REGISTRATION);
        let arguments = Arguments::new()
            .pair("--registration", &registration)
            .pair("--endpoint", &this.node)
            .pair("--drivername", REGISTERED);
        let mut plugin = Process::spawn(
            setup.logs,
            "plugin",
            Command::new(&setup.components.example_plugin).args(arguments),
        )?;
        plugin.ready("its registration socket", || wait::accepts(&registration))?;
        this.cluster.driver = Some(plugin);
        this.start_hub()?;
        this.start_agent(Arguments::new().pair("--plugins-registry", registry))?;
        this.start_proxy()?;
        Ok(this)
    }

    /// Starts a driver behind a relay that returns the status code selected by the request.
    pub(crate) fn classified(setup: Setup<'_>, kind: LinkKind) -> Result<Self, E2eError> {
        let mut this = Self::new(settings(kind, LinkCondition::Clean, CLASSIFIED, setup))?;
        this.start_classified(setup)?;
        this.relay()?;
        Ok(this)
    }

    /// Starts edge-csi-driver without a hub.
    pub(crate) fn offline(setup: Setup<'_>) -> Result<Self, E2eError> {
        let mut this = Self::new(settings(LinkKind::Uds, LinkCondition::Clean, CLASSIFIED, setup))?;
        this.cluster.start_proxy(&this.proxy_options().each_ref().map(String::as_str))?;
        this.proxy_accepts()?;
        Ok(this)
    }

    /// Starts an additional edge-csi-driver without a hub, with this reconnect grace.
    pub(crate) fn waiting(grace: &str, setup: Setup<'_>) -> Result<Self, E2eError> {
        let part = Folders::make(setup, "waiting")?;
        let mut this = Self::new(settings(LinkKind::Uds, LinkCondition::Clean, CLASSIFIED, part.of(setup)))?;
        let [option, state] = this.proxy_options();
        this.cluster.start_proxy(&[&option, &state, "--reconnect-grace", grace])?;
        this.proxy_accepts()?;
        Ok(this)
    }

    /// Starts driver, hub and agent for an edge-csi-driver that was started [`offline`](Self::offline).
    pub(crate) fn come_online(&mut self, setup: Setup<'_>) -> Result<(), E2eError> {
        self.start_classified(setup)?;
        self.start_hub()?;
        let driver = self.cluster.driver_option();
        self.start_agent(driver)
    }

    /// Kills one of the processes as a power cut would.
    pub(crate) fn kill(&mut self, role: Role) {
        self.cluster.kill(role);
    }

    /// Sends SIGTERM to one of the processes.
    pub(crate) fn terminate(&mut self, role: Role) {
        self.cluster.terminate(role);
    }

    /// Stops all processes, the last one first. Each is stopped even if another fails to stop.
    pub(crate) fn stop(self) -> Result<(), E2eError> {
        drop(self.embedded);
        Ok(self.cluster.stop()?)
    }

    fn new(settings: ClusterBuilder) -> Result<Self, E2eError> {
        let cluster = settings.build()?;
        Ok(Self { node: cluster.driver_socket(), controller: None, embedded: Vec::new(), cluster })
    }

    fn relay(&mut self) -> Result<(), E2eError> {
        self.start_hub()?;
        let driver = self.cluster.driver_option();
        self.start_agent(driver)?;
        self.start_proxy()
    }

    fn start_classified(&mut self, setup: Setup<'_>) -> Result<(), E2eError> {
        let node = self.cluster.driver_socket();
        let arguments =
            Arguments::new().flag("driver").pair("--endpoint", node).pair("--drivername", CLASSIFIED);
        self.cluster.start_other_driver(&setup.components.sidecars, arguments)?;
        self.ready(Role::Driver)
    }

    fn start_hub(&mut self) -> Result<(), E2eError> {
        on_runtime(async { Ok(self.cluster.start_hub().await?) })
    }

    fn start_agent(&mut self, options: Arguments) -> Result<(), E2eError> {
        self.cluster.start_agent_with(options.flags(DRAIN))?;
        self.ready(Role::Agent)
    }

    fn start_proxy(&mut self) -> Result<(), E2eError> {
        self.cluster.start_proxy(&self.proxy_options().each_ref().map(String::as_str))?;
        self.ready(Role::Proxy)?;
        self.controller = Some(self.cluster.proxy_socket());
        Ok(())
    }

    fn proxy_options(&self) -> [String; 2] {
        ["--state-dir".to_owned(), self.cluster.path("proxy-state").to_string_lossy().into_owned()]
    }

    fn ready(&mut self, role: Role) -> Result<(), E2eError> {
        on_runtime(async { Ok(self.cluster.ready(role).await?) })
    }

    /// Waits until the proxy accepts calls; a proxy without a hub does not report that it is ready.
    fn proxy_accepts(&mut self) -> Result<(), E2eError> {
        let socket = self.cluster.proxy_socket();
        if let Some(proxy) = &mut self.cluster.proxy {
            proxy.ready("its socket", || wait::accepts(&socket))?;
        }
        self.controller = Some(socket);
        Ok(())
    }
}

fn settings(kind: LinkKind, fault: LinkCondition, driver: &str, setup: Setup<'_>) -> ClusterBuilder {
    let components = setup.components;
    let cluster = TestCluster::builder(kind)
        .host("localhost")
        .driver_name(driver)
        .hub_options(&DRAIN)
        .folders(setup.scratch, setup.logs)
        .certificates(Arc::clone(setup.certificates))
        .programs(Programs {
            hub: components.hub.clone(),
            agent: components.agent.clone(),
            proxy: components.proxy.clone(),
            driver: components.hostpath_driver.clone(),
        });
    match fault.cable() {
        Some(options) => cluster.fault(&components.cable, options),
        None => cluster,
    }
}
