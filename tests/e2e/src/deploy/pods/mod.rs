//! Runs the overlay `topology`, then `two-proxies`, as pods under kubelets, and the guide's commands verbatim, including those
//! for nodes. This machine becomes a control plane, a cloud node and an edge node. Each node has a separate network, `/var`,
//! `/run` and `/etc` (`pods/node.sh`). Images are built here (`pods/images.sh`) and not pulled.
//!
//! Not run: the commands of `static.md` for nodes, which need a kernel with NFS and a server; and the commands with docker,
//! which need a builder. Nothing enforces the network policies.

mod two_proxies;

use std::fs::{self, Permissions};
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use edge_csi_tests::guide::{Mark, NODE_PAGES, WITHOUT_NODES};
use edge_csi_tests::process::Process;
use serde_json::{Value, json};

use super::cluster::TestCluster;
use super::namespaces::control_group;
use super::{inner_entries, read, write};
use crate::component::check;
use crate::error::E2eError;
use crate::kubernetes::Plane;
use crate::kubernetes::objects::{CLASSES, NODES as NODE_OBJECTS, PODS, VOLUMES, has_condition};
use crate::setup::Setup;
use crate::table::Fact;

pub(super) struct Node {
    pub(super) name: &'static str,
    address: &'static str,
    /// The first three octets of its pods' addresses.
    pods: &'static str,
    images: &'static [&'static str],
}

const CLOUD: Node = Node {
    name: "cloud-1",
    address: "10.20.0.2",
    pods: "10.244.0",
    images: &[
        "pause",
        "edge-hub",
        "edge-csi-driver",
        "csi-provisioner",
        "csi-attacher",
        "csi-resizer",
        "csi-snapshotter",
    ],
};

const EDGE: Node = Node {
    name: "edge-1",
    address: "10.20.0.3",
    pods: "10.244.1",
    images: &[
        "pause",
        "edge-agent",
        "csi-node-driver-registrar",
        "livenessprobe",
        "hostpath-driver",
        "busybox",
    ],
};

pub(super) const NODES: [Node; 2] = [CLOUD, EDGE];

/// The control plane's address, which is also the nodes' gateway and name server.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 20, 0, 1);

/// The address of the hub's load balancer.
const BALANCER: &str = "192.0.2.10";

/// Time limit for the creation of the hub's service by the guide.
const CREATED: Duration = Duration::from_secs(180);

