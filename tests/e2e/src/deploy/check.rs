//! Checks the manifests against an API server with RBAC: the server accepts every overlay and component, pods meet the security
//! level of their namespace, the accounts have exactly the rights that they need, and no other container has a token.

use std::path::{Path, PathBuf};
use std::time::Duration;

use edge_csi_tests::wait;
use serde_json::{Value, json};

use super::cluster::TestCluster;
use super::rights::{self, Account};
use super::{entries, policies, read, write};
use crate::error::E2eError;
use crate::kubernetes::Plane;
use crate::setup::Setup;
use crate::table::Fact;

/// Time until the authorizer has seen a new role.
const ROLE_DELAY: Duration = Duration::from_secs(10);

/// Service accounts of pods: a pod is admitted only if its account exists.
const ACCOUNTS: [(&str, &str); 3] =
    [("edge-csi", "edge-hub"), ("edge-csi", "edge-csi-controller"), ("edge-csi-node", "edge-csi-node")];

/// The roles of the sidecars' account.
const SIDECAR_ROLES: [&str; 5] = ["provisioner", "attacher", "resizer", "snapshotter", "leader-election"];

/// A server, and the manifests to check against it.
struct Check<'a> {
    cluster: TestCluster<'a>,
    /// The folder `deploy`.
    manifests: PathBuf,
}

/// Runs all checks. `definitions` are folders with the definitions of resources that the manifests use.
pub(super) fn run(setup: Setup<'_>, root: &Path, definitions: &[PathBuf]) -> Result<Vec<Fact>, E2eError> {
    let cluster = TestCluster::new(setup, root, Plane::start(&setup)?)?;
    let mut check = Check { cluster, manifests: root.join("deploy") };
    check.prepare(definitions)?;
    let overlays = check.overlays()?;
    check.components()?;
    check.pods(&overlays)?;
    check.rights()?;
    policies::check(&mut check.cluster)?;
    Ok(check.cluster.into_facts())
}

