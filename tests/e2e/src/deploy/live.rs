//! Runs the guide's commands on an API server, with the sidecars and our programs as processes of this machine: all with the
//! arguments, certificates and rights of the manifests. A claim is created, attached, expanded, restored from a snapshot and
//! deleted. No sidecar may be refused a request, and no volume may be left. The hub is killed meanwhile, and so is a
//! provisioner in the middle of a CreateVolume. There is no kubelet: pods are bound to their node and never run.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::guide::{API_SERVER_PAGES, Mark};
use edge_csi_tests::process::Process;
use edge_csi_tests::{port, wait};
use serde_json::{Value, json};

use super::cluster::TestCluster;
use super::{inner_entries, read, write};
use crate::error::E2eError;
use crate::kubernetes::Plane;
use crate::kubernetes::objects::{
    self, ATTACHMENTS, CLAIMS, CSI_NODES, NODES, SNAPSHOT_CONTENTS, SNAPSHOTS, VOLUMES,
};
use crate::setup::Setup;
use crate::table::Fact;

/// The driver that the overlays name, and the only one of their nodes that exists.
const DRIVER: &str = "csi-hostpath";
const NODE: &str = "edge-1";

/// The objects with which the overlays' sidecars publish the capacities of nodes.
const CAPACITIES: &str = "/apis/storage.k8s.io/v1/namespaces/edge-csi/csistoragecapacities";

/// The pod that owns the capacities.
const POD: &str = "edge-csi-controller-0";

/// Time for all processes to end after SIGTERM.
const STOP: Duration = Duration::from_secs(30);

/// Texts that no program may log, in lower case.
const REFUSALS: [&str; 5] =
    ["forbidden", "unauthorized", "unknown flag", "flag provided but not defined", "panic"];

/// The running programs of an overlay.
struct Live<'a> {
    cluster: TestCluster<'a>,
    overlay: &'static str,
    objects: Vec<Value>,
    processes: BTreeMap<String, Process>,
    /// The hub's ports for websockets and QUIC.
    ports: [u16; 2],
    /// The kubeconfig of the sidecars.
    kubeconfig: PathBuf,
}

/// Runs the guide on the overlay `topology`, or on `sockets`, which neither attaches nor expands.
pub(super) fn run(setup: Setup<'_>, root: &Path, overlay: &'static str) -> Result<Vec<Fact>, E2eError> {
    let cluster = TestCluster::new(setup, root, Plane::start(&setup)?)?;
    let objects = cluster.objects(&cluster.kubectl(["kustomize", &format!("overlays/{overlay}")])?)?;
    let (processes, ports, kubeconfig) = (BTreeMap::new(), [port::free(), port::free()], PathBuf::new());
    let mut live = Live { cluster, overlay, objects, processes, ports, kubeconfig };
    let passed =
        live.node().and_then(|()| live.pages()).and_then(|()| live.drills()).and_then(|()| live.delete());
    live.cluster.note_error(passed);
    live.stop();
    live.search_logs()?;
    Ok(live.cluster.into_facts())
}

