//! The hostpath driver as a process: its socket, its signals, and a kill in the middle of an operation.
#![allow(clippy::unwrap_used, reason = "a fixture fails as its test does")]

mod hostpath_fixture;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use csi::controller_client::ControllerClient;
use csi_proto::csi::v1 as csi;
use hostpath_fixture::*;
use rustix::process::{Pid, Signal, kill_process};
use tonic::Code;
use tonic::transport::{Channel, Endpoint};

const DRIVER: &str = env!("CARGO_BIN_EXE_hostpath-driver");

/// A running driver, killed on drop.
struct Process {
    child: Child,
    folder: PathBuf,
}

impl Process {
    /// Starts a driver and waits until it logs that it listens.
    fn start(folder: &Path) -> Self {
        let mut child = command(folder).stderr(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "it ended before it listened");
        }
        // A process that writes to a full pipe blocks.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Self { child, folder: folder.to_owned() }
    }

    async fn controller(&self) -> ControllerClient<Channel> {
        let endpoint = format!("unix://{}", self.folder.join("csi.sock").display());
        ControllerClient::new(Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap())
    }

    fn signal(&mut self, signal: Signal) -> Option<i32> {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn command(folder: &Path) -> Command {
    let mut command = Command::new(DRIVER);
    command
        .args(["--nodeid", NODE, "--endpoint"])
        .arg(format!("unix://{}", folder.join("csi.sock").display()));
    command.arg("--state-dir").arg(folder.join("state")).stdin(Stdio::null());
    command.env_remove("CSI_ENDPOINT").env_remove("CSI_DRIVERNAME").env_remove("RUST_LOG");
    command
}

fn ended(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = command.output().unwrap();
    let text = String::from_utf8(stderr).unwrap();
    (status.code(), text.lines().filter(|line| line.contains("error:")).collect::<Vec<_>>().join("\n"))
}

fn names_in(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn refuses_a_second_driver_and_drains_on_sigterm() {
    let dir = tempfile::tempdir().unwrap();
    let mut first = Process::start(dir.path());
    let socket = dir.path().join("csi.sock");
    assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    let (code, error) = ended(&mut command(dir.path()));
    assert!(
        code == Some(2) && error.contains("in use by another process") && error.lines().count() == 1,
        "{error}"
    );
    let (code, error) = ended(command(dir.path()).arg("--state-dir").arg(dir.path().join("other")));
    assert!(code == Some(2), "--state-dir twice: {error}");

    // A client that stays connected and does not respond: this thread is busy waiting for the driver's end.
    let mut controller = first.controller().await;
    controller.list_volumes(csi::ListVolumesRequest::default()).await.unwrap();
    assert_eq!(first.signal(Signal::TERM), Some(0));
    assert!(!socket.exists());
}

#[tokio::test]
async fn bad_settings_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let name_of_a_file = dir.path().join("csi.sock");
    fs::write(&name_of_a_file, "x").unwrap();
    for (arguments, names) in [
        (&[][..], "not a socket"),
        (&["--topology-key", "x"], "--topology-key"),
        (&["--capacity", "10GB"], "--capacity"),
        (&["--attach-limit=-1"], "--attach-limit"),
        (&["--drivername", "a_b"], "--drivername"),
    ] {
        let (code, error) = ended(command(dir.path()).args(arguments));
        assert!(
            code == Some(2) && error.contains(names) && error.lines().count() == 1,
            "{arguments:?}: {error}"
        );
    }
    assert_eq!(fs::read(&name_of_a_file).unwrap(), b"x");
}

#[tokio::test]
async fn killed_driver_restarts_with_acknowledged_volumes_only() {
    const DATA: usize = 128 << 20;
    let dir = tempfile::tempdir().unwrap();
    let mut driver = Process::start(dir.path());
    let mut controller = driver.controller().await;
    let created = controller.create_volume(volume_request("source", block(), DATA as i64)).await.unwrap();
    let source = created.into_inner().volume.unwrap().volume_id;
    let data = dir.path().join("state/data");
    // Different bytes in every block, so that no filesystem can make the copy for free.
    let mut image = fs::OpenOptions::new().write(true).open(data.join(&source).join("disk.img")).unwrap();
    for block in 0..(DATA / 4096) as u64 {
        image.write_all(&block.to_le_bytes().repeat(512)).unwrap();
    }
    let clone = from_volume(volume_request("clone", block(), DATA as i64), &source);
    let request = clone.clone();
    let copying = tokio::spawn(async move { controller.create_volume(request).await });
    while names_in(&data).len() < 2 {
        assert!(!copying.is_finished(), "the copy is what is to be killed");
        tokio::task::yield_now().await;
    }
    driver.signal(Signal::KILL);
    assert_ne!(code(copying.await.unwrap()), Code::Ok);
    assert!(dir.path().join("csi.sock").exists(), "a killed process leaves its socket");

    let driver = Process::start(dir.path());
    assert_eq!(names_in(&data), [source.as_str()]);
    assert_eq!(names_in(&dir.path().join("state/volumes")), [format!("{source}.json")]);
    let mut controller = driver.controller().await;
    let again = controller.create_volume(clone).await.unwrap().into_inner().volume.unwrap();
    let copied = fs::read(data.join(&again.volume_id).join("disk.img")).unwrap();
    assert!(copied == fs::read(data.join(&source).join("disk.img")).unwrap(), "the second attempt is whole");
}
