//! The socket of an endpoint: permissions, creation and removal.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::time::Duration;

use common::{Act, Script, Stage, driver_name, framed, node, raw_call};
use csi_proxy::{Dispatcher, Drained, Endpoint, Router, ServeError, Serving, SocketAddress};
use tokio::sync::Notify;

async fn serve(path: &std::path::Path) -> Result<Serving, ServeError> {
    let address = SocketAddress::new(path.to_str().unwrap()).unwrap();
    Endpoint::new(driver_name(), Router::fixed(node()), Dispatcher::new()).serve(address).await
}

#[tokio::test]
async fn the_socket_is_for_its_user_only() {
    let stage = Stage::start(Script::default()).await;
    let mode = std::fs::metadata(stage.socket()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let serving = serve(&path).await.unwrap();
    let error = serve(&path).await.unwrap_err();
    assert!(matches!(error, ServeError::Live { .. }), "{error}");
    assert_eq!(raw_call(&path, "/csi.v1.Identity/Probe", &[], framed(&[])).await.unwrap().code(), Some(0));
    drop(serving);
}

#[tokio::test]
async fn waits_for_the_directory_lock_of_the_socket() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let other = std::fs::File::open(directory.path()).unwrap();
    other.lock().unwrap();
    let mut serving = std::pin::pin!(serve(&path));
    let early = tokio::time::timeout(Duration::from_millis(50), &mut serving).await;
    assert!(early.is_err(), "{early:?}");
    drop(other);
    serving.await.unwrap().shutdown(Duration::ZERO).await;
}

#[tokio::test]
async fn keeps_other_files_and_reports_missing_directory() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("csi.sock");
    std::fs::write(&path, "precious").unwrap();
    let error = serve(&path).await.unwrap_err();
    assert!(matches!(error, ServeError::NotASocket { .. }), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    let error = serve(&directory.path().join("missing/csi.sock")).await.unwrap_err();
    assert!(
        matches!(error, ServeError::Io { .. }) && error.to_string().contains("missing/csi.sock"),
        "{error}"
    );
}

#[tokio::test]
async fn shutdown_answers_open_calls_and_removes_the_socket() {
    let notice = Arc::new(Notify::new());
    let mut stage = Stage::start(Script { acts: vec![Act::Wait(Arc::clone(&notice))] }).await;
    let socket = stage.socket();
    let call = tokio::spawn(async move {
        raw_call(&socket, "/csi.v1.Controller/CreateVolume", &[], framed(&[])).await.unwrap()
    });
    stage.seen_at_least(1).await;
    let down = tokio::spawn(stage.serving.take().unwrap().shutdown(Duration::from_secs(60)));
    stage.wait_until_socket_is_removed().await;
    notice.notify_one();
    assert_eq!(call.await.unwrap().code(), Some(0));
    assert_eq!(down.await.unwrap(), Drained::All);
}

#[tokio::test]
async fn shutdown_ends_open_calls_after_its_bound() {
    let mut stage = Stage::start(Script { acts: vec![Act::Wait(Arc::default())] }).await;
    let socket = stage.socket();
    let call = tokio::spawn(async move {
        raw_call(&socket, "/csi.v1.Controller/CreateVolume", &[], framed(&[])).await.unwrap()
    });
    stage.seen_at_least(1).await;
    let drained = stage.serving.take().unwrap().shutdown(Duration::from_millis(10)).await;
    assert_eq!(drained, Drained::Some);
    let seen = call.await.unwrap();
    assert_eq!(seen.code(), Some(14), "a broken connection is UNKNOWN to many clients: {seen:?}");
    assert!(seen.message().contains("shutting down"), "{seen:?}");
}

#[tokio::test]
async fn idle_connection_does_not_delay_shutdown() {
    let stage = Stage::start(Script::default()).await;
    let _silent = tokio::net::UnixStream::connect(stage.socket()).await.unwrap();
    // Accepted in order: once this call is answered, the silent one is being waited for.
    raw_call(&stage.socket(), "/csi.v1.Identity/Probe", &[], framed(&[])).await.unwrap();
    assert_eq!(stage.serving.unwrap().shutdown(Duration::from_secs(5)).await, Drained::All);
}