impl Live<'_> {
    fn attaches(&self) -> bool {
        self.overlay == "topology"
    }

    /// Returns a path in the scratch folder, as text.
    fn path(&self, path: &str) -> String {
        self.cluster.setup.scratch.join(path).display().to_string()
    }

    /// Creates a node without a kubelet.
    fn node(&self) -> Result<(), E2eError> {
        let [mut node, csi_node] = objects::node(NODE, &[DRIVER]);
        node["metadata"]["labels"]["node-role.kubernetes.io/edge"] = "".into();
        let api = &self.cluster.plane.api;
        api.create(NODES, &node)?;
        api.create(CSI_NODES, &csi_node)?;
        api.merge(&format!("{NODES}/{NODE}/status"), &objects::node_status())?;
        api.merge(&format!("{NODES}/{NODE}"), &json!({"spec": {"taints": null}}))
    }

    /// Runs the guide, and checks the result of each page.
    fn pages(&mut self) -> Result<(), E2eError> {
        for page in API_SERVER_PAGES {
            if page == "expansion.md" && !self.attaches() {
                continue;
            }
            let overlay = format!("overlays/{}", self.overlay);
            // The hub is on this machine.
            let change = |script: String| {
                script.replace("hub.example.org", "localhost").replace("overlays/topology", &overlay)
            };
            let marks = (&[Mark::Run, Mark::Cluster][..], false);
            self.cluster.page(page, marks, self.cluster.setup.scratch, change)?;
            match page {
                "install.md" => self.start()?,
                "dynamic.md" => self.claim_is_bound()?,
                "snapshots.md" => {
                    let snapshot = format!("{SNAPSHOTS}/data-before");
                    self.cluster
                        .until("the snapshot is ready", |c| c.is(&snapshot, "/status/readyToUse", true))?;
                    self.bound("data-restored")?;
                }
                "expansion.md" => self.cluster.until("the volume has grown", |c| {
                    c.any(VOLUMES, |volume| volume["spec"]["capacity"]["storage"] == "2Gi")
                })?,
                "block.md" => self.bound("raw")?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts all programs as their pods would.
    fn start(&mut self) -> Result<(), E2eError> {
        let plugin = format!("plugins/{DRIVER}");
        for folder in ["csi", "state", "run", "node", "node-tls", &plugin, "volumes"] {
            self.cluster.setup.folder(folder)?;
        }
        self.secret_files("edge-hub-tls", "hub-tls")?;
        self.secret_files("edge-csi-driver-tls", "proxy-tls")?;
        self.node_files()?;
        self.start_hub()?;

        let components = self.cluster.setup.components;
        let (volumes, plugin) = (self.path("volumes"), format!("{}/", self.path(&plugin)));
        let mut driver = Command::new(&components.hostpath_driver);
        driver.args(self.arguments(
            ("DaemonSet", "hostpath-driver"),
            &[("KUBE_NODE_NAME", NODE)],
            &[("/plugin/", &plugin), ("=/state", &format!("={volumes}"))],
        )?);
        self.spawn("hostpath-driver", &mut driver)?;

        let [ws, quic] = self.ports;
        let mut agent = Command::new(&components.agent);
        agent.args(self.arguments(
            ("DaemonSet", "edge-agent"),
            &[("KUBE_NODE_NAME", NODE), ("HUB_HOST", "localhost")],
            &[
                ("/var/lib/kubelet/plugins", &self.path("plugins")),
                ("/var/lib/edge-csi", &self.path("node")),
                ("/etc/edge-csi", &self.path("node-tls")),
                ("localhost:10000", &format!("localhost:{ws}")),
                ("localhost:10001", &format!("localhost:{quic}")),
                ("127.0.0.1:9810", "127.0.0.1:0"),
            ],
        )?);
        self.spawn("edge-agent", &mut agent)?;

        let socket = self.path(if self.attaches() { "csi/csi.sock" } else { "csi/edge-1/csi.sock" });
        let mut proxy = Command::new(&components.proxy);
        proxy.args(self.arguments(
            ("StatefulSet", "edge-csi-driver"),
            &[],
            &[
                ("/state/", &format!("{}/", self.path("state"))),
                ("/tls/", &format!("{}/", self.path("proxy-tls"))),
                ("=/csi", &format!("={}", self.path("csi"))),
                ("0.0.0.0:9808", "127.0.0.1:0"),
            ],
        )?);
        proxy.env("CSI_DRIVERNAME", DRIVER).env("CSI_ENDPOINT", format!("unix://{socket}"));
        proxy.env("KUBEEDGE_ENDPOINT", format!("wss://localhost:{ws}"));
        self.spawn("edge-csi-driver", &mut proxy)?;
        let kubelet_socket = self.cluster.setup.scratch.join(format!("node/kubelet-sockets/{DRIVER}.sock"));
        self.process("edge-csi-driver")?.ready("its socket", || wait::accepts(Path::new(&socket)))?;
        self.process("edge-agent")?.ready("its socket for kubelet", || wait::accepts(&kubelet_socket))?;
        self.start_sidecars()
    }

    fn start_hub(&mut self) -> Result<(), E2eError> {
        let [ws, quic] = self.ports;
        let mut hub = Command::new(&self.cluster.setup.components.hub);
        hub.args(self.arguments(
            ("Deployment", "edge-hub"),
            &[],
            &[
                ("/run/edge-csi", &self.path("run")),
                ("/tls/", &format!("{}/", self.path("hub-tls"))),
                ("0.0.0.0:10000", &format!("127.0.0.1:{ws}")),
                ("0.0.0.0:10001", &format!("127.0.0.1:{quic}")),
                ("0.0.0.0:9808", "127.0.0.1:0"),
            ],
        )?);
        self.spawn("edge-hub", &mut hub)
    }

    /// Starts the sidecars with the account's token, and the snapshot controller, which no overlay contains.
    fn start_sidecars(&mut self) -> Result<(), E2eError> {
        self.kubeconfig = self.cluster.kubeconfig_of("edge-csi-controller")?;
        let pod = format!("/api/v1/namespaces/edge-csi/pods/{POD}");
        self.cluster.until("the pod that owns capacities exists", |c| c.object(&pod).map(drop))?;
        let sidecars = self.sidecars();
        self.cluster.note(sidecars.len() > 1, format!("the overlay has the sidecars {sidecars:?}"));
        for sidecar in sidecars {
            self.start_sidecar(&sidecar, &sidecar)?;
        }
        let setup = self.cluster.setup;
        let mut controller = Command::new(setup.components.sidecar("snapshot-controller"));
        controller.arg("--kubeconfig").arg(&self.cluster.plane.kubeconfig);
        controller.arg(format!("--enable-distributed-snapshotting={}", !self.attaches()));
        self.spawn("snapshot-controller", &mut controller)?;
        self.cluster.until("the capacity of the node is published, and belongs to the StatefulSet", |c| {
            c.any(CAPACITIES, |one| one["metadata"]["ownerReferences"][0]["kind"] == "StatefulSet")
        })
    }

    /// Starts the sidecar of a container as a process with this name.
    fn start_sidecar(&mut self, name: &str, container: &str) -> Result<(), E2eError> {
        let program = container.strip_suffix("-edge-1").unwrap_or(container);
        let csi = format!("={}", self.path("csi"));
        let arguments =
            self.arguments(("StatefulSet", container), &[("NAMESPACE", "edge-csi")], &[("=/csi", &csi)])?;
        let node =
            self.container("StatefulSet", container).and_then(|it| environment(it).remove("NODE_NAME"));
        let mut sidecar = Command::new(self.cluster.setup.components.sidecar(program));
        sidecar.args(arguments).arg("--kubeconfig").arg(&self.kubeconfig).arg("-v=5");
        sidecar.env("NAMESPACE", "edge-csi").env("POD_NAME", POD).env("NODE_NAME", node.unwrap_or_default());
        self.spawn(name, &mut sidecar)
    }

    /// Returns the names of the sidecars' containers, without those for the node that does not exist.
    fn sidecars(&self) -> Vec<String> {
        let names = containers(&self.objects, "StatefulSet").filter_map(|it| it["name"].as_str());
        names
            .filter(|name| name.starts_with("csi-") && !name.ends_with("edge-2"))
            .map(ToOwned::to_owned)
            .collect()
    }

    fn claim_is_bound(&mut self) -> Result<(), E2eError> {
        self.bound("data")?;
        if self.attaches() {
            self.cluster.until("the volume is attached", |c| {
                c.any(ATTACHMENTS, |attachment| attachment["status"]["attached"] == true)
            })?;
        }
        let claim = self.cluster.plane.api.read(&format!("{CLAIMS}/data"))?.unwrap_or_default();
        let volume = format!("{VOLUMES}/{}", claim["spec"]["volumeName"].as_str().unwrap_or_default());
        let affinity = "/spec/nodeAffinity/required/nodeSelectorTerms/0/matchExpressions/0/values/0";
        self.cluster.until("the volume is bound to its node", |c| c.is(&volume, affinity, NODE))
    }

    /// Waits until a claim is bound.
    fn bound(&mut self, claim: &str) -> Result<(), E2eError> {
        let path = format!("{CLAIMS}/{claim}");
        self.cluster.until(&format!("the claim {claim} is bound"), |c| c.is(&path, "/status/phase", "Bound"))
    }

    /// Runs the drills of the guide's page on operating: a killed hub, and a killed provisioner.
    fn drills(&mut self) -> Result<(), E2eError> {
        let sidecars = self.sidecars();
        self.process("edge-hub")?.kill();
        self.cluster.claim("hub-dies")?;
        let first = sidecars.first().map_or("", String::as_str);
        self.requested("a volume is requested without a hub", "hub-dies", first)?;
        self.start_hub()?;
        self.bound("hub-dies")?;
        for sidecar in &sidecars {
            let runs = self.process(sidecar)?.runs();
            self.cluster.note(runs, format!("{sidecar} outlives the hub"));
        }
        if !self.attaches() {
            return Ok(());
        }
        self.start_sidecar("next-provisioner", "csi-provisioner")?;
        // A provisioner acquires the lease only after the driver is ready, and a stopped driver is not.
        let log = self.log("next-provisioner");
        self.cluster.until("the next provisioner waits for the lease", |_| {
            logged(&log, "Attempting to acquire leader lease")
        })?;
        let before = self.volumes()?;
        self.process("hostpath-driver")?.freeze();
        self.cluster.claim("lease-lost")?;
        self.requested("the first provisioner requests the volume", "lease-lost", "csi-provisioner")?;
        self.process("csi-provisioner")?.kill();
        self.requested(
            "the next provisioner has the lease, and requests the same volume",
            "lease-lost",
            "next-provisioner",
        )?;
        self.process("hostpath-driver")?.thaw();
        self.bound("lease-lost")?;
        let made = self.volumes()? - before;
        self.cluster.note(made == 1, format!("volumes that the driver has made for one claim: {made}"));
        Ok(())
    }

    /// Waits until a sidecar has logged a CreateVolume for the claim.
    fn requested(&mut self, condition: &str, claim: &str, sidecar: &str) -> Result<(), E2eError> {
        let claim = self.cluster.plane.api.read(&format!("{CLAIMS}/{claim}"))?.unwrap_or_default();
        let uid = claim["metadata"]["uid"].as_str().unwrap_or("no UID").to_owned();
        let log = self.log(sidecar);
        self.cluster.until(condition, |_| {
            let found = read(&log).map_err(|error| error.to_string())?;
            let requests = found
                .lines()
                .any(|line| line.split_once("CreateVolume").is_some_and(|(_, it)| it.contains(&uid)));
            if requests { Ok(()) } else { Err(format!("{}: no CreateVolume with {uid}", log.display())) }
        })
    }

    /// Returns the number of volumes of the driver.
    fn volumes(&self) -> Result<usize, E2eError> {
        let path = self.cluster.setup.scratch.join("volumes/data");
        let entries = fs::read_dir(&path).map_err(|cause| E2eError::Folder { path, cause })?;
        Ok(entries.count())
    }

    /// Deletes all created objects.
    fn delete(&mut self) -> Result<(), E2eError> {
        let c = &mut self.cluster;
        let pods = ["writer", "reader", "block", "hub-dies", "lease-lost"];
        let how = ["--force", "--grace-period=0", "--ignore-not-found"];
        c.kubectl([&["delete", "pod"], &pods[..], &how].concat())?;
        c.until("all is detached", |c| c.none(ATTACHMENTS, |_| true))?;
        c.kubectl(["delete", "-f", "examples/snapshot.yaml", "--wait=false"])?;
        c.until("the snapshot is deleted", |c| c.none(SNAPSHOT_CONTENTS, |_| true))?;
        c.kubectl(["delete", "pvc", "--all", "--wait=false"])?;
        c.until("the volumes are deleted", |c| c.none(VOLUMES, |_| true))?;
        let left = inner_entries(&c.setup.scratch.join("volumes"));
        c.note(left.is_empty(), format!("files that the driver has left: {left:?}"));
        Ok(())
    }

    /// Stops all processes.
    fn stop(&mut self) {
        self.processes.values().for_each(Process::terminate);
        for process in self.processes.values_mut() {
            let ended = process.finish(STOP).map_err(E2eError::from);
            self.cluster.note_error(ended);
        }
    }

    /// Searches the logs for refusals.
    fn search_logs(&mut self) -> Result<(), E2eError> {
        for name in self.processes.keys().filter(|name| *name != "snapshot-controller") {
            let log = read(&self.log(name))?;
            let lines = log.lines().filter(|line| REFUSALS.iter().any(|it| line.to_lowercase().contains(it)));
            let found: Vec<&str> = lines.take(2).collect();
            self.cluster.note(found.is_empty(), format!("refusals in the log of {name}: {found:?}"));
        }
        Ok(())
    }

    /// Returns a container's arguments with their variables expanded and some texts replaced. `given` are variables from its
    /// pod.
    fn arguments(
        &self,
        (kind, name): (&str, &str),
        given: &[(&str, &str)],
        replaced: &[(&str, &str)],
    ) -> Result<Vec<String>, E2eError> {
        let found = self.container(kind, name).and_then(|it| Some((environment(it), it["args"].as_array()?)));
        let (mut variables, arguments) =
            found.ok_or_else(|| E2eError::NoContainer { name: name.to_owned() })?;
        variables.extend(given.iter().copied());
        let filled = |argument: &Value| {
            let argument = argument.as_str().unwrap_or_default().to_owned();
            let variables = variables.iter().map(|(name, value)| (format!("$({name})"), *value));
            let argument = variables.fold(argument, |argument, (name, value)| argument.replace(&name, value));
            if argument.starts_with("--http-endpoint=:") {
                return "--http-endpoint=127.0.0.1:0".to_owned();
            }
            replaced.iter().fold(argument, |argument, (old, new)| argument.replace(old, new))
        };
        Ok(arguments.iter().map(filled).collect())
    }

    fn container(&self, kind: &str, name: &str) -> Option<&Value> {
        containers(&self.objects, kind).find(|container| container["name"] == name)
    }

    /// Writes the files that a pod mounts from a secret.
    fn secret_files(&self, secret: &str, folder: &str) -> Result<(), E2eError> {
        let folder = self.cluster.setup.folder(folder)?;
        for key in ["tls.crt", "tls.key", "ca.crt"] {
            let template = format!("go-template={{{{index .data {key:?} | base64decode}}}}");
            let text = self.cluster.kubectl([
                "get",
                "secret",
                secret,
                "--namespace",
                "edge-csi",
                "--output",
                &template,
            ])?;
            write(&folder.join(key), &text)?;
        }
        Ok(())
    }

    /// Copies the certificate of the node, which the guide has created in a temporary folder.
    fn node_files(&self) -> Result<(), E2eError> {
        let scratch = self.cluster.setup.scratch;
        let made = super::entries(scratch)?.into_iter().find(|path| path.join("ca.key").exists());
        let made = made.unwrap_or_else(|| scratch.join("tmp"));
        for (from, to) in [("edge-1.pem", "tls.crt"), ("edge-1.key", "tls.key"), ("ca.pem", "ca.crt")] {
            write(&scratch.join("node-tls").join(to), &read(&made.join(from))?)?;
        }
        Ok(())
    }

    fn log(&self, process: &str) -> PathBuf {
        self.cluster.setup.logs.join(format!("{process}.log"))
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), E2eError> {
        let process = Process::respawn(self.cluster.setup.logs, name, command)?;
        self.processes.insert(name.to_owned(), process);
        Ok(())
    }

    fn process(&mut self, name: &str) -> Result<&mut Process, E2eError> {
        self.processes.get_mut(name).ok_or_else(|| E2eError::NoProcess { name: name.to_owned() })
    }
}

/// Returns the containers of the objects of a kind.
fn containers<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects
        .iter()
        .filter(move |object| object["kind"] == kind)
        .flat_map(|object| object["spec"]["template"]["spec"]["containers"].as_array().into_iter().flatten())
}

/// Returns the variables of a container. A variable that refers to a field of the pod is empty.
fn environment(container: &Value) -> BTreeMap<&str, &str> {
    let variables = container["env"].as_array().into_iter().flatten();
    variables
        .map(|it| (it["name"].as_str().unwrap_or_default(), it["value"].as_str().unwrap_or_default()))
        .collect()
}

/// Checks that a log contains this text.
fn logged(log: &Path, text: &str) -> Result<(), String> {
    let found = read(log).map_err(|error| error.to_string())?;
    if found.contains(text) { Ok(()) } else { Err(format!("{} has no {text:?}", log.display())) }
}
