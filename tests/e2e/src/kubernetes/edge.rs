//! The edge-csi processes: one hub, the nodes behind it, and a proxy with its sidecars for each driver.

use std::path::{Path, PathBuf};

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::port;

use super::node::Node;
use super::objects::topology_key;
use super::part::{Part, Ready};
use super::plane::Plane;
use crate::error::E2eError;
use crate::setup::Setup;

/// The two drivers that each node has.
pub(crate) const DRIVERS: [&str; 2] = ["csi-hostpath", "csi-hostpath-second"];

/// The nodes; the first one has a real kubelet.
pub(crate) const NODES: [&str; 4] = ["edge-1", "edge-2", "edge-3", "edge-4"];

/// A third-party driver that reports no topology, requires a secret in each call, and expands volumes only on the node.
/// The driver runs on the first node.
pub(crate) const FOREIGN: &str = "mock.csi.edge";

/// The sidecars of each driver, with options in addition to those of the guide.
const SIDECARS: [(&str, &[&str]); 4] = [
    ("csi-provisioner", &["--immediate-topology=false", "--kube-api-qps=100", "--kube-api-burst=200"]),
    ("csi-attacher", &["--kube-api-qps=100", "--kube-api-burst=200"]),
    ("csi-resizer", &[]),
    ("csi-snapshotter", &[GROUPS]),
];

/// The option that enables snapshots of several volumes at one point in time.
const GROUPS: &str = "--feature-gates=CSIVolumeGroupSnapshot=true";

/// The option that makes the provisioner request only the node of the pod.
pub(crate) const STRICT: &str = "--strict-topology";

/// The edge-csi processes. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Edge {
    hub: Part,
    /// The port of the hub for websockets.
    pub(crate) hub_port: u16,
    pub(crate) nodes: Vec<Node>,
    proxies: Vec<Part>,
    sidecars: Vec<Part>,
}

/// The processes that take part in the creation of a volume and can be killed during it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Victim {
    Provisioner,
    Proxy,
    Hub,
    Agent,
    Driver,
}

impl Edge {
    /// Starts hub, nodes and proxies, all connected. Sidecars start later.
    pub(crate) fn start(setup: &Setup<'_>, plane: &Plane) -> Result<Self, E2eError> {
        let port = port::free();
        setup.folder("edge")?;
        let hub = start_hub(setup, plane, port)?;
        let nodes =
            NODES.into_iter().map(|name| Node::start(setup, name, port)).collect::<Result<Vec<_>, _>>()?;
        let mut proxies = Vec::new();
        for driver in DRIVERS {
            let arguments = Arguments::new().pair("--node", NODES.join(","));
            proxies.push(start_proxy(setup, driver, arguments, port)?);
        }
        let arguments =
            Arguments::new().pair("--node", NODES[0]).pair("--topology-key", topology_key(FOREIGN));
        proxies.push(start_proxy(setup, FOREIGN, arguments, port)?);
        Ok(Self { hub, hub_port: port, nodes, proxies, sidecars: Vec::new() })
    }

    /// Starts the sidecars of all drivers, and the snapshot controller.
    pub(crate) fn start_sidecars(&mut self, setup: &Setup<'_>, plane: &Plane) -> Result<(), E2eError> {
        let name = "snapshot-controller";
        let arguments = Arguments::new().pair("--kubeconfig", &plane.kubeconfig).flag("--v=4").flag(GROUPS);
        let program = setup.components.sidecar(name);
        self.sidecars.push(Part::start(setup, name.to_owned(), &program, arguments, Ready::AtOnce)?);
        for driver in DRIVERS {
            for (name, more) in SIDECARS {
                let strict: &[&str] = if name == "csi-provisioner" { &[STRICT] } else { &[] };
                self.sidecars.push(sidecar(setup, plane, name, driver, &[more, strict].concat())?);
            }
        }
        self.sidecars.push(sidecar(setup, plane, "csi-provisioner", FOREIGN, &[STRICT])?);
        self.sidecars.push(sidecar(setup, plane, "csi-attacher", FOREIGN, &[])?);
        self.sidecars.push(sidecar(setup, plane, "csi-resizer", FOREIGN, &[])?);
        Ok(())
    }

    /// Replaces the first driver's provisioner by one with other options.
    pub(crate) fn provision_with(
        &mut self,
        setup: &Setup<'_>,
        plane: &Plane,
        options: &[&str],
    ) -> Result<(), E2eError> {
        let (name, more) = SIDECARS[0];
        self.end_provisioner();
        self.sidecars.push(sidecar(setup, plane, name, DRIVERS[0], &[more, options].concat())?);
        Ok(())
    }

