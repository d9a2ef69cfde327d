//! The control plane: etcd, API server, controllers and scheduler, on the loopback address.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::arguments::Arguments;
use edge_csi_tests::certificates::Authority;
use edge_csi_tests::port;
use edge_csi_tests::process::Process;
use serde_json::Value;

use super::api::Api;
use super::objects::has_condition;
use super::part::{Part, Ready};
use crate::error::RealError;
use crate::setup::Setup;

/// Time for the server to come up: most of it goes to its own start.
const START: Duration = Duration::from_secs(120);

/// The definitions of snapshots, by group and resource as their files in the module of their client are called.
const SNAPSHOTS: [(&str, &str); 6] = [
    ("snapshot", "volumesnapshotclasses"),
    ("snapshot", "volumesnapshotcontents"),
    ("snapshot", "volumesnapshots"),
    ("groupsnapshot", "volumegroupsnapshotclasses"),
    ("groupsnapshot", "volumegroupsnapshotcontents"),
    ("groupsnapshot", "volumegroupsnapshots"),
];

/// The key that signs the tokens of service accounts: the file of the name `accounts` of the authority `accounts`.
const ACCOUNTS_KEY: &str = "accounts-accounts.key";

/// Where definitions of resources are made.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A running control plane. Killed when dropped.
#[derive(Debug)]
pub(crate) struct Plane {
    processes: Vec<Process>,
    server: Part,
    pub(crate) api: Api,
    pub(crate) kubeconfig: PathBuf,
}

impl Plane {
    /// Starts everything, and waits until a pod could be made.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, RealError> {
        let folder = setup.folder("plane")?;
        let etcd = start_etcd(setup, &folder)?;
        let kubeconfig = folder.join("kubeconfig");
        let mut server = start_server(setup, &folder, &etcd.1, &kubeconfig)?;
        let mut proxy = Process::spawn(
            setup.logs,
            "kubectl-proxy",
            part(setup, "kubectl").args(["proxy", "--port=0", "--kubeconfig"]).arg(&kubeconfig),
        )?;
        let log = setup.logs.join("kubectl-proxy.log");
        let address = || address_in(&std::fs::read_to_string(&log).unwrap_or_default());
        proxy.ready("its address", || address().is_some())?;
        let api = Api::new(address().unwrap_or_else(|| ([127, 0, 0, 1], 0).into()));
        server.ready_within(START, "/readyz", || api.is_ready())?;
        let mut plane = Self { processes: vec![etcd.0, proxy], server, api, kubeconfig };
        plane.start_controllers(setup, &folder)?;
        api.until("/api/v1/namespaces/default/serviceaccounts/default", "made", START, |_| Some(()))?;
        plane.define_snapshots(setup)?;
        Ok(plane)
    }

    /// The API server dies. What it knows is with etcd.
    pub(super) fn lose_server(&mut self) {
        self.server.kill();
    }

    /// It is there again.
    pub(super) fn restore_server(&mut self, setup: &Setup<'_>) -> Result<(), RealError> {
        self.server.restart(setup)?;
        let api = self.api;
        self.server.ready_within(START, "/readyz", || api.is_ready())
    }

    /// A command of Kubernetes that acts on this control plane.
    pub(crate) fn client(&self, setup: &Setup<'_>, name: &str) -> Command {
        let mut command = part(setup, name);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
    }

    fn start_controllers(&mut self, setup: &Setup<'_>, folder: &Path) -> Result<(), RealError> {
        // Nodes without a kubelet would be given up within a minute by the controller of their life.
        let mut controllers = self.client(setup, "kube-controller-manager");
        controllers
            .args(["--leader-elect=false", "--secure-port=0", "--attach-detach-reconcile-sync-period=10s"])
            .arg("--controllers=*,-node-lifecycle-controller,-node-ipam-controller")
            .args(["--kube-api-qps=200", "--kube-api-burst=400"])
            .arg("--service-account-private-key-file")
            .arg(folder.join(ACCOUNTS_KEY));
        let mut scheduler = self.client(setup, "kube-scheduler");
        scheduler.args(["--leader-elect=false", "--secure-port=0"]);
        for (name, command) in
            [("kube-controller-manager", &mut controllers), ("kube-scheduler", &mut scheduler)]
        {
            self.processes.push(Process::spawn(setup.logs, name, command)?);
        }
        Ok(())
    }

    /// Makes the server know snapshots, by the definitions that their client's module has.
    fn define_snapshots(&self, setup: &Setup<'_>) -> Result<(), RealError> {
        let definitions = setup.components.snapshot_definitions()?;
        for (group, resource) in SNAPSHOTS {
            let path = definitions.join(format!("{group}.storage.k8s.io_{resource}.yaml"));
            let text = std::fs::read_to_string(&path).map_err(|cause| RealError::File { path, cause })?;
            self.api.create_yaml(DEFINITIONS, &text)?;
            let path = format!("{DEFINITIONS}/{resource}.{group}.storage.k8s.io");
            let established = |definition: &Value| has_condition(definition, "Established").then_some(());
            self.api.until(&path, "established", START, established)?;
        }
        Ok(())
    }
}

