//! Where the components come from: Go modules, and our own workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::error::RealError;
use super::table;

/// The suite, of which CSI 1.13 is the schema.
const CSI_SANITY: &str = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity@v5.6.0";

/// The sidecars, which are commands in modules that the module `sidecars` has at their versions.
const SIDECARS: [(&str, &str); 5] = [
    ("csi-provisioner", "github.com/kubernetes-csi/external-provisioner/v6/cmd/csi-provisioner"),
    ("csi-attacher", "github.com/kubernetes-csi/external-attacher/v4/cmd/csi-attacher"),
    ("csi-resizer", "github.com/kubernetes-csi/external-resizer/v2/cmd/csi-resizer"),
    ("csi-snapshotter", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/csi-snapshotter"),
    ("snapshot-controller", "github.com/kubernetes-csi/external-snapshotter/v8/cmd/snapshot-controller"),
];

/// The module that has the definitions of snapshots for the API server.
const SNAPSHOT_CLIENT: &str = "github.com/kubernetes-csi/external-snapshotter/client/v8";

/// The release that the control plane says it is; the module `kubernetes` has it at that version.
const KUBERNETES: (&str, &str, &str) = ("v1.36.3", "1", "36");

/// The tests of the hub.
const HUB_TESTS: &str = "hub_kubernetes";

const NEEDS_GO: &str = "install Go 1.26 or newer";
const NEEDS_CARGO: &str = "run through `cargo xtask`";

/// Paths of everything that a leg starts. What is said to be built later is there after
/// [`build_sidecars`](Components::build_sidecars) and [`build_kubernetes`](Components::build_kubernetes).
#[derive(Debug)]
pub(crate) struct Components {
    root: PathBuf,
    needs: Needs,
    pub(crate) csi_sanity: PathBuf,
    /// Built only if a leg needs it.
    pub(crate) mock_driver: PathBuf,
    /// Built only if a leg needs it.
    pub(crate) example_plugin: PathBuf,
    /// Their code under ours, beside which they are themselves. Built later, and only if a leg needs it.
    pub(crate) sidecars: PathBuf,
    /// Control plane, kubelet and kubectl. Built later, and only if a leg needs it, as the following three.
    pub(crate) kubernetes: PathBuf,
    /// What pods run.
    pub(crate) pod: PathBuf,
    /// What tells kubelet of a driver.
    pub(crate) registrar: PathBuf,
    /// A driver that hands secrets to pods.
    pub(crate) vault: PathBuf,
    pub(crate) cable: PathBuf,
    pub(crate) volume_node: PathBuf,
    pub(crate) volume_trace: PathBuf,
    pub(crate) hub: PathBuf,
    /// Tests of the hub, of which one takes an API server. Built only if a leg needs it.
    pub(crate) hub_tests: PathBuf,
    pub(crate) agent: PathBuf,
    pub(crate) endpoint: PathBuf,
    pub(crate) hostpath_driver: PathBuf,
}

/// The Go programs of our own that are to be built.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Needs {
    pub(crate) mock_driver: bool,
    pub(crate) example_plugin: bool,
    pub(crate) sidecars: bool,
    pub(crate) kubernetes: bool,
}

impl Components {
    /// Builds what is not built and soon done: seconds if nothing changed.
    pub(crate) fn build(root: &Path, needs: Needs) -> Result<Self, RealError> {
        let bin = root.join("target/real/bin");
        std::fs::create_dir_all(&bin).map_err(|cause| RealError::Folder { path: bin.clone(), cause })?;

        table::say("building csi-sanity");
        let install = Command::new("go")
            .args(["install", "-buildvcs=false", "-trimpath", "-ldflags", "-s -w", CSI_SANITY])
            .env("GOBIN", &bin)
            .env("CGO_ENABLED", "0")
            .current_dir(&bin)
            .output();
        check("go install csi-sanity", install, NEEDS_GO)?;

        let (mock_driver, example_plugin) = (bin.join("mockdriver"), bin.join("exampleplugin"));
        if needs.mock_driver {
            go_build(root, "mockdriver", ".", &mock_driver)?;
        }
        if needs.example_plugin {
            go_build(root, "exampleplugin", ".", &example_plugin)?;
        }

        table::say("building the workspace's binaries");
        // What the binaries leave out by default, and the tests of it.
        let more: &[&str] = if needs.kubernetes {
            &["--features", "edge-csi-examples/kubernetes", "--test", HUB_TESTS]
        } else {
            &[]
        };
        let built = Command::new("cargo")
            .args([
                "build",
                "--locked",
                "--package",
                "edge-csi-examples",
                "--package",
                "edge-csi-tests",
                "--bins",
                "--message-format",
                "json",
            ])
            .args(more)
            .current_dir(root)
            .output();
        let built = check("cargo build", built, NEEDS_CARGO)?;
        let binary = |name| executable(&built, "bin", name).ok_or(RealError::NoBinary { name });
        let hub_tests = if needs.kubernetes {
            executable(&built, "test", HUB_TESTS).ok_or(RealError::NoBinary { name: HUB_TESTS })?
        } else {
            PathBuf::new()
        };
        Ok(Self {
            root: root.to_owned(),
            needs,
            csi_sanity: bin.join("csi-sanity"),
            mock_driver,
            example_plugin,
            sidecars: bin.join("sidecars"),
            kubernetes: bin.join("kubernetes"),
            pod: bin.join("pod"),
            registrar: bin.join("registrar"),
            vault: bin.join("vault"),
            cable: binary("cable")?,
            volume_node: binary("volume-node")?,
            volume_trace: binary("volume-trace")?,
            hub: binary("edge-hub")?,
            hub_tests,
            agent: binary("edge-agent")?,
            endpoint: binary("edge-csi-driver")?,
            hostpath_driver: binary("hostpath-driver")?,
        })
    }
}

