//! A proxy with placements at the API server and its stock sidecars, as in a pod of the overlay `two-proxies`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::arguments::{Arguments, unix};
use edge_csi_tests::process::Process;
use edge_csi_tests::{port, wait};
use serde_json::{Value, json};

use super::cluster::BOUND;
use super::edge::{STRICT, sidecar_options};
use super::node::start_cable;
use super::objects::LEASES;
use super::part::{Part, Ready};
use super::plane::{Plane, write};
use crate::error::E2eError;
use crate::setup::Setup;

/// The sidecars, with options in addition to the common ones. The overlay disables their election.
const SIDECARS: [(&str, &[&str]); 4] = [
    (
        "csi-provisioner",
        &[STRICT, "--immediate-topology=false", "--kube-api-qps=100", "--kube-api-burst=200"],
    ),
    ("csi-attacher", &[]),
    ("csi-resizer", &["--handle-volume-inuse-error=false"]),
    ("csi-snapshotter", &[]),
];

/// The definitions of the objects in which proxies keep placements.
const DEFINITIONS: [&str; 2] = ["placements", "drivernodes"];

/// A driver and its nodes, and the ports of the hubs, for all proxies of the driver.
#[derive(Debug, Clone, Copy)]
pub(super) struct Served<'a> {
    pub(super) driver: &'a str,
    pub(super) nodes: &'a [&'a str],
    pub(super) hubs: &'a [u16],
}

/// The processes of a pod, which reach hubs and API server only over a cable.
#[derive(Debug)]
pub(super) struct ProxyPod {
    name: &'static str,
    pub(super) socket: PathBuf,
    /// The forwarded addresses: of the API server, and of the hubs.
    ends: Vec<String>,
    page: u16,
    proxy: Part,
    sidecars: Vec<Part>,
    cable: Process,
}

/// Creates the definitions, unless they exist.
pub(super) fn define(setup: &Setup<'_>, plane: &Plane) -> Result<(), E2eError> {
    let folder = setup.components.root().join("deploy/base/crd");
    DEFINITIONS.into_iter().try_for_each(|name| {
        plane.define(folder.join(format!("{name}.yaml")), &format!("{name}.edge-csi.io"))
    })
}

/// Returns the path of the Lease of a driver's active proxy.
pub(super) fn lease_of(driver: &str) -> String {
    format!("{LEASES}/edge-csi-{driver}")
}

impl ProxyPod {
    /// Starts the processes. The proxy is a standby at first.
    pub(super) fn start(
        setup: &Setup<'_>,
        plane: &Plane,
        name: &'static str,
        served: Served<'_>,
    ) -> Result<Self, E2eError> {
        let folder = setup.folder(&format!("edge/{name}"))?;
        let (api, page) = (port::free(), port::free());
        let (kubeconfig, socket) = (folder.join("kubeconfig"), folder.join("csi.sock"));
        let mut ends = vec![format!("127.0.0.1:{api}={}", behind(plane, api, &kubeconfig)?)];
        let mut arguments = Arguments::new();
        for hub in served.hubs {
            let port = port::free();
            ends.push(format!("127.0.0.1:{port}=127.0.0.1:{hub}"));
            arguments = arguments.pair("--hub", format!("wss://localhost:{port}"));
        }
        let cable = cable(setup, name, &ends)?;
        let arguments = arguments
            .pair("--node", served.nodes.join(","))
            .pair("--drivername", served.driver)
            .pair("--endpoint", unix(&socket))
            .pair("--route", "topology")
            .pair("--placements", "kubernetes")
            .pair("--kubeconfig", &kubeconfig)
            .pair("--state-dir", folder.join("state"))
            .pair("--drain-timeout", "1s")
            .pair("--http-endpoint", format!("127.0.0.1:{page}"))
            .flag("-vv")
            .dialer(&setup.certificates.proxy);
        let (log, ready) = (format!("proxy-{name}"), Ready::Socket(socket.clone()));
        let proxy = Part::start(setup, log, &setup.components.proxy, arguments, ready)?;
        let mut sidecars = Vec::new();
        for (sidecar, more) in SIDECARS {
            let arguments = sidecar_options(Arguments::new(), (&socket, &kubeconfig), more);
            let program = setup.components.sidecar(sidecar);
            sidecars.push(Part::start(
                setup,
                format!("{sidecar}-{name}"),
                &program,
                arguments,
                Ready::AtOnce,
            )?);
        }
        Ok(Self { name, socket, ends, page, proxy, sidecars, cable })
    }

