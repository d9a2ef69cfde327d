//! The control plane: etcd, API server, controllers and scheduler.

use std::fs::File;
use std::io::Read;
use std::net::Ipv4Addr;
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
use crate::error::E2eError;
use crate::setup::Setup;

/// Time limit for the start of the API server; the server's initialization takes most of the time.
const START: Duration = Duration::from_secs(120);

/// The snapshot definitions, by group and resource as in the file names of the client's module.
const SNAPSHOTS: [(&str, &str); 6] = [
    ("snapshot", "volumesnapshotclasses"),
    ("snapshot", "volumesnapshotcontents"),
    ("snapshot", "volumesnapshots"),
    ("groupsnapshot", "volumegroupsnapshotclasses"),
    ("groupsnapshot", "volumegroupsnapshotcontents"),
    ("groupsnapshot", "volumegroupsnapshots"),
];

/// The key that signs service account tokens: the file for the name `accounts` of the authority `accounts`.
const ACCOUNTS_KEY: &str = "accounts-accounts.key";

/// The collection of resource definitions.
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
    /// Starts the control plane on the loopback address, and waits until a pod can be created.
    pub(crate) fn start(setup: &Setup<'_>) -> Result<Self, E2eError> {
        Self::start_at(setup, Ipv4Addr::LOCALHOST)
    }

    /// Starts the control plane with the API server at an address of this machine. With an address other than loopback, other
    /// nodes have kubelets, and their pods use the API server.
    pub(crate) fn start_at(setup: &Setup<'_>, address: Ipv4Addr) -> Result<Self, E2eError> {
        let folder = setup.folder("plane")?;
        let etcd = start_etcd(setup, &folder)?;
        let kubeconfig = folder.join("kubeconfig");
        let mut server = start_server(setup, &folder, &etcd.1, (address, &kubeconfig))?;
        let (proxy, api) = serve_api(setup, "kubectl-proxy", &kubeconfig)?;
        server.ready_within(START, "/readyz", || api.is_ready())?;
        let mut plane = Self { processes: vec![etcd.0, proxy], server, api, kubeconfig };
        plane.start_controllers(setup, &folder, !address.is_loopback())?;
        api.until("/api/v1/namespaces/default/serviceaccounts/default", "created", START, |_| Some(()))?;
        plane.define_snapshots(setup)?;
        Ok(plane)
    }

    /// Returns the processor time that all processes of the control plane have used.
    pub(super) fn processor_time(&self) -> Duration {
        self.processes.iter().chain(self.server.process()).map(Process::processor_time).sum()
    }

    /// Kills the API server, whose state is in etcd.
    pub(super) fn lose_server(&mut self) {
        self.server.kill();
    }

    /// Restarts the API server, and waits until it is ready.
    pub(super) fn restore_server(&mut self, setup: &Setup<'_>) -> Result<(), E2eError> {
        self.server.restart(setup)?;
        let api = self.api;
        self.server.ready_within(START, "/readyz", || api.is_ready())
    }

    /// Returns a Kubernetes command that acts on this control plane.
    pub(crate) fn client(&self, setup: &Setup<'_>, name: &str) -> Command {
        let mut command = kubernetes_command(setup, name);
        command.arg("--kubeconfig").arg(&self.kubeconfig);
        command
    }

    fn start_controllers(
        &mut self,
        setup: &Setup<'_>,
        folder: &Path,
        kubelets: bool,
    ) -> Result<(), E2eError> {
        // node-lifecycle-controller would evict the pods of nodes without a kubelet within a minute.
        let lifecycle = if kubelets { "" } else { ",-node-lifecycle-controller" };
        let mut controllers = self.client(setup, "kube-controller-manager");
        controllers
            .args(["--leader-elect=false", "--secure-port=0", "--attach-detach-reconcile-sync-period=10s"])
            .arg(format!("--controllers=*,-node-ipam-controller{lifecycle}"))
            // Higher than what a test reaches.
            .args(["--kube-api-qps=5000", "--kube-api-burst=5000"])
            .arg("--service-account-private-key-file")
            .arg(folder.join(ACCOUNTS_KEY))
            // The authority of the hub's --client-ca, which the API server does not accept.
            .arg("--cluster-signing-kube-apiserver-client-cert-file")
            .arg(setup.certificates.authority().certificate())
            .arg("--cluster-signing-kube-apiserver-client-key-file")
            .arg(setup.certificates.authority().key());
        if kubelets {
            // Pods get this file to trust the API server.
            controllers.arg("--root-ca-file").arg(folder.join("certificates/apiserver.crt"));
        }
        let mut scheduler = self.client(setup, "kube-scheduler");
        scheduler.args(["--leader-elect=false", "--secure-port=0"]);
        for (name, command) in
            [("kube-controller-manager", &mut controllers), ("kube-scheduler", &mut scheduler)]
        {
            self.processes.push(Process::spawn(setup.logs, name, command)?);
        }
        Ok(())
    }

    /// Creates the snapshot definitions from the client's module, and waits until the API server serves them.
    fn define_snapshots(&self, setup: &Setup<'_>) -> Result<(), E2eError> {
        let definitions = setup.components.snapshot_definitions()?;
        for (group, resource) in SNAPSHOTS {
            let path = definitions.join(format!("{group}.storage.k8s.io_{resource}.yaml"));
            self.define(path, &format!("{resource}.{group}.storage.k8s.io"))?;
        }
        Ok(())
    }

    /// Creates the definition in a file, unless it exists, and waits until the API server serves it.
    pub(crate) fn define(&self, path: PathBuf, name: &str) -> Result<(), E2eError> {
        let definition = format!("{DEFINITIONS}/{name}");
        if self.api.read(&definition)?.is_none() {
            let text = std::fs::read_to_string(&path).map_err(|cause| E2eError::File { path, cause })?;
            self.api.create_yaml(DEFINITIONS, &text)?;
        }
        let established = |definition: &Value| has_condition(definition, "Established").then_some(());
        self.api.until(&definition, "established", START, established)
    }
}

