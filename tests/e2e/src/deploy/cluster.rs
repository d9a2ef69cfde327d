//! A control plane with kubectl, and the facts that a test finds on it.

use std::ffi::{OsStr, OsString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::guide::{self, Mark};
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::{read, write};
use crate::error::E2eError;
use crate::kubernetes::Plane;
use crate::setup::Setup;
use crate::table::Fact;

/// Time limit for one condition: a sidecar waits up to half a minute between two attempts.
const BOUND: Duration = Duration::from_secs(180);

/// Time between two checks of a condition.
const PAUSE: Duration = Duration::from_millis(200);

/// Time limit for the commands of one page, which have their own limits.
const PAGE: Duration = Duration::from_secs(900);

/// A control plane, and what was found on it.
pub(super) struct TestCluster<'a> {
    pub(super) setup: Setup<'a>,
    pub(super) plane: Plane,
    /// The repository.
    pub(super) root: &'a Path,
    /// `PATH` of the guide's commands; kubectl is first.
    path: OsString,
    facts: Vec<Fact>,
}

impl<'a> TestCluster<'a> {
    pub(super) fn new(setup: Setup<'a>, root: &'a Path, plane: Plane) -> Result<Self, E2eError> {
        // The program runs as kubectl if it is called by this name.
        let programs = setup.folder("bin")?;
        let kubectl = programs.join("kubectl");
        symlink(&setup.components.kubernetes, &kubectl)
            .map_err(|cause| E2eError::File { path: kubectl, cause })?;
        let mut path = programs.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Ok(Self { setup, plane, root, path, facts: Vec::new() })
    }

    pub(super) fn note(&mut self, right: bool, words: impl Into<String>) {
        self.facts.push(Fact { words: words.into(), right });
    }

    /// Notes an error as a failed fact.
    pub(super) fn note_error<T>(&mut self, result: Result<T, E2eError>) -> Option<T> {
        result.map_err(|error| self.note(false, error.to_string())).ok()
    }

    pub(super) fn into_facts(self) -> Vec<Fact> {
        self.facts
    }

