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
