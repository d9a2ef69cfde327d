//! The manifests against an API server that authorizes by RBAC: every overlay and component is accepted, pods meet the level of
//! their namespace, and the accounts may do what they do and no more.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::rights::{self, Account};
use crate::error::RealError;
use crate::kubernetes::Plane;
use crate::setup::Setup;
use crate::table::Fact;

/// Time for what the server or a controller does a moment later.
const SOON: Duration = Duration::from_secs(60);

/// Time in which the authorizer learns of a role.
const LEARNT: Duration = Duration::from_secs(10);

/// Accounts that pods have: they are admitted only if it exists.
const ACCOUNTS: [(&str, &str); 3] =
    [("edge-csi", "edge-hub"), ("edge-csi", "edge-csi-controller"), ("edge-csi-node", "edge-csi-node")];

/// The roles of the sidecars' account.
const SIDECAR_ROLES: [&str; 5] = ["provisioner", "attacher", "resizer", "snapshotter", "leader-election"];

/// A server, and the manifests that are held against it.
struct Check<'a> {
    setup: Setup<'a>,
    plane: Plane,
    /// The folder `deploy`.
    manifests: PathBuf,
    facts: Vec<Fact>,
}

/// Makes all the checks; `definitions` are folders with definitions of resources that the manifests use.
pub(super) fn run(setup: Setup<'_>, root: &Path, definitions: &[PathBuf]) -> Result<Vec<Fact>, RealError> {
    let plane = Plane::start(&setup)?;
    let mut check = Check { setup, plane, manifests: root.join("deploy"), facts: Vec::new() };
    check.prepare(definitions)?;
    let overlays = check.overlays()?;
    check.components()?;
    check.pods(&overlays)?;
    check.rights()?;
    Ok(check.facts)
}

