//! A driver that is a process of its own, and is killed. Time is real here, and nothing waits for it to pass.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use csi_proto::Method;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use volume_manager::driver::{CallError, CallOutcome};

use super::scripted::{Reply, Scripted};
use super::{Place, publish, stage, volume};

const SOCKET: &str = "EDGE_CSI_TEST_DRIVER_SOCKET";
const SERVING: &str = "the driver serves";

/// Not a test of its own: what the other one runs as its driver. It never answers NodeStageVolume.
#[tokio::test]
async fn a_driver_for_the_other_test_if_it_asks_for_one() {
    let Ok(socket) = std::env::var(SOCKET) else { return };
    let scripted = Scripted::start(Path::new(&socket));
    scripted.always(Method::NodeStageVolume, Reply::Silence);
    println!("{SERVING}");
    // Until the other test is gone.
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

/// Anchors (f) 10: plugin killed mid-call, socket replaced.
#[tokio::test]
async fn a_driver_killed_in_a_call_leaves_it_uncertain_and_its_successor_knows_that_nothing_of_it_runs() {
    let place = Place::new();
    let mut first = driver(&place.socket).await;
    let generation = place.driver.generation().await.expect("a generation");
    assert!(!generation.earlier_processes_ended(), "nothing is known of what was before");
    let hung = {
        let generation = generation.clone();
        tokio::spawn(async move { generation.call(&volume("v"), &stage()).await })
    };
    // The driver takes calls in their order, so after this one it has the other.
    tokio::task::yield_now().await;
    assert_eq!(generation.call(&volume("w"), &publish()).await, Ok(CallOutcome::Done));
    first.kill().await.expect("killed");
    let error = hung.await.expect("no panic").expect_err("the driver died");
    assert!(matches!(error, CallError::Broken { .. }) && error.was_sent(), "{error}");
    generation.closed().await;

    std::fs::remove_file(&place.socket).expect("the dead one's socket");
    let _second = driver(&place.socket).await;
    let next = place.driver.connect().await.expect("a generation");
    assert!(next.earlier_processes_ended());
    assert_eq!(next.call(&volume("v"), &publish()).await, Ok(CallOutcome::Done));
    // Announced again, it is still the process that may have calls under way.
    let again = place.driver.connect().await.expect("a generation");
    assert!(!again.earlier_processes_ended());
}
