//! A driver in a separate process, which is killed. The test runs in real time and has no sleeps.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use csi_proto::Method;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use volume_manager::advanced::driver::{CallError, CallOutcome};

use super::scripted::{Reply, Scripted};
use super::{Place, publish, stage, volume};

const SOCKET: &str = "EDGE_CSI_TEST_DRIVER_SOCKET";
const SERVING: &str = "the driver serves";

/// The driver process of the other test, not a test. It never responds to NodeStageVolume.
#[tokio::test]
async fn a_driver_for_the_other_test_if_it_asks_for_one() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let scripted = Scripted::start(Path::new(&socket));
    scripted.always(Method::NodeStageVolume, Reply::Never);
    println!("{SERVING}");
    // Runs until the other test kills it.
    let end = tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new()));
    end.await.expect("no panic").expect("the end of the input");
}

async fn driver(socket: &Path) -> Child {
    let this = std::env::current_exe().expect("this program");
    let mut child = Command::new(this)
        .args(["--exact", "killed::a_driver_for_the_other_test_if_it_asks_for_one", "--nocapture"])
        .env(SOCKET, socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    while !lines.next_line().await.expect("a line").expect("the driver serves").contains(SERVING) {}
    child
}

/// The driver is killed during a call, and its socket is replaced.
#[tokio::test]
async fn killed_driver_leaves_no_running_call() {
    let place = Place::new();
    let mut first = driver(&place.socket).await;
    let connection = place.driver.connection().await.expect("a connection");
    assert!(!connection.earlier_processes_ended(), "nothing is known of what was before");
    let hung = {
        let connection = connection.clone();
        tokio::spawn(async move { connection.call(&volume("v"), &stage()).await })
    };
    // The driver accepts calls in order, so after this call it has the other one.
    tokio::task::yield_now().await;
    assert_eq!(connection.call(&volume("w"), &publish()).await, Ok(CallOutcome::Done));
    first.kill().await.expect("killed");
    let error = hung.await.expect("no panic").expect_err("the driver died");
    assert!(matches!(error, CallError::Broken { .. }) && error.was_sent(), "{error}");
    connection.closed().await;

    std::fs::remove_file(&place.socket).expect("the dead one's socket");
    let _second = driver(&place.socket).await;
    let next = place.driver.connect().await.expect("a connection");
    assert!(next.earlier_processes_ended());
    assert_eq!(next.call(&volume("v"), &publish()).await, Ok(CallOutcome::Done));
    // After a repeated registration, the same process may still have running calls.
    let again = place.driver.connect().await.expect("a connection");
    assert!(!again.earlier_processes_ended());
}