impl Check<'_> {
    /// Defines what the manifests use, and makes their namespaces, in which pods that are not restricted give a warning.
    fn prepare(&mut self, definitions: &[PathBuf]) -> Result<(), RealError> {
        let mut text = String::new();
        for file in definitions.iter().map(|folder| yaml_in(folder)).collect::<Result<Vec<_>, _>>()?.concat()
        {
            // cert-manager's are a chart's, with labels to be filled in.
            let defined = read(&file)?;
            text.extend(defined.lines().filter(|line| !line.contains("{{")).flat_map(|line| [line, "\n"]));
            text.push_str("---\n");
        }
        let file = self.written("definitions.yaml", &text)?;
        self.kubectl(["apply", "--server-side", "--force-conflicts", "-f", &file])?;
        self.kubectl(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
        self.kubectl(["apply", "-k", "base/namespaces"])?;
        let level = "pod-security.kubernetes.io/warn=restricted";
        self.kubectl(["label", "namespace", "edge-csi", level, "--overwrite"])?;
        for namespace in ["default", "edge-csi", "edge-csi-node"] {
            let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
            self.plane.api.until(&account, "made", SOON, |_| Some(()))?;
        }
        Ok(())
    }

    /// Every overlay: it is accepted, its images have versions, and its agent sees the drivers' sockets. Their names and texts.
    fn overlays(&mut self) -> Result<Vec<(String, String)>, RealError> {
        let mut overlays = Vec::new();
        for folder in entries(&self.manifests.join("overlays"))? {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = self.kubectl(["kustomize", &format!("overlays/{name}")])?;
            self.accepted(&format!("overlay {name}"), &text)?;
            let untagged: Vec<&str> = text.lines().filter(|line| is_image_without_version(line)).collect();
            self.note(untagged.is_empty(), format!("overlay {name}: images without a version: {untagged:?}"));
            // A name that kustomize looks for is taken for a part of another as well.
            let sees = text.lines().any(|line| line.ends_with("path: /var/lib/kubelet/plugins"));
            self.note(sees, format!("overlay {name}: the agent sees the drivers' sockets"));
            overlays.push((name, text));
        }
        Ok(overlays)
    }

    /// Every component and every example.
    fn components(&mut self) -> Result<(), RealError> {
        // The namespace of a component cannot be tried, as long as nothing has made it.
        self.kubectl(["create", "namespace", "edge-csi-secrets", "--save-config"])?;
        for component in ["cert-manager", "secrets"] {
            let text = self.with_components(&[component])?;
            self.accepted(&format!("component {component}"), &text)?;
        }
        let text = self.with_components(&["without-snapshots"])?;
        self.accepted("component without-snapshots", &text)?;
        let left = text.contains("csi-snapshotter") || text.contains("VolumeSnapshotClass");
        self.note(!left, "without-snapshots leaves nothing of snapshots");
        let text = self.with_components(&["secrets", "hub-kubernetes"])?;
        self.accepted("components of the hub", &text)?;
        let mut files = yaml_in(&self.manifests.join("examples"))?;
        files.push(self.manifests.join("components/cert-manager/node-certificate.yaml"));
        for file in files {
            self.accepted(&file.display().to_string(), &read(&file)?)?;
        }
        Ok(())
    }

    /// Three kinds of pods, as their namespaces demand.
    fn pods(&mut self, overlays: &[(String, String)]) -> Result<(), RealError> {
        for (namespace, name) in ACCOUNTS {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            self.plane.api.create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account)?;
        }
        for overlay in ["topology", "sockets"] {
            let text = overlays.iter().find(|(name, _)| name == overlay).map(|(_, text)| text.as_str());
            let file = self.written("overlay.yaml", text.unwrap_or_default())?;
            let objects = self.kubectl(["create", "--dry-run=client", "--output", "json", "-f", &file])?;
            let pods = pods_of(&objects);
            self.note(pods.len() == 3, format!("{overlay} has {} kinds of pods, of 3", pods.len()));
            let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
            self.accepted(&format!("pods of {overlay}"), &list.to_string())?;
        }
        Ok(())
    }

    /// What the accounts may do: what the sources of the sidecars and of the hub ask for.
    fn rights(&mut self) -> Result<(), RealError> {
        let nobody = Account { namespace: "default", name: "nobody" };
        let refused = !nobody.may(&self.plane.api, &rights::Right::new("get", "nodes", None))?;
        self.note(refused, "an account without roles may not get nodes");
        for role in SIDECAR_ROLES {
            self.kubectl(["apply", "-f", &format!("base/controller/rbac-{role}.yaml")])?;
        }
        let controller = Account { namespace: "edge-csi", name: "edge-csi-controller" };
        self.all_may(controller, true, rights::SIDECARS_NEED)?;
        self.all_may(controller, false, rights::SIDECARS_ARE_REFUSED)?;
        self.kubectl(["apply", "-f", "components/secrets/rbac-secrets.yaml"])?;
        self.all_may(controller, true, "get secrets edge-csi-secrets")?;
        self.all_may(controller, false, "list secrets edge-csi-secrets\nget secrets edge-csi")?;
        self.kubectl(["apply", "-f", "components/hub-kubernetes/rbac-hub.yaml"])?;
        let hub = Account { namespace: "edge-csi", name: "edge-hub" };
        self.all_may(hub, true, rights::HUB_NEEDS)?;
        self.all_may(hub, false, rights::HUB_IS_REFUSED)
    }

    /// Whether an account may do everything on a list, or nothing of it.
    fn all_may(&mut self, account: Account, may: bool, list: &str) -> Result<(), RealError> {
        let rights = rights::list(list);
        let mut wrong = Vec::new();
        for right in &rights {
            // The authorizer may learn of a role a moment after it was made; a right that nobody gave does not go by itself.
            let bound = if may { LEARNT } else { Duration::ZERO };
            let mut asked = Ok(false);
            let as_it_should = wait::poll(bound, || {
                asked = account.may(&self.plane.api, right);
                asked.as_ref().map_or(true, |allowed| *allowed == may).then_some(())
            });
            asked?;
            if as_it_should.is_none() {
                wrong.push(right.to_string());
            }
        }
        let words = if may { "may do" } else { "may not do" };
        let (name, all) = (account.name, rights.len());
        let words = format!("{name} {words} {} of {all} things; wrong: {wrong:?}", all - wrong.len());
        self.note(wrong.is_empty(), words);
        Ok(())
    }

    fn note(&mut self, right: bool, words: impl Into<String>) {
        self.facts.push(Fact { words: words.into(), right });
    }

    /// Notes whether objects would be taken as they are, without a warning.
    fn accepted(&mut self, name: &str, objects: &str) -> Result<(), RealError> {
        let file = self.written("objects.yaml", objects)?;
        let tried = self.kubectl([
            "apply",
            "--server-side",
            "--force-conflicts",
            "--field-manager=check",
            "--dry-run=server",
            "--warnings-as-errors",
            "-f",
            &file,
        ]);
        match tried {
            Ok(_) => self.note(true, format!("{name} is accepted")),
            Err(RealError::Command { output, .. }) => {
                let said: Vec<&str> =
                    output.lines().filter(|line| !line.contains("serverside-applied")).collect();
                self.note(false, format!("{name} is not accepted: {}", said.join("\n")));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// The overlay `topology` with components on top.
    fn with_components(&self, components: &[&str]) -> Result<String, RealError> {
        let folder = self.setup.folder("overlay")?;
        // Paths in it have to be relative.
        let up = "../".repeat(folder.components().count() - 1);
        let manifests = self.manifests.strip_prefix("/").unwrap_or(&self.manifests).display();
        let components: String = components
            .iter()
            .map(|component| format!("- {up}{manifests}/components/{component}\n"))
            .collect();
        let text = format!(
            "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n\
             resources: [{up}{manifests}/overlays/topology]\ncomponents:\n{components}"
        );
        write(&folder.join("kustomization.yaml"), &text)?;
        self.kubectl(["kustomize", &folder.display().to_string()])
    }

    fn written(&self, name: &str, text: &str) -> Result<String, RealError> {
        let path = self.setup.scratch.join(name);
        write(&path, text)?;
        Ok(path.display().to_string())
    }

    /// What kubectl prints; it has to go well.
    fn kubectl<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Result<String, RealError> {
        let mut command: Command = self.plane.client(&self.setup, "kubectl");
        command.args(arguments).current_dir(&self.manifests);
        crate::component::check("kubectl", command.output(), "`.ci/run tools` should have made it")
    }
}

/// The pods that the sets and deployments in kubectl's JSON would make, as objects of their own.
fn pods_of(objects: &str) -> Vec<Value> {
    let found = serde_json::Deserializer::from_str(objects).into_iter::<Value>().flatten();
    let objects = found.flat_map(|object| match object["items"].as_array() {
        Some(items) => items.clone(),
        None => vec![object],
    });
    objects
        .filter(|owner| ["StatefulSet", "Deployment", "DaemonSet"].iter().any(|kind| owner["kind"] == *kind))
        .map(|owner| {
            let mut pod = owner["spec"]["template"].clone();
            (pod["apiVersion"], pod["kind"]) = ("v1".into(), "Pod".into());
            for key in ["name", "namespace"] {
                pod["metadata"][key] = owner["metadata"][key].clone();
            }
            for claim in owner["spec"]["volumeClaimTemplates"].as_array().into_iter().flatten() {
                let name = &claim["metadata"]["name"];
                let volume = json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
                pod["spec"]["volumes"].as_array_mut().into_iter().for_each(|all| all.push(volume.clone()));
            }
            pod
        })
        .collect()
}

fn is_image_without_version(line: &str) -> bool {
    let line = line.trim_start();
    let Some(image) = line.strip_prefix("- ").unwrap_or(line).trim_start().strip_prefix("image: ") else {
        return false;
    };
    let version = image.rsplit_once(':').map(|(_, tag)| tag.strip_prefix('v').unwrap_or(tag));
    let is_version = |tag: &str| !tag.is_empty() && tag.chars().all(|one| one.is_ascii_digit() || one == '.');
    image.contains(' ') || !version.is_some_and(is_version)
}

/// The files with objects in a folder.
fn yaml_in(folder: &Path) -> Result<Vec<PathBuf>, RealError> {
    let mut files = entries(folder)?;
    files.retain(|file| {
        file.extension().is_some_and(|it| it == "yaml") && !file.ends_with("kustomization.yaml")
    });
    Ok(files)
}

/// What is in a folder, which must not be empty.
fn entries(folder: &Path) -> Result<Vec<PathBuf>, RealError> {
    let failed = |cause| RealError::Folder { path: folder.to_owned(), cause };
    let mut found: Vec<PathBuf> =
        fs::read_dir(folder).map_err(failed)?.flatten().map(|entry| entry.path()).collect();
    if found.is_empty() {
        return Err(failed(std::io::ErrorKind::NotFound.into()));
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String, RealError> {
    fs::read_to_string(path).map_err(|cause| RealError::File { path: path.to_owned(), cause })
}

fn write(path: &Path, text: &str) -> Result<(), RealError> {
    fs::write(path, text).map_err(|cause| RealError::File { path: path.to_owned(), cause })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_needs_a_version() {
        for (line, wrong) in [
            ("      - image: registry.k8s.io/a:v1.2.3", false),
            ("        image: a/b:0.1.0", false),
            ("        image: a/b", true),
            ("        image: a/b:latest", true),
            ("        imagePullPolicy: Always", false),
        ] {
            assert_eq!(is_image_without_version(line), wrong, "{line}");
        }
    }

    #[test]
    fn a_set_gives_a_pod_with_its_claims() {
        let set = json!({
            "kind": "StatefulSet", "metadata": {"name": "a", "namespace": "b"},
            "spec": {
                "template": {"metadata": {}, "spec": {"volumes": []}},
                "volumeClaimTemplates": [{"metadata": {"name": "state"}}],
            },
        });
        let pods = pods_of(&format!("{set}\n{}", json!({"kind": "Service"})));
        assert_eq!(pods.len(), 1);
        assert_eq!((&pods[0]["kind"], &pods[0]["metadata"]["name"]), (&"Pod".into(), &"a".into()));
        assert_eq!(pods[0]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "state");
    }
}