    /// Stops the first driver's provisioner.
    pub(crate) fn end_provisioner(&mut self) {
        let ended = sidecar_name(SIDECARS[0].0, DRIVERS[0]);
        self.sidecars.retain(|sidecar| sidecar.name != ended);
    }

    /// Returns the node with this name.
    pub(crate) fn node(&self, name: &str) -> Option<&Node> {
        self.nodes.iter().find(|node| node.name == name)
    }

    /// Returns the drivers of a node, and their sockets for kubelet.
    pub(crate) fn kubelet_sockets(&self, node: &str) -> Vec<(&'static str, PathBuf)> {
        let foreign = (node == NODES[0]).then_some(FOREIGN);
        let drivers = DRIVERS.into_iter().chain(foreign);
        let node = self.node(node);
        node.into_iter().flat_map(|node| drivers.clone().map(|it| (it, node.kubelet_socket(it)))).collect()
    }

    /// Restarts the agent of a node, with these options in place of earlier additional ones.
    pub(crate) fn restart_agent(
        &mut self,
        setup: &Setup<'_>,
        node: &str,
        options: &[&str],
    ) -> Result<(), E2eError> {
        let options = Arguments::new().flags(options);
        let mut found = self.nodes.iter_mut().filter(|found| found.name == node);
        found.try_for_each(|node| node.agent.restart_with(setup, options.clone()))
    }

    /// Kills a process that serves the first driver on a node.
    pub(crate) fn kill(&mut self, victim: Victim, node: &str) {
        self.parts(victim, node).for_each(Part::kill);
    }

    /// Restarts the killed processes.
    pub(crate) fn restore(&mut self, setup: &Setup<'_>, victim: Victim, node: &str) -> Result<(), E2eError> {
        self.parts(victim, node).try_for_each(|part| part.restart(setup))
    }

    fn parts(&mut self, victim: Victim, node: &str) -> Box<dyn Iterator<Item = &mut Part> + '_> {
        let node = self.nodes.iter_mut().find(|found| found.name == node);
        match victim {
            Victim::Provisioner => {
                let name = sidecar_name(SIDECARS[0].0, DRIVERS[0]);
                Box::new(self.sidecars.iter_mut().filter(move |sidecar| sidecar.name == name))
            }
            Victim::Proxy => Box::new(self.proxies.first_mut().into_iter()),
            Victim::Hub => Box::new(std::iter::once(&mut self.hub)),
            Victim::Agent => Box::new(node.map(|node| &mut node.agent).into_iter()),
            Victim::Driver => Box::new(node.and_then(|node| node.drivers.first_mut()).into_iter()),
        }
    }

    /// Kills the sidecars of all drivers, so that they do not take part in a measurement.
    pub(crate) fn kill_sidecars(&mut self) {
        self.sidecars.iter_mut().for_each(Part::kill);
    }

    /// Restarts the sidecars of all drivers.
    pub(crate) fn restart_sidecars(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.sidecars.iter_mut().try_for_each(|sidecar| sidecar.restart(setup))
    }

    /// Restarts sidecars that have ended, as kubelet does: sidecars exit when their proxy dies.
    pub(crate) fn revive_sidecars(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        for sidecar in &mut self.sidecars {
            if sidecar.ended().is_some() {
                sidecar.restart(setup)?;
            }
        }
        Ok(())
    }

    /// Restarts all sidecars of the first driver: each exits at its first call after its proxy was killed, which may be
    /// much later.
    pub(crate) fn renew_sidecars(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        let names = SIDECARS.map(|(name, _)| sidecar_name(name, DRIVERS[0]));
        let mut of_the_first = self.sidecars.iter_mut().filter(|sidecar| names.contains(&sidecar.name));
        of_the_first.try_for_each(|sidecar| sidecar.restart(setup))
    }

    /// Returns the sidecars that have ended.
    pub(crate) fn ended_sidecars(&mut self) -> Vec<String> {
        let ended = |sidecar: &mut Part| Some(format!("{}: {}", sidecar.name.clone(), sidecar.ended()?));
        self.sidecars.iter_mut().filter_map(ended).collect()
    }

    /// Kills the sidecars, and stops the edge-csi processes; each is stopped even if another fails to stop.
    pub(crate) fn stop(self) -> Result<(), E2eError> {
        drop(self.sidecars);
        let mut ends: Vec<Result<(), E2eError>> = self.proxies.into_iter().map(Part::stop).collect();
        for node in self.nodes {
            ends.extend(node.stop());
        }
        ends.push(self.hub.stop());
        ends.into_iter().collect()
    }

    /// Returns the log names of the edge-csi processes.
    pub(crate) fn logs() -> Vec<String> {
        let mut names = vec!["hub".to_owned()];
        names.extend(DRIVERS.iter().chain([&FOREIGN]).map(|driver| format!("proxy-{driver}")));
        for node in NODES {
            names.push(format!("agent-{node}"));
            names.extend(DRIVERS.map(|driver| format!("driver-{node}-{driver}")));
        }
        names
    }
}