    /// Runs kubectl in the folder `deploy` and returns its output. Fails unless kubectl succeeds.
    pub(super) fn kubectl<'b>(
        &self,
        arguments: impl IntoIterator<Item = &'b str>,
    ) -> Result<String, E2eError> {
        let mut command = self.plane.client(&self.setup, "kubectl");
        command.args(arguments).current_dir(self.root.join("deploy"));
        crate::component::check(
            "kubectl",
            command.output(),
            "the build of tests/e2e/go/kubernetes creates it",
        )
    }

    /// Returns a command whose environment names kubectl and the cluster.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.root).env("KUBECONFIG", &self.plane.kubeconfig).env("PATH", &self.path);
        command
    }

    /// Writes a file with this text to the scratch folder and returns its path.
    pub(super) fn written(&self, name: &str, text: &str) -> Result<String, E2eError> {
        let path = self.setup.scratch.join(name);
        write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// Renders an overlay given as YAML and returns its objects.
    pub(super) fn objects(&self, overlay: &str) -> Result<Vec<Value>, E2eError> {
        let file = self.written("overlay.yaml", overlay)?;
        let printed = self.kubectl(["create", "--dry-run=client", "--output", "json", "-f", &file])?;
        let found = serde_json::Deserializer::from_str(&printed).into_iter::<Value>().flatten();
        let objects = found.flat_map(|object| match object["items"].as_array() {
            Some(items) => items.clone(),
            None => vec![object],
        });
        Ok(objects.collect())
    }

    /// Waits for a condition, and notes the result. `check` returns what is missing.
    pub(super) fn until(
        &mut self,
        condition: &str,
        mut check: impl FnMut(&Self) -> Result<(), String>,
    ) -> Result<(), E2eError> {
        let mut last = String::new();
        let reached = wait::poll_every(PAUSE, BOUND, || check(self).map_err(|missing| last = missing).ok());
        let waited_for = condition.to_owned();
        reached.ok_or(E2eError::Timeout { waited_for, bound: BOUND, last })?;
        self.note(true, condition);
        Ok(())
    }

    /// Returns the object at a path of the API.
    pub(super) fn object(&self, path: &str) -> Result<Value, String> {
        let object = self.plane.api.read(path).map_err(|error| error.to_string())?;
        object.ok_or_else(|| format!("{path} does not exist"))
    }

    /// Checks that a field of an object has this value.
    pub(super) fn is(&self, path: &str, field: &str, value: impl Into<Value>) -> Result<(), String> {
        let object = self.object(path)?;
        let (found, value) = (object.pointer(field).unwrap_or(&Value::Null), value.into());
        if *found == value { Ok(()) } else { Err(format!("{path}: {field} is {found}, not {value}")) }
    }

    /// Checks that a collection has a matching object.
    pub(super) fn any(&self, collection: &str, holds: impl Fn(&Value) -> bool) -> Result<(), String> {
        let items = self.object(collection)?["items"].take();
        let found = items.as_array().is_some_and(|items| items.iter().any(holds));
        if found { Ok(()) } else { Err(format!("{collection} has {items}")) }
    }

    /// Checks that a collection has no matching object.
    pub(super) fn none(&self, collection: &str, holds: impl Fn(&Value) -> bool) -> Result<(), String> {
        let items = self.object(collection)?["items"].take();
        let found: Option<Vec<&Value>> =
            items.as_array().map(|items| items.iter().filter(|item| holds(item)).collect());
        if found.as_ref().is_some_and(Vec::is_empty) {
            Ok(())
        } else {
            Err(format!("{collection} has {found:?}"))
        }
    }

    /// Creates a claim and a pod, both with this name.
    pub(super) fn claim(&self, name: &str) -> Result<(), E2eError> {
        let mut text = read(&self.root.join("deploy/examples/dynamic.yaml"))?;
        for (key, old) in [("name", "data"), ("claimName", "data"), ("name", "writer")] {
            text = text.replace(&format!("  {key}: {old}\n"), &format!("  {key}: {name}\n"));
        }
        let file = self.written("claim.yaml", &text)?;
        self.kubectl(["apply", "-f", &file]).map(drop)
    }

    /// Runs the commands of a page of the guide that [`guide::script`] selects, and returns their output. The commands
    /// create temporary folders in `folder`.
    pub(super) fn page(
        &mut self,
        page: &str,
        (marks, is_cleanup): (&[Mark], bool),
        folder: &Path,
        change: impl FnOnce(String) -> String,
    ) -> Result<String, E2eError> {
        let script = change(guide::script(page, marks, is_cleanup));
        let mut shell = self.command("bash");
        shell.args(["-euo", "pipefail", "-c", &script]).env("TMPDIR", folder);
        let name = if is_cleanup { format!("{page}-cleanup") } else { page.to_owned() };
        let mut process = Process::spawn(self.setup.logs, &name, &mut shell)?;
        if !process.finish(PAGE)? {
            return Err(E2eError::Guide { page: name, tail: process.tail() });
        }
        self.note(true, format!("the commands of {name}"));
        Ok(process.log())
    }

    /// Writes the kubeconfig of a service account in the namespace `edge-csi`, with its token as the only credential.
    pub(super) fn kubeconfig_of(&self, account: &str) -> Result<PathBuf, E2eError> {
        let token = self.kubectl(["create", "token", account, "--namespace", "edge-csi", "--duration=1h"])?;
        let (path, invalid) = (self.plane.kubeconfig.clone(), std::io::Error::from);
        let mut config: Value = serde_json::from_str(&read(&path)?)
            .map_err(|cause| E2eError::File { path, cause: invalid(cause) })?;
        config["users"][0]["user"] = json!({"token": token.trim()});
        self.written("account.kubeconfig", &config.to_string()).map(PathBuf::from)
    }
}
