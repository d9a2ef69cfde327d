//! Builds the components: Go modules, and this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use super::error::E2eError;
use super::table;

/// The csi-sanity suite for CSI 1.13.
const CSI_SANITY: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0";

/// The sidecars: commands of modules whose versions the module `sidecars` pins.
const SIDECARS: [(&str, &str); 5] = [
    ("csi-provisioner", "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"),
    ("csi-attacher", "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"),
    ("csi-resizer", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"),
    ("csi-snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"),
    ("snapshot-controller", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"),
];

/// The module with the snapshot definitions for the API server.
const SNAPSHOT_CLIENT: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// The module with cert-manager's definitions.
const CERT_MANAGER: &str = "github.com/cert-manager/cert-manager@v1.18.2";

/// The release that the control plane reports; the module `kubernetes` requires that version.
const KUBERNETES: (&str, &str, &str) = ("v1.36.3", "1", "36");

/// The module of KubeEdge, and the release that its programs report; the module `kubeedge` requires that version.
const KUBEEDGE: &str = "github.com/kubeedge/kubeedge";
const KUBEEDGE_VERSION: (&str, &str, &str) = ("v1.23.0", "1", "23");

/// The test binary of the hub.
const HUB_TESTS: &str = "hub_kubernetes";

/// The features that are off by default.
const FEATURES: &str = "edge-hub/kubernetes,edge-csi-driver/kubernetes,nats-bus/nats,mqtt-bus/mqtt";

const NEEDS_GO: &str = "install Go 1.26 or newer";
const NEEDS_CARGO: &str = "run through `cargo test`";

/// The values of `CGO_ENABLED`.
const NO_C: &str = "0";
const WITH_C: &str = "1";

/// The directory of this repository's Go modules.
const GO_MODULES: &str = "tests/e2e/go";

/// Paths of everything that a test run starts. Go programs exist after [`build`](Components::build) of their part.
#[derive(Debug)]
pub(crate) struct Components {
    root: PathBuf,
    /// True for each built part, in the order of [`Part`]. Locked during a build.
    built: [Mutex<bool>; 6],
    pub(crate) csi_sanity: PathBuf,
    pub(crate) mock_driver: PathBuf,
    pub(crate) example_plugin: PathBuf,
    /// A program that runs the sidecars' code. The sidecars are in the same folder.
    pub(crate) sidecars: PathBuf,
    /// The control plane, kubelet and kubectl.
    pub(crate) kubernetes: PathBuf,
    /// The program that pods run.
    pub(crate) pod: PathBuf,
    /// Registers a driver with kubelet.
    pub(crate) registrar: PathBuf,
    /// A driver that hands secrets to pods.
    pub(crate) vault: PathBuf,
    /// The cloud side of KubeEdge.
    pub(crate) cloudcore: PathBuf,
    /// The node of KubeEdge, with a kubelet in it.
    pub(crate) edgecore: PathBuf,
    /// KubeEdge's own driver for the cloud.
    pub(crate) kubeedge_csidriver: PathBuf,
    pub(crate) cable: PathBuf,
    pub(crate) volume_node: PathBuf,
    pub(crate) volume_trace: PathBuf,
    pub(crate) hub: PathBuf,
    /// The tests of the hub; one of them needs an API server.
    pub(crate) hub_tests: PathBuf,
    pub(crate) agent: PathBuf,
    pub(crate) proxy: PathBuf,
    pub(crate) hostpath_driver: PathBuf,
    pub(crate) all_in_one: PathBuf,
    pub(crate) nats_relay: PathBuf,
    pub(crate) mqtt_relay: PathBuf,
}

/// Go programs that are built together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// csi-sanity.
    CsiSanity,
    /// Kubernetes' mock driver.
    MockDriver,
    /// Kubelet's example plugin.
    ExamplePlugin,
    /// The sidecars, and a program that runs their code.
    Sidecars,
    /// The control plane, kubelet, and the program that pods run.
    Kubernetes,
    /// KubeEdge.
    KubeEdge,
}

impl Components {
    /// Builds the workspace's binaries. Takes seconds if nothing changed.
    pub(crate) fn new(root: &Path) -> Result<Self, E2eError> {
        let bin = root.join("target/real/bin");
        std::fs::create_dir_all(&bin).map_err(|cause| E2eError::Folder { path: bin.clone(), cause })?;
        table::say("building the workspace's binaries");
        // Includes the features that are off by default, and their tests.
        let built = Command::new("cargo")
            .args(["build", "--locked", "--package", "edge-csi-tests"])
            .args(["--package", "edge-hub", "--package", "edge-agent", "--package", "edge-csi-driver"])
            .args(["--package", "hostpath-driver", "--package", "embed", "--package", "nats-bus"])
            .args(["--package", "mqtt-bus", "--features", FEATURES])
            .args(["--bins", "--test", HUB_TESTS])
            .args(["--message-format", "json"])
            .current_dir(root)
            .output();
        let built = check("cargo build", built, NEEDS_CARGO)?;
        let found = |kind, name| executable(&built, kind, name).ok_or(E2eError::NoBinary { name });
        let binary = |name| found("bin", name);
        Ok(Self {
            root: root.to_owned(),
            built: Default::default(),
            csi_sanity: bin.join("csi-sanity"),
            mock_driver: bin.join("mockdriver"),
            example_plugin: bin.join("exampleplugin"),
            sidecars: bin.join("sidecars"),
            kubernetes: bin.join("kubernetes"),
            pod: bin.join("pod"),
            registrar: bin.join("registrar"),
            vault: bin.join("vault"),
            cloudcore: bin.join("cloudcore"),
            edgecore: bin.join("edgecore"),
            kubeedge_csidriver: bin.join("kubeedge-csidriver"),
            cable: binary("cable")?,
            volume_node: binary("volume-node")?,
            volume_trace: binary("volume-trace")?,
            hub: binary("edge-hub")?,
            hub_tests: found("test", HUB_TESTS)?,
            agent: binary("edge-agent")?,
            proxy: binary("edge-csi-driver")?,
            hostpath_driver: binary("hostpath-driver")?,
            all_in_one: binary("all_in_one")?,
            nats_relay: binary("nats-relay")?,
            mqtt_relay: binary("mqtt-relay")?,
        })
    }

    /// Builds a part unless this process has built it already. Takes seconds if nothing changed, otherwise up to minutes.
    /// Concurrent callers wait.
    pub(crate) fn build(&self, part: Part) -> Result<(), E2eError> {
        let [sanity, mock, plugin, sidecars, kubernetes, kubeedge] = &self.built;
        let built = match part {
            Part::CsiSanity => sanity,
            Part::MockDriver => mock,
            Part::ExamplePlugin => plugin,
            Part::Sidecars => sidecars,
            Part::Kubernetes => kubernetes,
            Part::KubeEdge => kubeedge,
        };
        let mut built = built.lock().unwrap_or_else(PoisonError::into_inner);
        if !*built {
            self.build_anew(part)?;
            *built = true;
        }
        Ok(())
    }

    fn build_anew(&self, part: Part) -> Result<(), E2eError> {
        match part {
            Part::CsiSanity => {
                table::say("building csi-sanity");
                let install = Command::new("go")
                    .args(["install", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", CSI_SANITY])
                    .env("GOBIN", self.csi_sanity.parent().unwrap_or(&self.root))
                    .env("CGO_ENABLED", "0")
                    .current_dir(self.csi_sanity.parent().unwrap_or(&self.root))
                    .output();
                check("go install csi-sanity", install, NEEDS_GO).map(drop)
            }
            Part::MockDriver => self.go_build("mockdriver", ".", &self.mock_driver),
            Part::ExamplePlugin => self.go_build("exampleplugin", ".", &self.example_plugin),
            Part::Sidecars => {
                self.go_build("sidecars", ".", &self.sidecars)?;
                SIDECARS
                    .into_iter()
                    .try_for_each(|(name, package)| self.go_build("sidecars", package, &self.sidecar(name)))
            }
            Part::Kubernetes => {
                let says = version_of("k8s.io/component-base/version", KUBERNETES);
                self.go_link("kubernetes", ".", &self.kubernetes, &says, NO_C)?;
                self.go_build("kubernetes", "./pod", &self.pod)?;
                self.go_build("kubernetes", "./registrar", &self.registrar)?;
                self.go_build("kubernetes", "./livenessprobe", &self.pod.with_file_name("livenessprobe"))?;
                self.go_build("kubernetes", "./vault", &self.vault)
            }
            Part::KubeEdge => {
                let says = version_of(&format!("{KUBEEDGE}/pkg/version"), KUBEEDGE_VERSION);
                // edgecore has SQLite, which is written in C. All are built with C, since they share packages.
                self.go_link("kubeedge", "./cloudcore", &self.cloudcore, &says, WITH_C)?;
                self.go_link("kubeedge", "./edgecore", &self.edgecore, &says, WITH_C)?;
                self.go_link("kubeedge", "./csidriver", &self.kubeedge_csidriver, &says, WITH_C)
            }
        }
    }

    /// Returns the folder with the snapshot definitions, which exists once the snapshotter is built.
    pub(crate) fn snapshot_definitions(&self) -> Result<PathBuf, E2eError> {
        Ok(go_module(&self.root, "sidecars", SNAPSHOT_CLIENT)?.join("config/crd"))
    }

    /// Returns the folder with the definitions of KubeEdge, in folders by group.
    pub(crate) fn kubeedge_definitions(&self) -> Result<PathBuf, E2eError> {
        Ok(go_module(&self.root, "kubeedge", KUBEEDGE)?.join("build/crds"))
    }

    /// Returns the folder with cert-manager's definitions.
    pub(crate) fn certificate_definitions(&self) -> Result<PathBuf, E2eError> {
        // Outside of any module.
        let download =
            Command::new("go").args(["mod", "download", "-json", CERT_MANAGER]).current_dir("/").output();
        let output = check(&format!("go mod download {CERT_MANAGER}"), download, NEEDS_GO)?;
        let folder = serde_json::from_str::<serde_json::Value>(&output).ok();
        let folder = folder.and_then(|module| Some(PathBuf::from(module["Dir"].as_str()?)));
        Ok(folder.ok_or(E2eError::NoBinary { name: CERT_MANAGER })?.join("deploy/crds"))
    }

    /// Returns the folder of this repository.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the path of the sidecar with this name.
    pub(crate) fn sidecar(&self, name: &str) -> PathBuf {
        self.sidecars.with_file_name(name)
    }

    fn go_build(&self, module: &'static str, package: &'static str, program: &Path) -> Result<(), E2eError> {
        self.go_link(module, package, program, "", NO_C)
    }

    /// Builds Go commands with additional linker arguments, with or without C.
    fn go_link(
        &self,
        module: &'static str,
        package: &'static str,
        program: &Path,
        linker: &str,
        c: &str,
    ) -> Result<(), E2eError> {
        let name = program.file_name().unwrap_or_default().to_string_lossy();
        table::say(&format!("building {name}"));
        // Other tests may be running, and have deadlines.
        let build = Command::new("nice")
            .args([
                "go",
                "build",
                "-buildvcs=false",
                "-trimpath",
                "-ldflags",
                &format!("-s -w{linker}"),
                "-o",
            ])
            .arg(program)
            .arg(package)
            .env("CGO_ENABLED", c)
            .current_dir(self.root.join(GO_MODULES).join(module))
            .output();
        check(&format!("go build {name}"), build, NEEDS_GO).map(drop)
    }
}

/// Returns the linker arguments that set the variables of a release in a package of versions.
fn version_of(package: &str, (version, major, minor): (&str, &str, &str)) -> String {
    let says = |name: &str, value: &str| format!(" -X {package}.{name}={value}");
    [says("gitVersion", version), says("gitMajor", major), says("gitMinor", minor)].concat()
}

/// Returns the folder of a dependency of a Go module of this workspace.
fn go_module(root: &Path, module: &str, wanted: &str) -> Result<PathBuf, E2eError> {
    let list = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", wanted])
        .current_dir(root.join(GO_MODULES).join(module))
        .output();
    check(&format!("go list {wanted}"), list, NEEDS_GO).map(|folder| PathBuf::from(folder.trim_end()))
}

/// Runs a command and returns its stdout, if the command succeeds.
pub(crate) fn check(
    command: &str,
    output: std::io::Result<std::process::Output>,
    fix: &'static str,
) -> Result<String, E2eError> {
    let output = output.map_err(|cause| E2eError::CannotRun { program: command.to_owned(), cause, fix })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    // Cargo writes JSON messages to stdout and readable diagnostics to stderr.
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.extend(stdout.lines().filter(|line| !line.starts_with('{')).flat_map(|line| [line, "\n"]));
    Err(E2eError::Command { command: command.to_owned(), status: output.status, output: text })
}

/// Finds the path of a binary or test in cargo's JSON messages, by its kind and name.
fn executable(messages: &str, kind: &str, name: &str) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|message| message["target"]["name"] == name && message["target"]["kind"][0] == kind)
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_of_a_binary_is_in_its_own_message() {
        let messages = concat!(
            r#"{"reason":"compiler-artifact","target":{"name":"edge-hub","kind":["lib"]},"executable":null}"#,
            "\nnot json\n",
            r#"{"reason":"compiler-artifact","target":{"name":"edge-agent","kind":["bin"]},"executable":"/t/edge-agent"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","target":{"name":"edge-hub","kind":["bin"]},"executable":"/t/edge-hub"}"#,
        );
        assert_eq!(executable(messages, "bin", "edge-hub"), Some(PathBuf::from("/t/edge-hub")));
        assert_eq!(executable(messages, "bin", "quickstart"), None);
    }
}