/// The programs with which the guide's commands act on a node as root.
const REMOTE: [(&str, &str); 2] = [
    ("ssh", r#"exec nsenter --target "$(cat "$NODES/${1#*@}.pid")" --mount -- "${@:2}""#),
    (
        "scp",
        r#"to=${2%%:*}
exec nsenter --target "$(cat "$NODES/${to#*@}.pid")" --mount -- install --mode "$(stat --format %a "$1")" /dev/stdin "${2#*:}" <"$1""#,
    ),
];

/// Returns the driver's folder on the edge node.
pub(super) fn volumes(scratch: &Path) -> PathBuf {
    scratch.join(EDGE.name).join("var/lib/csi-hostpath")
}

/// A cluster with nodes that run pods.
struct Pods<'a> {
    cluster: TestCluster<'a>,
    /// Nodes, and substitutes for other parts of a cluster.
    processes: Vec<Process>,
    /// The process id of kubelet on the edge node.
    edge: u32,
    /// Containers that were restarted because the ports of a killed pod were still in use.
    known: Vec<String>,
}

/// Runs the guide. This process must be in separate namespaces.
pub(super) fn run(setup: Setup<'_>, root: &Path) -> Result<Vec<Fact>, E2eError> {
    network()?;
    let cluster = TestCluster::new(setup, root, Plane::start_at(&setup, ADDRESS)?)?;
    let mut pods = Pods { cluster, processes: Vec::new(), edge: 0, known: Vec::new() };
    let passed = pods.start().and_then(|()| pods.guide());
    pods.cluster.note_error(passed);
    Ok(pods.cluster.into_facts())
}

/// Creates the network: the control plane in the middle, which routes both nodes' pod addresses and the load balancer's address
/// to the nodes.
fn network() -> Result<(), E2eError> {
    command("mount -t tmpfs tmpfs /run")?;
    command("ip link set lo up")?;
    command("ip link add nodes type bridge")?;
    command(&format!("ip address add {ADDRESS}/24 dev nodes"))?;
    command("ip link set nodes up")?;
    for Node { name, address, pods, .. } in NODES {
        command(&format!("ip netns add {name}"))?;
        command(&format!("ip link add {name} type veth peer name eth0 netns {name}"))?;
        command(&format!("ip link set {name} master nodes up"))?;
        command(&format!("ip -n {name} link set lo up"))?;
        command(&format!("ip -n {name} address add {address}/24 dev eth0"))?;
        command(&format!("ip -n {name} link set eth0 up"))?;
        command(&format!("ip -n {name} route add default via {ADDRESS}"))?;
        command(&format!("ip route add {pods}.0/24 via {address}"))?;
    }
    command(&format!("ip route add {BALANCER} via {}", CLOUD.address))?;
    write(Path::new("/proc/sys/net/ipv4/ip_forward"), "1")
}

fn command(line: &str) -> Result<(), E2eError> {
    let mut words = line.split(' ');
    let mut command = Command::new(words.next().unwrap_or_default());
    check(line, command.args(words).output(), "install iproute2").map(drop)
}

impl Pods<'_> {
    fn start(&mut self) -> Result<(), E2eError> {
        let Setup { components, scratch, .. } = self.cluster.setup;
        let programs = |program: &Path| program.parent().unwrap_or(program).to_owned();
        let (sidecars, archives) = (programs(&components.kubernetes), scratch.join("archives"));
        let mut images = self.cluster.command("tests/e2e/deploy/pods/images.sh");
        images.arg(&archives).env("SIDECARS", &sidecars).env("PROGRAMS", programs(&components.hub));
        check("images.sh", images.output(), "`.ci/run tools` installs what it needs")?;
        for node in NODES {
            let folder = scratch.join(node.name);
            let mut command = self.cluster.command("nsenter");
            command
                .arg(format!("--net=/run/netns/{}", node.name))
                .args(["unshare", "--mount", "tests/e2e/deploy/pods/node.sh"])
                .arg(&folder)
                .args([node.name, node.address, &ADDRESS.to_string(), node.pods])
                .args(node.images.iter().map(|image| archives.join(format!("{image}.tar"))))
                .env("SIDECARS", &sidecars)
                .env("CGROUP", control_group(scratch));
            self.spawn(node.name, &mut command)?;
            self.edge = self.processes.last().map_or(0, Process::id);
            write(&scratch.join(format!("{}.pid", node.name)), &self.edge.to_string())?;
        }
        let mut names = self.cluster.command("python3");
        names.args([
            "tests/e2e/deploy/pods/names.py",
            &ADDRESS.to_string(),
            "hub.example.org=edge-csi/edge-hub",
        ]);
        self.spawn("names", &mut names)?;
        let mut proxy = self.cluster.command("nsenter");
        proxy.arg(format!("--net=/run/netns/{}", CLOUD.name)).arg(&components.kubernetes).arg("kube-proxy");
        proxy
            .arg("--kubeconfig")
            .arg(&self.cluster.plane.kubeconfig)
            .args(["--hostname-override", CLOUD.name]);
        proxy.args(["--proxy-mode=nftables", "--cluster-cidr=10.244.0.0/16", "--conntrack-max-per-core=0"]);
        self.spawn("kube-proxy", &mut proxy)?;
        let mut controller = Command::new(components.sidecar("snapshot-controller"));
        controller.arg("--kubeconfig").arg(&self.cluster.plane.kubeconfig);
        self.spawn("snapshot-controller", &mut controller)?;
        for node in NODES {
            let path = format!("{NODE_OBJECTS}/{}", node.name);
            self.cluster.until(&format!("the node {} is ready", node.name), |c| ready(c, &path))?;
        }
        let label = json!({"metadata": {"labels": {"node-role.kubernetes.io/edge": ""}}});
        self.cluster.plane.api.merge(&format!("{NODE_OBJECTS}/{}", EDGE.name), &label)?;
        self.disk()?;
        let programs = self.cluster.setup.folder("bin")?;
        for (name, script) in REMOTE {
            let path = programs.join(name);
            let text = format!("#!/usr/bin/env bash\nNODES={}\n{script}\n", scratch.display());
            write(&path, &text)?;
            fs::set_permissions(&path, Permissions::from_mode(0o755))
                .map_err(|cause| E2eError::File { path, cause })?;
        }
        Ok(())
    }

    fn spawn(&mut self, name: &str, command: &mut Command) -> Result<(), E2eError> {
        self.processes.push(Process::spawn(self.cluster.setup.logs, name, command)?);
        Ok(())
    }

    /// Creates a disk in the cloud for the controller's state.
    fn disk(&self) -> Result<(), E2eError> {
        let folder = self.cluster.setup.scratch.join(CLOUD.name).join("var/lib/disk");
        fs::create_dir_all(&folder).map_err(|cause| E2eError::Folder { path: folder, cause })?;
        let class = json!({
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {
                "name": "cloud",
                "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
            },
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        });
        let node = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": [CLOUD.name]});
        let disk = json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": "disk"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": {"storage": "1Gi"},
                "storageClassName": "cloud",
                "local": {"path": "/var/lib/disk"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [node]}]}},
            },
        });
        self.cluster.plane.api.create(CLASSES, &class)?;
        self.cluster.plane.api.create(VOLUMES, &disk)
    }

    /// Runs the guide, and checks the result of each page.
    fn guide(&mut self) -> Result<(), E2eError> {
        let api = self.cluster.plane.api;
        // The first page waits for agents, which find the hub by the load balancer of its service.
        let balancer = thread::spawn(move || {
            let service = "/api/v1/namespaces/edge-csi/services/edge-hub";
            api.until(service, "created", CREATED, |_| Some(()))?;
            let ingress = json!({"status": {"loadBalancer": {"ingress": [{"ip": BALANCER}]}}});
            api.merge(&format!("{service}/status"), &ingress)
        });
        for (page, is_cleanup) in NODE_PAGES {
            let all = [Mark::Run, Mark::Cluster, Mark::Nodes];
            let marks = if page == WITHOUT_NODES { &all[..2] } else { &all[..] };
            let change = |script: String| match (page, is_cleanup) {
                ("install.md", true) => script.replace("overlays/topology", "overlays/two-proxies"),
                _ => script,
            };
            let printed = self.cluster.page(page, (marks, is_cleanup), self.cluster.setup.scratch, change)?;
            match (page, is_cleanup) {
                ("install.md", false) => {
                    self.printed(page, &printed, "edge-1 csi-hostpath", |line| {
                        line.split_whitespace().eq([EDGE.name, "csi-hostpath"])
                    });
                    self.check_restarts()?;
                }
                ("dynamic.md", false) | ("snapshots.md", _) => {
                    self.printed(page, &printed, "a time", |line| {
                        line.rsplit_once(" UTC ")
                            .is_some_and(|(_, year)| year.len() == 4 && year.parse::<u16>().is_ok())
                    });
                }
                ("block.md", _) => self.printed(page, &printed, "edge", |line| line.starts_with("edge")),
                ("operating.md", _) => {
                    self.printed(page, &printed, "ok", |line| line.starts_with("ok"));
                    self.check_restarts()?;
                    self.kill_pods()?;
                }
                ("upgrading.md", _) => {
                    self.check_restarts()?;
                    self.two_proxies()?;
                }
                ("dynamic.md", true) => self.check_volumes_deleted()?,
                ("install.md", true) => self.check_overlay_deleted()?,
                _ => {}
            }
        }
        match balancer.join() {
            Ok(balanced) => balanced,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }

    /// Notes whether a page's commands have printed a matching line.
    fn printed(&mut self, page: &str, printed: &str, what: &str, is: impl Fn(&str) -> bool) {
        let last = printed.lines().last().unwrap_or_default();
        let found = printed.lines().find(|line| is(line));
        let words = match found {
            Some(line) => format!("{page} printed {line:?}"),
            None => format!("{page} did not print {what}, but at last {last:?}"),
        };
        self.cluster.note(found.is_some(), words);
    }

    /// Returns the containers that kubelet has restarted, with their restart counts.
    fn restarts(&self) -> Result<Vec<String>, E2eError> {
        let pods = self.cluster.plane.api.list("/api/v1/pods")?;
        if pods.is_empty() {
            return Ok(vec!["the cluster has no pods".to_owned()]);
        }
        let containers = pods.iter().flat_map(|pod| {
            let statuses = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
            statuses.map(|status| (&pod["metadata"], status))
        });
        let restarted = containers.filter(|(_, status)| status["restartCount"] != 0);
        Ok(restarted
            .map(|(pod, status)| {
                format!("{} {} {}: {}", pod["name"], pod["uid"], status["name"], status["restartCount"])
            })
            .collect())
    }

    /// Notes that no further container was restarted: a container that has crashed may work after its restart.
    fn check_restarts(&mut self) -> Result<(), E2eError> {
        let mut restarted = self.restarts()?;
        restarted.retain(|container| !self.known.contains(container));
        self.cluster.note(restarted.is_empty(), format!("containers that were restarted: {restarted:?}"));
        Ok(())
    }

    /// Returns the mounts of the driver's volumes on the node, with their ids.
    fn mounts(&self) -> Result<Vec<String>, E2eError> {
        let table = read(Path::new(&format!("/proc/{}/mountinfo", self.edge)))?;
        let volumes = table.lines().filter(|line| line.contains("csi-hostpath"));
        let number_and_point = |line: &str| {
            let mut fields = line.split(' ');
            format!("{} {}", fields.next().unwrap_or_default(), fields.nth(3).unwrap_or_default())
        };
        Ok(volumes.map(number_and_point).collect())
    }

    /// Returns the mounts, and the text that a pod has written to its volume.
    fn volume(&self) -> Result<Vec<String>, E2eError> {
        let mut volume = self.mounts()?;
        volume
            .push(self.cluster.kubectl(["exec", "writer", "--", "cat", "/data/written"])?.trim().to_owned());
        Ok(volume)
    }

    /// Kills the pods of the overlay, one after another. Volumes stay mounted, and new claims are bound.
    fn kill_pods(&mut self) -> Result<(), E2eError> {
        let before = self.volume()?;
        self.cluster.note(before.len() > 1, format!("the volume of a pod: {before:?}"));
        let node = self.cluster.plane.api.list("/api/v1/namespaces/edge-csi-node/pods")?;
        let node = node.first().and_then(|pod| pod["metadata"]["name"].as_str()).unwrap_or("no pod");
        for (namespace, pod, kind, set) in [
            ("edge-csi-node", node, "daemonset", "edge-csi-node"),
            ("edge-csi", "edge-csi-controller-0", "statefulset", "edge-csi-controller"),
        ] {
            self.kubectl(&format!("delete pod {pod} --namespace {namespace} --grace-period=0 --force"))?;
            let words = format!("{pod} was killed, and {set} is ready again");
            self.rolled_out(&words, &format!("{kind}/{set}"), namespace)?;
            let now = self.volume()?;
            let lost: Vec<&String> = before.iter().filter(|line| !now.contains(line)).collect();
            self.cluster.note(lost.is_empty(), format!("lost of the volume: {lost:?}"));
            self.claimed(&format!("after-{set}"))?;
        }
        self.kubectl("delete pod,pvc after-edge-csi-node after-edge-csi-controller")?;
        self.known = self.restarts()?;
        Ok(())
    }

    fn kubectl(&self, line: &str) -> Result<(), E2eError> {
        self.cluster.kubectl(line.split(' ')).map(drop)
    }

    /// Waits until all pods of a set, such as `deployment/NAME`, are ready. `words` are for the report.
    fn rolled_out(&mut self, words: &str, set: &str, namespace: &str) -> Result<(), E2eError> {
        let status = format!("rollout status {set} --namespace {namespace} --timeout=1m");
        self.cluster
            .until(words, |c| c.kubectl(status.split(' ')).map(drop).map_err(|error| error.to_string()))
    }

    /// Creates a claim and its pod, and waits until the pod is ready.
    fn claimed(&mut self, claim: &str) -> Result<(), E2eError> {
        self.cluster.claim(claim)?;
        self.cluster.until(&format!("the pod {claim} is ready"), |c| ready(c, &format!("{PODS}/{claim}")))
    }

    fn check_volumes_deleted(&mut self) -> Result<(), E2eError> {
        let of_a_driver = |volume: &Value| !volume["spec"]["csi"].is_null();
        self.cluster.until("the volumes are deleted", |c| c.none(VOLUMES, of_a_driver))?;
        let files = inner_entries(&volumes(self.cluster.setup.scratch));
        let mounts = self.mounts()?;
        let left = format!("left on the node: {files:?} {mounts:?}");
        self.cluster.note(files.is_empty() && mounts.is_empty(), left);
        Ok(())
    }

    fn check_overlay_deleted(&mut self) -> Result<(), E2eError> {
        self.cluster.until("the controller's disk is released", |c| {
            c.is(&format!("{VOLUMES}/disk"), "/status/phase", "Released")
        })?;
        let kinds = "clusterroles,clusterrolebindings,csidrivers,storageclasses";
        let names = self.cluster.kubectl(["get", kinds, "--output", "name"])?;
        let of_overlay = |name: &&str| name.contains("edge-csi") || name.contains("csi-hostpath");
        let left: Vec<&str> = names.lines().filter(of_overlay).collect();
        self.cluster.note(left.is_empty(), format!("objects of the overlay that are left: {left:?}"));
        Ok(())
    }
}

/// Checks that a node or a pod is ready.
fn ready(cluster: &TestCluster<'_>, path: &str) -> Result<(), String> {
    let object = cluster.object(path)?;
    if has_condition(&object, "Ready") {
        Ok(())
    } else {
        Err(format!("{path}: {}", object["status"]["conditions"]))
    }
}
