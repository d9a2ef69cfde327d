//! The programs accept the command lines and variables in the manifests of `deploy/`.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use edge_csi_tests::command_line::{PROGRAMS, accepts};
use edge_csi_tests::guide::root;
use edge_csi_tests::manifest::{Container, containers};

fn files(folder: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(root().join(folder)).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(self::files(&format!("{folder}/{}", entry.file_name().display())));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            files.push(path);
        }
    }
    files.sort();
    files
}

/// Returns our containers in all manifests, with the file of each.
fn own_containers() -> Vec<(String, Container)> {
    let mut found = Vec::new();
    for file in files("deploy") {
        let text = fs::read_to_string(&file).unwrap();
        let name = file.strip_prefix(root()).unwrap().display().to_string();
        found.extend(containers(&text, &PROGRAMS).into_iter().map(|container| (name.clone(), container)));
    }
    found
}

#[test]
fn every_container_argument_is_accepted_by_its_program() {
    let containers = own_containers();
    let base: BTreeMap<&str, &Container> = containers
        .iter()
        .filter(|(file, _)| file.starts_with("deploy/base/"))
        .map(|(_, container)| (container.name.as_str(), container))
        .collect();
    let programs: Vec<&str> = base.keys().copied().collect();
    assert_eq!(programs, ["edge-agent", "edge-csi-driver", "edge-hub", "hostpath-driver"]);
    assert!(base.values().all(|container| container.arguments.len() > 2), "{base:?}");
    let mut wrong = Vec::new();
    for (file, container) in &containers {
        // A container that an overlay patches keeps the variables of the base.
        let mut whole = container.clone();
        for (name, value) in &base[container.name.as_str()].environment {
            whole.environment.entry(name.clone()).or_insert_with(|| value.clone());
        }
        let said = whole.command_line().and_then(|arguments| accepts(&container.name, &arguments));
        wrong.extend(said.err().map(|said| format!("{file}: {said}")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_agent_accepts_every_argument_of_the_unit() {
    let unit =
        fs::read_to_string(root().join("deploy/systemd/edge-agent.service")).unwrap().replace("\\\n", " ");
    let line =
        unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/edge-agent ")).unwrap();
    let arguments: Vec<String> = line.replace("%H", "edge-1").split_whitespace().map(str::to_owned).collect();
    assert!(arguments.len() > 10, "{arguments:?}");
    assert_eq!(accepts("edge-agent", &arguments), Ok(()));
}

#[test]
fn the_proxy_reads_every_variable_of_the_proposal() {
    let containers = own_containers();
    let (_, proxy) = containers.iter().find(|(_, container)| container.name == "edge-csi-driver").unwrap();
    for name in ["CSI_DRIVERNAME", "CSI_ENDPOINT", "KUBEEDGE_ENDPOINT"] {
        assert!(proxy.environment.contains_key(name), "{name}");
    }
}

#[test]
fn the_dockerfile_builds_every_image_of_the_manifests() {
    let dockerfile = fs::read_to_string(root().join("deploy/images/Dockerfile")).unwrap();
    let images = fs::read_to_string(root().join("deploy/components/images/kustomization.yaml")).unwrap();
    for name in ["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver"] {
        assert!(dockerfile.contains(&format!(" AS {name}\n")), "no target {name}");
        assert!(dockerfile.contains(&format!("--package {name}")), "{name} is not built");
        assert!(dockerfile.contains(&format!("ENTRYPOINT [\"/{name}\"]")), "{name} is not started");
        assert!(images.contains(&format!("- name: {name}\n")), "no image {name}");
    }
    // The component two-proxies needs it.
    assert!(dockerfile.contains("--features kubernetes --package edge-csi-driver"), "{dockerfile}");
}

fn text(file: &str) -> String {
    fs::read_to_string(root().join("deploy").join(file)).unwrap()
}

/// Returns the object of a kind and name in a file.
fn object(file: &str, kind: &str, name: &str) -> String {
    let text = text(file);
    let mut objects = text.split("\n---\n");
    let is_it = |object: &&str| {
        object.contains(&format!("kind: {kind}\n")) && object.contains(&format!("\n  name: {name}\n"))
    };
    objects.find(is_it).unwrap_or_else(|| panic!("{file}: no {kind} {name}")).to_owned()
}

/// Returns the only value of a key in an object.
fn value<'a>(object: &'a str, key: &str) -> &'a str {
    let prefix = format!("{key}: ");
    let mut values = object.lines().filter_map(|line| line.trim_start().strip_prefix(&prefix));
    let value = values.next().unwrap_or_else(|| panic!("no {key} in {object}"));
    assert_eq!(values.next(), None, "{key}");
    value
}

const HUB: &str = "base/hub/deployment.yaml";
const CONTROLLER: &str = "base/controller/statefulset.yaml";
const TWO_PROXIES: &str = "components/two-proxies/kustomization.yaml";
const SIDECARS: [&str; 4] = ["csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter"];

/// A proxy reaches every hub: the name that it dials is that of the headless service, which selects the hubs, and is in their
/// certificate.
#[test]
fn proxies_dial_the_headless_service_of_the_hubs() {
    let controller = text(CONTROLLER);
    let proxy = containers(&controller, &["edge-csi-driver"]).remove(0);
    // One URL: each hub refuses a second path of a connected proxy.
    let host_and_port = proxy.environment["KUBEEDGE_ENDPOINT"].strip_prefix("wss://").unwrap();
    let (host, port) = host_and_port.split_once(':').unwrap();
    let name = host.strip_suffix(".edge-csi.svc").unwrap();
    let service = object("base/hub/service.yaml", "Service", name);
    assert_eq!(value(&service, "clusterIP"), "None");
    assert_eq!(value(&service, "publishNotReadyAddresses"), "false");
    assert!(service.contains(&format!("port: {port}\n      targetPort: ws\n")), "{service}");
    let hub = object(HUB, "Deployment", "edge-hub");
    assert!(hub.contains(&format!("- name: ws\n              containerPort: {port}\n")), "{hub}");
    let label = "app.kubernetes.io/name: edge-hub\n";
    assert!(service.contains(&format!("  selector:\n    {label}")), "{service}");
    assert!(hub.contains(&format!("    metadata:\n      labels:\n        {label}")), "{hub}");
    assert!(text("components/cert-manager/certificates.yaml").contains(&format!("    - {host}\n")));
    let install = fs::read_to_string(root().join("docs/src/install.md")).unwrap();
    let certificate = install.lines().find(|line| line.starts_with("certificate hub ")).unwrap();
    assert!(certificate.contains(&format!("DNS:{host} ")), "{certificate}");
}

/// A hub has time to drain, gets no links meanwhile, and is not drained together with another one.
#[test]
fn hubs_drain_one_by_one() {
    let hub = object(HUB, "Deployment", "edge-hub");
    let seconds = |value: &str| value.trim_end_matches('s').parse::<u32>().unwrap();
    let container = containers(&hub, &["edge-hub"]).remove(0);
    let drain = container.arguments.iter().find_map(|it| it.strip_prefix("--drain-timeout=")).unwrap();
    assert!(seconds(value(&hub, "terminationGracePeriodSeconds")) > seconds(drain) + 1);
    let (_, probe) = hub.split_once("readinessProbe:\n").unwrap();
    assert!(probe.trim_start().starts_with("httpGet:\n              path: /readyz\n"), "{probe}");
    assert!(value(&hub, "replicas").parse::<u32>().unwrap() > 1);
    assert_eq!((value(&hub, "maxUnavailable"), value(&hub, "maxSurge")), ("0", "1"));
    let zones = hub.matches("topologyKey: ").count();
    assert_eq!((zones, hub.matches("whenUnsatisfiable: ScheduleAnyway").count()), (2, 2));
    for (file, name) in
        [(HUB, "edge-hub"), ("components/two-proxies/disruption-budget.yaml", "edge-csi-controller")]
    {
        let budget = object(file, "PodDisruptionBudget", name);
        assert_eq!(value(&budget, "maxUnavailable"), "1");
        assert_eq!(value(&budget, "app.kubernetes.io/name"), name);
    }
}

/// The patches of the component name containers and arguments by their positions in the StatefulSet of the base, and the proxy
/// accepts what they add.
#[test]
fn the_patches_of_two_proxies_fit_the_controller() {
    let (controller, component) = (text(CONTROLLER), text(TWO_PROXIES));
    let all = containers(&controller, &["edge-csi-driver", "csi-provisioner"]);
    let names: Vec<&str> = all.iter().map(|container| container.name.as_str()).collect();
    assert_eq!(names, ["edge-csi-driver", "csi-provisioner"], "the order of the containers");
    assert_eq!(all[1].arguments[6], "--capacity-ownerref-level=1");
    assert!(component.contains("containers/1/args/6\n        value: --capacity-ownerref-level=2\n"));
    let is_added = "path: /spec/template/spec/containers/0/args/-\n        value: ";
    let added = component.split(is_added).skip(1).map(|rest| rest.lines().next().unwrap().to_owned());
    let route = containers(&text("overlays/topology/route.yaml"), &["edge-csi-driver"]).remove(0);
    let arguments: Vec<String> =
        route.arguments.iter().map(|it| it.replace("$(CSI_DRIVERNAME)", "a.b")).chain(added).collect();
    assert!(arguments.contains(&"--placements=kubernetes".to_owned()), "{arguments:?}");
    assert_eq!(accepts("edge-csi-driver", &arguments), Ok(()));
    for removed in
        ["serviceName", "podManagementPolicy", "persistentVolumeClaimRetentionPolicy", "volumeClaimTemplates"]
    {
        assert!(controller.contains(&format!("\n  {removed}:")), "{removed}");
        assert!(component.contains(&format!("- op: remove\n        path: /spec/{removed}\n")), "{removed}");
    }
}

/// A standby is ready: neither an update nor the drain of a machine waits for it.
#[test]
fn a_standby_is_ready_without_the_probes_of_its_sidecars() {
    let (controller, deployment) = (text(CONTROLLER), text("components/two-proxies/deployment.yaml"));
    assert_eq!(controller.matches("startupProbe:").count(), SIDECARS.len());
    for sidecar in SIDECARS {
        let without =
            format!("- name: {sidecar}\n          startupProbe: null\n          livenessProbe: null\n");
        assert!(deployment.contains(&without), "{sidecar}");
    }
    let (_, probe) = deployment.split_once("readinessProbe:\n").unwrap();
    assert!(probe.trim_start().starts_with("httpGet:\n              path: /livez\n"), "{probe}");
    assert!(value(&deployment, "replicas") == "2" && value(&deployment, "maxUnavailable") == "0");
}

/// Returns the verbs of the requests in a source of csi-proxy.
fn requests(file: &str) -> BTreeSet<&'static str> {
    let source = fs::read_to_string(root().join("csi-proxy/src/kubernetes").join(file)).unwrap();
    let methods = [
        ("get", "get"),
        ("get_opt", "get"),
        ("list", "list"),
        ("create", "create"),
        ("replace", "update"),
        ("delete", "delete"),
        ("patch", "patch"),
        ("watch", "watch"),
        ("entry", "patch"),
        ("delete_collection", "deletecollection"),
    ];
    let is_used = |method: &str| source.contains(&format!("api.{method}("));
    methods.into_iter().filter(|(method, _)| is_used(method)).map(|(_, verb)| verb).collect()
}

/// The role of the proxies has the rights that csi-proxy uses, in their namespace, and no others.
#[test]
fn the_role_of_two_proxies_has_the_rights_that_are_used() {
    let role = object("components/two-proxies/rbac-placements.yaml", "Role", "edge-csi-placements");
    let items = |line: Option<&str>, key: &str| {
        let list =
            line.unwrap().trim().strip_prefix(&format!("{key}: [")).unwrap().strip_suffix(']').unwrap();
        list.split(", ").map(str::to_owned).collect::<BTreeSet<_>>()
    };
    let mut rules = BTreeMap::new();
    for rule in role.split("- apiGroups: ").skip(1) {
        let mut lines = rule.lines().skip(1);
        rules.insert(items(lines.next(), "resources"), items(lines.next(), "verbs"));
    }
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    let used = |file: &str| requests(file).into_iter().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(used("store.rs"), set(&["get", "list", "create", "update", "delete"]));
    let expected = BTreeMap::from([
        (set(&["placements", "drivernodes"]), used("store.rs")),
        (set(&["leases"]), used("lease/object.rs")),
        // external-provisioner, for the owner of the capacities.
        (set(&["replicasets"]), set(&["get"])),
    ]);
    assert_eq!(rules, expected);
    for (file, plural) in [("placement.rs", "placements"), ("driver_node.rs", "drivernodes")] {
        let source = fs::read_to_string(root().join("csi-proxy/src/kubernetes").join(file)).unwrap();
        assert!(source.contains(&format!("PLURAL: &'static str = \"{plural}\"")), "{plural}");
        assert_eq!(value(&text(&format!("base/crd/{plural}.yaml")), "plural"), plural);
    }
    let account = object("components/two-proxies/rbac-placements.yaml", "RoleBinding", "edge-csi-placements");
    assert!(account.contains("name: edge-csi-controller\n    namespace: edge-csi"), "{account}");
}

/// The versions that are deployed are those that are tested.
#[test]
fn the_manifests_and_the_tests_use_the_same_sidecars() {
    let images = fs::read_to_string(root().join("deploy/components/images/kustomization.yaml")).unwrap();
    let modules = fs::read_to_string(root().join("tests/e2e/go/sidecars/go.mod")).unwrap();
    let mut compared = BTreeSet::new();
    for (image, module) in [
        ("csi-provisioner", "external-provisioner/v6"),
        ("csi-attacher", "external-attacher/v4"),
        ("csi-resizer", "external-resizer/v2"),
        ("csi-snapshotter", "external-snapshotter/v8"),
    ] {
        let (_, rest) = images.split_once(&format!("/{image}\n")).unwrap();
        let deployed = rest.lines().next().unwrap().trim().strip_prefix("newTag: ").unwrap();
        let line = format!("github.com/kubernetes-csi/{module} ");
        let Some((_, tested)) = modules.split_once(&line) else { continue };
        assert_eq!(tested.split_whitespace().next(), Some(deployed), "{image}");
        compared.insert(image);
    }
    assert!(compared.len() >= 2, "{compared:?}");
}
