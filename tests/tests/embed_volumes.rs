//! The programs of `examples/embed` that embed volume-manager, run as their reader would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use edge_csi_tests::cluster::DRIVER;
use edge_csi_tests::volumes::namespace;
use edge_csi_tests::volumes::storage::Storage;

/// Returns the path of a program, built from the current sources.
fn program(name: &str) -> PathBuf {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    let directory = DIRECTORY.get_or_init(|| {
        let profile =
            std::env::current_exe().unwrap().parent().and_then(|deps| deps.parent()).unwrap().to_owned();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--locked", "-p", "embed", "--bins"]);
        cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
        cargo.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.file_name() == Some(OsStr::new("release")) {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success(), "{cargo:?}");
        profile
    });
    directory.join(name)
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn own_store_keeps_its_records_over_restarts() {
    let directory = tempfile::tempdir().unwrap();
    let start = || printed(Command::new(program("own_store")).arg(directory.path()));
    assert_eq!(start().lines().count(), 1);
    let second = start();
    let starts: Vec<_> = second.lines().map(|line| line.split(" by process ").next().unwrap()).collect();
    assert_eq!(starts, ["start 000001", "start 000002"]);

    let file = directory.path().join("rows.txt");
    let text = fs::read_to_string(&file).unwrap();
    fs::write(&file, text.replace("records ", "what ")).unwrap();
    assert!(start().contains("a line that is not a row"), "{}", start());
}

#[test]
fn own_secrets_are_resolved_and_never_printed() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("apps/database")).unwrap();
    fs::write(directory.path().join("apps/database/password"), "hunter2").unwrap();
    let resolve = |namespace, name| {
        printed(Command::new(program("own_secrets")).arg(directory.path()).args([namespace, name]))
    };
    assert_eq!(resolve("apps", "database"), "apps/database: SecretValues(1 stripped)\n");
    for (namespace, name) in [("apps", "other"), ("apps", "../apps/database"), ("..", "apps")] {
        let found = resolve(namespace, name);
        assert!(found.contains("not found; create it"), "{found}");
    }
}

/// Needs root; without it, the program says so.
#[tokio::test]
async fn volume_is_published_until_the_input_ends() {
    let program = program("own_node");
    if !rustix::process::geteuid().is_root() {
        let found = printed(Command::new(&program).args(["/tmp", DRIVER, "/s", "v", "/t"]));
        assert!(found.contains("run it with sudo"), "{found}");
    }
    let Some(directory) = namespace::private() else { return };
    let storage = Storage::start(&directory).await;
    let (id, target) = (storage.create("canary").await, storage.target("pod-1"));
    let mut child = Command::new(&program)
        .arg(&directory)
        .args([DRIVER.as_ref(), storage.driver_socket().as_os_str(), OsStr::new(&id), target.as_os_str()])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut lines = [String::new(), String::new()];
    for line in &mut lines {
        output.read_line(line).unwrap();
    }
    assert_eq!(lines[0], format!("{DRIVER}/{id} is published at {}\n", target.display()));
    assert!(lines[1].contains("as desired; consumers: pod-1"), "{lines:?}");
    assert!(storage.is_at("pod-1", "canary"));

    drop(child.stdin.take());
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, format!("{DRIVER}/{id} is unpublished\n{DRIVER}/{id} is removed\n"));
    assert!(child.wait().unwrap().success());
    assert!(namespace::table().stack(&target).is_empty());
    storage.assert_canary(&id, "canary");
}