fn start_proxy(setup: &Setup<'_>, driver: &str, nodes: Arguments, hub: u16) -> Result<Part, E2eError> {
    let arguments = nodes
        .pair("--drivername", driver)
        .pair("--endpoint", unix(&proxy_socket(setup, driver)))
        .pair("--hub", format!("wss://localhost:{hub}"))
        .pair("--route", "topology")
        .pair("--state-dir", setup.scratch.join("edge").join(driver))
        .dialer(&setup.certificates.proxy);
    start(&format!("proxy-{driver}"), &setup.components.proxy, arguments, setup)
}

fn start_hub(setup: &Setup<'_>, plane: &Plane, port: u16) -> Result<Part, E2eError> {
    let socket = setup.scratch.join("edge/hub.sock");
    let arguments = hub_options(setup, &socket, port).pair("--kubeconfig", &plane.kubeconfig);
    start("hub", &setup.components.hub, arguments, setup)
}

/// Returns the options of a hub with this socket, and this port for websockets.
pub(super) fn hub_options(setup: &Setup<'_>, socket: &Path, port: u16) -> Arguments {
    Arguments::new()
        .pair("--listen", unix(socket))
        .pair("--listen", format!("wss://127.0.0.1:{port}"))
        .pair("--allow", "proxy=*:*")
        .listener(&setup.certificates.hub)
}

fn sidecar_name(name: &str, driver: &str) -> String {
    format!("{name}-{driver}")
}

fn sidecar(
    setup: &Setup<'_>,
    plane: &Plane,
    name: &str,
    driver: &str,
    more: &[&str],
) -> Result<Part, E2eError> {
    let socket = proxy_socket(setup, driver);
    let arguments = sidecar_options(Arguments::new(), (&socket, &plane.kubeconfig), more);
    let program = setup.components.sidecar(name);
    Part::start(setup, sidecar_name(name, driver), &program, arguments, Ready::AtOnce)
}

/// Returns the options of a sidecar with this socket and kubeconfig.
pub(crate) fn sidecar_options(
    arguments: Arguments,
    (socket, kubeconfig): (&Path, &Path),
    more: &[&str],
) -> Arguments {
    let arguments = arguments.pair("--kubeconfig", kubeconfig).pair("--csi-address", socket);
    let common = ["--timeout=60s", "--retry-interval-max=30s", "--v=5"];
    arguments.flags(common).flags(more)
}

/// Starts one of several provisioners for the first driver with this host name, which identifies it in the leader election.
pub(super) fn start_rival(
    setup: &Setup<'_>,
    plane: &Plane,
    host: &str,
    options: &[&str],
) -> Result<Part, E2eError> {
    const RENAMED: &str = r#"hostname "$0" && exec "$@""#;
    let (name, more) = SIDECARS[0];
    let program = setup.components.sidecar(name);
    let socket = proxy_socket(setup, DRIVERS[0]);
    let arguments = Arguments::new().flag("--uts").flag("sh").pair("-c", RENAMED).pair(host, &program);
    let arguments =
        sidecar_options(arguments, (&socket, &plane.kubeconfig), &[more, &[STRICT], options].concat());
    Part::start(setup, rival_log(host), Path::new("unshare"), arguments, Ready::AtOnce)
}

/// Returns the log name of the provisioner with this host name.
pub(super) fn rival_log(host: &str) -> String {
    format!("{}-{host}", sidecar_name(SIDECARS[0].0, DRIVERS[0]))
}

/// Starts one of the binaries with a status page, and waits until it is ready.
pub(super) fn start(
    name: &str,
    program: &Path,
    arguments: Arguments,
    setup: &Setup<'_>,
) -> Result<Part, E2eError> {
    let port = port::free();
    let arguments = arguments
        .pair("--drain-timeout", "1s")
        .pair("--http-endpoint", format!("127.0.0.1:{port}"))
        .flag("-vv");
    Part::start(setup, name.to_owned(), program, arguments, Ready::Page(port))
}

/// Returns the path of the socket of a driver's proxy.
fn proxy_socket(setup: &Setup<'_>, driver: &str) -> PathBuf {
    setup.scratch.join("edge").join(format!("{driver}.sock"))
}
