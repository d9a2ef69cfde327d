//! The image of the test's pods, with a single static program, so that nothing must be pulled.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::json;

use super::plane::write;
use crate::error::E2eError;
use crate::setup::Setup;

/// The name of the image in pods and sandboxes.
pub(crate) const IMAGE: &str = "edge-csi.invalid/pod:1";

/// The name of the image in the guide: one that waits, as this one does without arguments.
const IN_THE_GUIDE: &str = "registry.k8s.io/pause:3.10";

const NEEDS: &str = "install tar, coreutils, mount and iproute2";

/// Creates an archive that containerd can import.
pub(super) fn make(setup: &Setup<'_>) -> Result<PathBuf, E2eError> {
    let folder = setup.folder("image")?;
    let root = folder.join("root");
    for inner in ["tmp", "data", "etc", "dev", "proc", "sys"] {
        let path = root.join(inner);
        std::fs::create_dir_all(&path).map_err(|cause| E2eError::Folder { path, cause })?;
    }
    let program = root.join("pod");
    std::fs::copy(&setup.components.pod, &program)
        .map_err(|cause| E2eError::File { path: program, cause })?;
    let layer = folder.join("layer.tar");
    archive(&layer, &root, &["."])?;
    let sum = run(Command::new("sha256sum").arg(&layer))?;
    let digest = sum.split_whitespace().next().unwrap_or_default();
    let config = json!({
        "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
        "os": "linux",
        "config": {"Entrypoint": ["/pod"], "WorkingDir": "/"},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest =
        json!([{"Config": "config.json", "RepoTags": [IMAGE, IN_THE_GUIDE], "Layers": ["layer.tar"]}]);
    write(&folder.join("config.json"), &config.to_string())?;
    write(&folder.join("manifest.json"), &manifest.to_string())?;
    let image = folder.join("image.tar");
    archive(&image, &folder, &["config.json", "manifest.json", "layer.tar"])?;
    Ok(image)
}

fn archive(archive: &Path, folder: &Path, files: &[&str]) -> Result<(), E2eError> {
    let mut tar = Command::new("tar");
    tar.arg("--create").arg("--file").arg(archive).arg("--directory").arg(folder).args(files);
    run(&mut tar).map(drop)
}

/// Runs a command to its end, and returns its output.
pub(crate) fn run(command: &mut Command) -> Result<String, E2eError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|cause| E2eError::CannotRun {
        program: program.clone(),
        cause,
        fix: NEEDS,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(E2eError::Command { command: program, status: output.status, output: text })
}