/// One of the programs in the binary.
fn part(setup: &Setup<'_>, name: &str) -> Command {
    let mut command = Command::new(&setup.components.kubernetes);
    command.arg(name);
    command
}

fn start_etcd(setup: &Setup<'_>, folder: &Path) -> Result<(Process, String), RealError> {
    let (client, peer) = (loopback(), loopback());
    let mut command = Command::new("etcd");
    command
        .args(["--name", "one", "--unsafe-no-fsync", "--log-level", "warn", "--data-dir"])
        .arg(folder.join("etcd"))
        .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", &format!("one={peer}")]);
    let mut process = Process::spawn(setup.logs, "etcd", &mut command)?;
    let address = client.trim_start_matches("http://").to_owned();
    process.ready("its port", || std::net::TcpStream::connect(&address).is_ok())?;
    Ok((process, client))
}

fn start_server(setup: &Setup<'_>, folder: &Path, etcd: &str, kubeconfig: &Path) -> Result<Part, RealError> {
    let port = port::free();
    // It signs tokens with the key, and takes the public one from the certificate.
    let accounts = Authority::new(folder, "accounts").issue(&["accounts"]);
    let (token, tokens) = (random_token()?, folder.join("tokens.csv"));
    write(&tokens, &format!("{token},admin,admin,\"system:masters\"\n"))?;
    write(
        kubeconfig,
        &serde_json::json!({
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "admin"}}],
            "clusters": [{"name": "c", "cluster": {
                "server": format!("https://127.0.0.1:{port}"),
                "insecure-skip-tls-verify": true,
            }}],
            "users": [{"name": "admin", "user": {"token": token}}],
        })
        .to_string(),
    )?;
    let name = "kube-apiserver";
    let arguments = Arguments::new()
        .flag(name)
        .pair("--etcd-servers", etcd)
        .pair("--bind-address", "127.0.0.1")
        .pair("--advertise-address", "127.0.0.1")
        .pair("--secure-port", port.to_string())
        .pair("--cert-dir", folder.join("certificates"))
        .pair("--token-auth-file", &tokens)
        .pair("--authorization-mode", "RBAC")
        .flag("--anonymous-auth=false")
        .flag("--allow-privileged=true")
        .pair("--service-account-issuer", "https://kubernetes.default.svc")
        .pair("--service-account-key-file", &accounts.certificate)
        .pair("--service-account-signing-key-file", &accounts.key)
        .pair("--service-cluster-ip-range", "10.96.0.0/16")
        .pair("--endpoint-reconciler-type", "none");
    Part::start(setup, name.to_owned(), &setup.components.kubernetes, arguments, Ready::AtOnce)
}

/// Where `kubectl proxy` says that it serves.
fn address_in(printed: &str) -> Option<std::net::SocketAddr> {
    printed.lines().find_map(|line| line.strip_prefix("Starting to serve on ")?.trim().parse().ok())
}

/// A token that nobody else on the host can guess.
fn random_token() -> Result<String, RealError> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    let read = File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|cause| RealError::File { path: SOURCE.into(), cause })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn loopback() -> String {
    format!("http://127.0.0.1:{}", port::free())
}

pub(super) fn write(path: &Path, text: &str) -> Result<(), RealError> {
    std::fs::write(path, text).map_err(|cause| RealError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_in_the_line_of_kubectl_proxy() {
        let printed = "I1 something\nStarting to serve on 127.0.0.1:4711\n";
        assert_eq!(address_in(printed), "127.0.0.1:4711".parse().ok());
        assert_eq!(address_in("nothing yet"), None);
    }
}
