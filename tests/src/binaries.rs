//! The reference binaries, built from the current sources.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

/// The reference binaries, each in a package of its name.
const NAMES: &[&str] = &["edge-hub", "edge-agent", "edge-csi-driver", "hostpath-driver", "quickstart"];

/// The programs of the package `embed` that tests run.
const EMBED: &[&str] = &[
    "hub",
    "agent",
    "socket",
    "all_in_one",
    "monitor",
    "csi_client",
    "own_kubeedge_cloud",
    "own_kubeedge_node",
];

/// The folders with the libraries of the binaries.
const SOURCES: &[&str] = &["csi-proto", "csi-proxy", "edge-transport", "volume-manager"];

/// Returns the path of a binary. Builds all binaries first if one is missing or older than the sources.
///
/// # Panics
/// If the name is unknown or the binaries cannot be built.
#[must_use]
pub fn path(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    assert!(
        NAMES.contains(&name) || EMBED.contains(&name),
        "unknown binary {name}; expected one of {NAMES:?} or {EMBED:?}"
    );
    DIRECTORY
        .get_or_init(|| directory().unwrap_or_else(|cause| panic!("the binaries cannot be built: {cause}")))
        .join(name)
}

/// Returns the folder `target/PROFILE` of this test executable, with up-to-date binaries.
fn directory() -> Result<PathBuf, String> {
    let executable = std::env::current_exe().map_err(|cause| cause.to_string())?;
    let profile = executable
        .parent()
        .and_then(Path::parent)
        .ok_or("the test executable lies in no target directory")?;
    if NAMES.iter().chain(EMBED).all(|name| up_to_date(&profile.join(name))) {
        return Ok(profile.to_owned());
    }
    let target = profile.parent().ok_or("the profile's directory has no parent")?;
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.args(["build", "--quiet", "--bins"]);
    cargo.args(NAMES.iter().chain(&["embed"]).flat_map(|name| ["-p", name]));
    cargo.arg("--manifest-path").arg(workspace().join("Cargo.toml")).arg("--target-dir").arg(target);
    if profile.file_name() == Some(OsStr::new("release")) {
        cargo.arg("--release");
    }
    match cargo.status() {
        Ok(status) if status.success() => Ok(profile.to_owned()),
        Ok(status) => Err(format!("{cargo:?} ended with {status}")),
        Err(cause) => Err(format!("{cargo:?}: {cause}")),
    }
}

fn workspace() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn up_to_date(binary: &Path) -> bool {
    let Some(built) = modified(binary) else { return false };
    let examples = NAMES.iter().chain([&"common", &"embed"]).map(|name| format!("examples/{name}"));
    SOURCES.iter().map(ToString::to_string).chain(examples).all(|folder| {
        let folder = workspace().join(folder);
        newest(&folder.join("src"))
            .max(modified(&folder.join("Cargo.toml")))
            .is_some_and(|newest| newest <= built)
    })
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

fn newest(folder: &Path) -> Option<SystemTime> {
    let entries = fs::read_dir(folder).ok()?.flatten();
    entries
        .filter_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => newest(&entry.path()),
            _ => modified(&entry.path()),
        })
        .max()
}