/// Serves the API with the credentials of a kubeconfig to clients without TLS and tokens, while the process runs.
pub(crate) fn serve_api(
    setup: &Setup<'_>,
    name: &str,
    kubeconfig: &Path,
) -> Result<(Process, Api), E2eError> {
    let mut command = kubernetes_command(setup, "kubectl");
    command.args(["proxy", "--port=0", "--kubeconfig"]).arg(kubeconfig);
    let mut proxy = Process::spawn(setup.logs, name, &mut command)?;
    let log = setup.logs.join(format!("{name}.log"));
    let serves_at = || address_in(&std::fs::read_to_string(&log).unwrap_or_default());
    proxy.ready("its address", || serves_at().is_some())?;
    Ok((proxy, Api::new(serves_at().unwrap_or_else(|| ([127, 0, 0, 1], 0).into()))))
}

/// Returns a command that runs one of the programs in the binary `kubernetes`.
fn kubernetes_command(setup: &Setup<'_>, name: &str) -> Command {
    let mut command = Command::new(&setup.components.kubernetes);
    command.arg(name);
    command
}

fn start_etcd(setup: &Setup<'_>, folder: &Path) -> Result<(Process, String), E2eError> {
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

fn start_server(
    setup: &Setup<'_>,
    folder: &Path,
    etcd: &str,
    (address, kubeconfig): (Ipv4Addr, &Path),
) -> Result<Part, E2eError> {
    let port = port::free();
    // The API server signs tokens with the key, and takes the public key from the certificate.
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
                "server": format!("https://{address}:{port}"),
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
        .pair("--bind-address", address.to_string())
        .pair("--advertise-address", address.to_string())
        .pair("--secure-port", port.to_string())
        .pair("--cert-dir", folder.join("certificates"))
        .pair("--token-auth-file", &tokens)
        .pair("--authorization-mode", "RBAC")
        .flag("--anonymous-auth=false")
        .flag("--allow-privileged=true")
        .pair("--service-account-issuer", "https://kubernetes.default.svc")
        .pair("--service-account-key-file", &accounts.certificate)
        .pair("--service-account-signing-key-file", &accounts.key)
        .pair("--service-cluster-ip-range", "10.96.0.0/16");
    let arguments = if address.is_loopback() {
        // A loopback address is not valid for an endpoint of a service.
        arguments.pair("--endpoint-reconciler-type", "none")
    } else {
        arguments.pair("--kubelet-preferred-address-types", "InternalIP")
    };
    Part::start(setup, name.to_owned(), &setup.components.kubernetes, arguments, Ready::AtOnce)
}

/// Parses the address that `kubectl proxy` prints.
fn address_in(printed: &str) -> Option<std::net::SocketAddr> {
    printed.lines().find_map(|line| line.strip_prefix("Starting to serve on ")?.trim().parse().ok())
}

/// Returns a token that other users of the host cannot guess.
fn random_token() -> Result<String, E2eError> {
    const SOURCE: &str = "/dev/urandom";
    let mut bytes = [0; 16];
    let read = File::open(SOURCE).and_then(|mut source| source.read_exact(&mut bytes));
    read.map_err(|cause| E2eError::File { path: SOURCE.into(), cause })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn loopback() -> String {
    format!("http://127.0.0.1:{}", port::free())
}

pub(crate) fn write(path: &Path, text: &str) -> Result<(), E2eError> {
    std::fs::write(path, text).map_err(|cause| E2eError::File { path: path.to_owned(), cause })
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