    /// Whether the proxy is the active one, and connected.
    pub(super) fn is_active(&self) -> bool {
        is_ready(self.page)
    }

    /// Waits until the proxy is the active one.
    pub(super) fn until_active(&mut self) -> Result<(), E2eError> {
        let page = self.page;
        self.proxy.ready_within(BOUND, "/readyz", || is_ready(page))
    }

    pub(super) fn kill(&mut self) {
        self.proxy.kill();
        self.sidecars.iter_mut().for_each(Part::kill);
    }

    /// Freezes all processes, or lets them continue.
    pub(super) fn freeze(&self, frozen: bool) {
        let parts = self.sidecars.iter().chain([&self.proxy]).filter_map(Part::process);
        for process in parts.chain([&self.cable]) {
            if frozen { process.freeze() } else { process.thaw() }
        }
    }

    /// Freezes the cable: connections stay open, and nothing passes.
    pub(super) fn isolate(&self) {
        self.cable.freeze();
    }

    /// Waits until the proxy has ended by itself, and returns the last line of its log. A sidecar ends at its next call.
    pub(super) fn ended(&mut self) -> Option<String> {
        let proxy = &mut self.proxy;
        let tail = wait::poll_every(Duration::from_millis(100), BOUND, || proxy.ended())?;
        Some(tail.lines().last().unwrap_or_default().to_owned())
    }

    /// Ends the pod in order.
    pub(super) fn end(&mut self) -> Result<(), E2eError> {
        let ended = self.proxy.end();
        self.kill();
        ended
    }

    /// Starts all again, as kubelet does.
    pub(super) fn restart(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.kill();
        // The ports are free once the previous process has ended.
        self.cable.kill();
        self.cable = cable(setup, self.name, &self.ends)?;
        self.proxy.restart(setup)?;
        self.sidecars.iter_mut().try_for_each(|sidecar| sidecar.revive(setup))
    }

    /// Starts what has ended again, as kubelet does.
    pub(super) fn revive(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        for part in self.sidecars.iter_mut().chain([&mut self.proxy]) {
            if part.ended().is_some() {
                part.revive(setup)?;
            }
        }
        Ok(())
    }
}

fn is_ready(page: u16) -> bool {
    wait::is_ready(([127, 0, 0, 1], page).into())
}

fn cable(setup: &Setup<'_>, name: &str, ends: &[String]) -> Result<Process, E2eError> {
    start_cable(setup, &format!("cable-{name}"), Arguments::new(), ends)
}

/// Writes a kubeconfig with the API server at a port of this machine, and returns the address of the API server.
fn behind(plane: &Plane, port: u16, kubeconfig: &Path) -> Result<String, E2eError> {
    let path = plane.kubeconfig.clone();
    let file = |cause| E2eError::File { path: path.clone(), cause };
    let text = std::fs::read_to_string(&path).map_err(file)?;
    let mut config: Value = serde_json::from_str(&text).map_err(|cause| file(cause.into()))?;
    let server = &mut config["clusters"][0]["cluster"]["server"];
    let address = server.as_str().unwrap_or_default().trim_start_matches("https://").to_owned();
    *server = json!(format!("https://127.0.0.1:{port}"));
    write(kubeconfig, &config.to_string())?;
    Ok(address)
}