impl Check<'_> {
    /// Creates the definitions that the manifests use, and their namespaces, which warn about unrestricted pods.
    fn prepare(&mut self, definitions: &[PathBuf]) -> Result<(), E2eError> {
        let mut text = String::new();
        for file in definitions.iter().map(|folder| yaml_in(folder)).collect::<Result<Vec<_>, _>>()?.concat()
        {
            // cert-manager's definitions are a Helm template with labels to fill in.
            let defined = read(&file)?;
            text.extend(defined.lines().filter(|line| !line.contains("{{")).flat_map(|line| [line, "\n"]));
            text.push_str("---\n");
        }
        let file = self.cluster.written("definitions.yaml", &text)?;
        self.cluster.kubectl(["apply", "--server-side", "--force-conflicts", "-f", &file])?;
        self.cluster.kubectl(["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"])?;
        self.cluster.kubectl(["apply", "-k", "base/namespaces"])?;
        let level = "pod-security.kubernetes.io/warn=restricted";
        self.cluster.kubectl(["label", "namespace", "edge-csi", level, "--overwrite"])?;
        for namespace in ["default", "edge-csi", "edge-csi-node"] {
            let account = format!("/api/v1/namespaces/{namespace}/serviceaccounts/default");
            let exists = format!("{namespace} has an account");
            self.cluster.until(&exists, |c| c.object(&account).map(drop))?;
        }
        Ok(())
    }

    /// Checks that every overlay is accepted, that its images have versions and that its agent sees the drivers' sockets.
    /// Returns names and texts.
    fn overlays(&mut self) -> Result<Vec<(String, String)>, E2eError> {
        let mut overlays = Vec::new();
        for folder in entries(&self.manifests.join("overlays"))? {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let text = self.cluster.kubectl(["kustomize", &format!("overlays/{name}")])?;
            self.accepted(&format!("overlay {name}"), &text)?;
            let untagged: Vec<&str> = text.lines().filter(|line| is_image_without_version(line)).collect();
            self.cluster
                .note(untagged.is_empty(), format!("overlay {name}: images without a version: {untagged:?}"));
            // kustomize also matches names that contain the given name, so it could change the wrong volume.
            let sees = text.lines().any(|line| line.ends_with("path: /var/lib/kubelet/plugins"));
            self.cluster.note(sees, format!("overlay {name}: the agent sees the drivers' sockets"));
            overlays.push((name, text));
        }
        Ok(overlays)
    }

    /// Checks every component and every example.
    fn components(&mut self) -> Result<(), E2eError> {
        // A dry run cannot create the namespace of a component, and objects in a missing namespace are refused.
        self.cluster.kubectl(["create", "namespace", "edge-csi-secrets", "--save-config"])?;
        for component in ["cert-manager", "secrets"] {
            let text = self.with_components(&[component])?;
            self.accepted(&format!("component {component}"), &text)?;
        }
        let text = self.with_components(&["without-snapshots"])?;
        self.accepted("component without-snapshots", &text)?;
        let left = text.contains("csi-snapshotter") || text.contains("VolumeSnapshotClass");
        self.cluster.note(!left, "without-snapshots leaves nothing of snapshots");
        let text = self.with_components(&["two-proxies", "cert-manager"])?;
        self.accepted("component two-proxies", &text)?;
        let text = self.with_components(&["two-proxies", "without-snapshots"])?;
        self.accepted("component two-proxies without snapshots", &text)?;
        let left = text.contains("csi-snapshotter") || text.contains("StatefulSet");
        self.cluster
            .note(!left, "two-proxies leaves no StatefulSet, and without-snapshots no sidecar of snapshots");
        let text = self.with_components(&["secrets", "hub-kubernetes"])?;
        self.accepted("components of the hub", &text)?;
        let text = self.with_components(&["secrets", "hub-kubernetes", "node-renewal"])?;
        self.accepted("component node-renewal", &text)?;
        let text = self.with_components(&["secrets", "hub-kubernetes", "kubeedge"])?;
        self.accepted("component kubeedge", &text)?;
        let is_set = text.contains("--csi-node") && text.contains("allowVolumeExpansion: false");
        self.cluster.note(is_set, "kubeedge has agents report their drivers, and classes without expansion");
        let mut files = yaml_in(&self.manifests.join("examples"))?;
        files.push(self.manifests.join("components/cert-manager/node-certificate.yaml"));
        for file in files {
            self.accepted(&file.display().to_string(), &read(&file)?)?;
        }
        Ok(())
    }

    /// Checks three kinds of pods against the security levels of their namespaces.
    fn pods(&mut self, overlays: &[(String, String)]) -> Result<(), E2eError> {
        for (namespace, name) in ACCOUNTS {
            let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}});
            self.cluster
                .plane
                .api
                .create(&format!("/api/v1/namespaces/{namespace}/serviceaccounts"), &account)?;
        }
        for overlay in ["topology", "sockets", "two-proxies"] {
            let text = overlays.iter().find(|(name, _)| name == overlay).map(|(_, text)| text.as_str());
            let pods = pods_of(self.cluster.objects(text.unwrap_or_default())?);
            self.cluster.note(pods.len() == 3, format!("{overlay} has {} kinds of pods, of 3", pods.len()));
            let with_token = containers_with_token(&pods);
            let may = |name: &&str| {
                name.starts_with("csi-") || (overlay == "two-proxies" && *name == "edge-csi-driver")
            };
            let sidecars = with_token.len() > 1 && with_token.iter().all(may);
            self.cluster.note(sidecars, format!("{overlay}: the containers {with_token:?} have a token"));
            let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
            self.accepted(&format!("pods of {overlay}"), &list.to_string())?;
        }
        Ok(())
    }

    /// Checks the accounts' rights against the requests that the sources of the sidecars and of the hub make.
    fn rights(&mut self) -> Result<(), E2eError> {
        let stranger = Account { namespace: "default", name: "stranger" };
        let refused = !stranger.may(&self.cluster.plane.api, &rights::Right::new("get", "nodes", None))?;
        self.cluster.note(refused, "an account without roles may not get nodes");
        for role in SIDECAR_ROLES {
            self.cluster.kubectl(["apply", "-f", &format!("base/controller/rbac-{role}.yaml")])?;
        }
        let controller = Account { namespace: "edge-csi", name: "edge-csi-controller" };
        self.all_may(controller, true, rights::SIDECARS_NEED)?;
        self.all_may(controller, false, rights::SIDECARS_ARE_REFUSED)?;
        self.cluster.kubectl(["apply", "-f", "components/secrets/rbac-secrets.yaml"])?;
        self.all_may(controller, true, "get secrets edge-csi-secrets")?;
        self.all_may(controller, false, "list secrets edge-csi-secrets\nget secrets edge-csi")?;
        self.all_may(controller, false, "get,list,create placements.edge-csi.io edge-csi")?;
        self.cluster.kubectl(["apply", "-f", "components/two-proxies/rbac-placements.yaml"])?;
        self.all_may(controller, true, rights::PROXY_NEEDS)?;
        self.all_may(controller, false, rights::PROXY_IS_REFUSED)?;
        self.cluster.kubectl(["apply", "-f", "components/hub-kubernetes/rbac-hub.yaml"])?;
        let hub = Account { namespace: "edge-csi", name: "edge-hub" };
        self.all_may(hub, true, rights::HUB_NEEDS)?;
        self.all_may(hub, false, rights::HUB_IS_REFUSED)?;
        self.all_may(hub, false, rights::RENEWAL_NEEDS)?;
        self.cluster.kubectl(["apply", "-f", "components/node-renewal/rbac-certificates.yaml"])?;
        self.all_may(hub, true, rights::RENEWAL_NEEDS)?;
        self.all_may(hub, false, rights::RENEWAL_IS_REFUSED)?;
        let node = Account { namespace: "edge-csi-node", name: "edge-csi-node" };
        self.all_may(node, false, rights::SIDECARS_NEED)?;
        self.all_may(node, false, rights::HUB_NEEDS)
    }

    /// Notes whether an account has every right on a list, or no right on it.
    fn all_may(&mut self, account: Account, may: bool, list: &str) -> Result<(), E2eError> {
        let rights = rights::list(list);
        let mut wrong = Vec::new();
        for right in &rights {
            // The authorizer may see a role shortly after its creation; a right without a grant does not disappear by itself.
            let bound = if may { ROLE_DELAY } else { Duration::ZERO };
            let mut asked = Ok(false);
            let as_it_should = wait::poll(bound, || {
                asked = account.may(&self.cluster.plane.api, right);
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
        self.cluster.note(wrong.is_empty(), words);
        Ok(())
    }

    /// Notes whether a dry run accepts the objects unchanged and without a warning.
    fn accepted(&mut self, name: &str, objects: &str) -> Result<(), E2eError> {
        let file = self.cluster.written("objects.yaml", objects)?;
        let tried = self.cluster.kubectl([
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
            Ok(_) => self.cluster.note(true, format!("{name} is accepted")),
            Err(E2eError::Command { output, .. }) => {
                let said: Vec<&str> =
                    output.lines().filter(|line| !line.contains("serverside-applied")).collect();
                self.cluster.note(false, format!("{name} is not accepted: {}", said.join("\n")));
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Renders the overlay `topology` with additional components.
    fn with_components(&self, components: &[&str]) -> Result<String, E2eError> {
        let folder = self.cluster.setup.folder("overlay")?;
        // kustomize accepts only relative paths.
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
        self.cluster.kubectl(["kustomize", &folder.display().to_string()])
    }
}

/// Returns the pods that these objects' StatefulSets, DaemonSets and Deployments would create, as standalone objects.
fn pods_of(objects: Vec<Value>) -> Vec<Value> {
    objects
        .into_iter()
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

/// Returns the names of the containers that can read the token of their pod's account.
fn containers_with_token(pods: &[Value]) -> Vec<&str> {
    let mut found = Vec::new();
    for pod in pods {
        let automounts = pod["spec"]["automountServiceAccountToken"] != false;
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let is_token = |volume: &&Value| {
            let sources = volume["projected"]["sources"].as_array();
            sources.is_some_and(|all| all.iter().any(|source| source["serviceAccountToken"].is_object()))
        };
        let tokens: Vec<&Value> = volumes.filter(is_token).map(|volume| &volume["name"]).collect();
        let containers = ["initContainers", "containers"];
        for container in containers.iter().flat_map(|key| pod["spec"][*key].as_array()).flatten() {
            let mut mounts = container["volumeMounts"].as_array().into_iter().flatten();
            if automounts || mounts.any(|mount| tokens.contains(&&mount["name"])) {
                found.push(container["name"].as_str().unwrap_or_default());
            }
        }
    }
    found
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

/// Returns the YAML files with objects in a folder.
fn yaml_in(folder: &Path) -> Result<Vec<PathBuf>, E2eError> {
    let mut files = entries(folder)?;
    files.retain(|file| {
        file.extension().is_some_and(|it| it == "yaml") && !file.ends_with("kustomization.yaml")
    });
    Ok(files)
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
    fn a_token_is_automounted_or_in_a_projected_volume() {
        let pod = |automount: bool| {
            json!({"spec": {
                "automountServiceAccountToken": automount,
                "volumes": [
                    {"name": "api", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}},
                    {"name": "tls", "secret": {"secretName": "s"}},
                ],
                "containers": [
                    {"name": "a", "volumeMounts": [{"name": "tls"}, {"name": "api"}]},
                    {"name": "b", "volumeMounts": [{"name": "tls"}]},
                ],
            }})
        };
        assert_eq!(containers_with_token(&[pod(false)]), ["a"]);
        assert_eq!(containers_with_token(&[pod(true)]), ["a", "b"]);
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
        let pods = pods_of(vec![set, json!({"kind": "Service"})]);
        assert_eq!(pods.len(), 1);
        assert_eq!((&pods[0]["kind"], &pods[0]["metadata"]["name"]), (&"Pod".into(), &"a".into()));
        assert_eq!(pods[0]["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "state");
    }
}