impl Components {
    /// Builds what legs with the sidecars' code need, and Kubernetes too: seconds if nothing changed, else minutes.
    pub(crate) fn build_sidecars(&self) -> Result<(), RealError> {
        if self.needs.sidecars {
            go_build(&self.root, "sidecars", ".", &self.sidecars)?;
        }
        if self.needs.sidecars || self.needs.kubernetes {
            for (name, package) in SIDECARS {
                go_build(&self.root, "sidecars", package, &self.sidecar(name))?;
            }
        }
        Ok(())
    }

    /// Builds what the legs with Kubernetes need: seconds if nothing changed, else minutes.
    pub(crate) fn build_kubernetes(&self) -> Result<(), RealError> {
        if !self.needs.kubernetes {
            return Ok(());
        }
        let (version, major, minor) = KUBERNETES;
        let says = |name: &str, value: &str| format!(" -X k8s.io/component-base/version.{name}={value}");
        let says = [says("gitVersion", version), says("gitMajor", major), says("gitMinor", minor)].concat();
        go_link(&self.root, "kubernetes", ".", &self.kubernetes, &says)?;
        go_build(&self.root, "kubernetes", "./pod", &self.pod)?;
        go_build(&self.root, "kubernetes", "./registrar", &self.registrar)?;
        go_build(&self.root, "kubernetes", "./vault", &self.vault)
    }

    /// The folder with the definitions of snapshots. There since the snapshotter was built.
    pub(crate) fn snapshot_definitions(&self) -> Result<PathBuf, RealError> {
        Ok(go_module(&self.root, "sidecars", SNAPSHOT_CLIENT)?.join("config/crd"))
    }

    /// One of the sidecars, by its name.
    pub(crate) fn sidecar(&self, name: &str) -> PathBuf {
        self.sidecars.with_file_name(name)
    }
}

fn go_build(
    root: &Path,
    module: &'static str,
    package: &'static str,
    program: &Path,
) -> Result<(), RealError> {
    go_link(root, module, package, program, "")
}

/// The same, with more for the linker.
fn go_link(
    root: &Path,
    module: &'static str,
    package: &'static str,
    program: &Path,
    linker: &str,
) -> Result<(), RealError> {
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    table::say(&format!("building {name}"));
    // Legs may be running, which have their times to keep.
    let build = Command::new("nice")
        .args(["go", "build", "-buildvcs=false", "-trimpath", "-ldflags", &format!("-s -w{linker}"), "-o"])
        .arg(program)
        .arg(package)
        .env("CGO_ENABLED", "0")
        .current_dir(root.join("tests/real").join(module))
        .output();
    check(&format!("go build {name}"), build, NEEDS_GO).map(drop)
}

/// The folder of a module that one of ours uses.
fn go_module(root: &Path, module: &str, wanted: &str) -> Result<PathBuf, RealError> {
    let list = Command::new("go")
        .args(["list", "-m", "-f", "{{.Dir}}", wanted])
        .current_dir(root.join("tests/real").join(module))
        .output();
    check(&format!("go list {wanted}"), list, NEEDS_GO).map(|folder| PathBuf::from(folder.trim_end()))
}

/// Compares our schema with the official one, which is a Go module too.
pub(crate) fn compare_schema(root: &Path) -> Result<(), RealError> {
    table::say("comparing the schema with the official one");
    // All packages, and so those as they were built for the tests of all.
    let test = Command::new("cargo")
        .args(["test", "--locked", "--workspace", "--test", "real_schema"])
        .args(["--", "--include-ignored"])
        .env("EDGE_CSI_REAL", "1")
        .current_dir(root)
        .output();
    let output = check("cargo test --test real_schema", test, NEEDS_CARGO)?;
    output.lines().filter(|line| line.starts_with("test result")).for_each(table::say);
    Ok(())
}

/// What a command printed on stdout, if it went well.
fn check(
    command: &str,
    output: std::io::Result<std::process::Output>,
    fix: &'static str,
) -> Result<String, RealError> {
    let output = output.map_err(|cause| RealError::Missing { program: command.to_owned(), cause, fix })?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    // Cargo's messages are on stdout as JSON; what a person can read is on stderr.
    let mut text = String::from_utf8_lossy(&output.stderr).into_owned();
    text.extend(stdout.lines().filter(|line| !line.starts_with('{')).flat_map(|line| [line, "\n"]));
    Err(RealError::Command { command: command.to_owned(), status: output.status, output: text })
}

/// The path of a binary or a test, by its kind and name, in cargo's JSON messages.
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
