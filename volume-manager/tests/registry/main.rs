//! The plugin registry with registrars on real sockets, in virtual time.
#![cfg(feature = "runtime")]
#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod registrar;

use std::fs;
use std::path::Path;
use std::time::Duration;

use csi_proto::pluginregistration::v1::PluginInfo;
use registrar::{Registrar, plugin};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixListener;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, timeout};
use volume_manager::registry::{DeregistrationReason, DriverEvent, watch};

fn start_watch() -> (TempDir, Receiver<DriverEvent>) {
    let directory = tempfile::tempdir().expect("a directory");
    let events = watch(directory.path()).expect("a watch");
    (directory, events)
}

/// Returns the next event within five virtual minutes.
async fn next(events: &mut Receiver<DriverEvent>) -> DriverEvent {
    let event = timeout(Duration::from_secs(300), events.recv()).await;
    event.expect("an event in time").expect("the watch runs")
}

async fn registered(events: &mut Receiver<DriverEvent>) -> String {
    match next(events).await {
        DriverEvent::Registered { name, endpoint, .. } => format!("{name} {endpoint}"),
        other => panic!("{other:?}"),
    }
}

async fn deregistered(events: &mut Receiver<DriverEvent>) -> (String, DeregistrationReason) {
    match next(events).await {
        DriverEvent::Deregistered { name, reason } => (name.to_string(), reason),
        other => panic!("{other:?}"),
    }
}

/// Expects no event for five virtual minutes.
async fn no_event(events: &mut Receiver<DriverEvent>) {
    let event = timeout(Duration::from_secs(300), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn registers_until_the_socket_is_removed() {
    let (directory, mut events) = start_watch();
    let socket = directory.path().join("a-reg.sock");
    let started = Instant::now();
    let mut registrar = Registrar::start(&socket, plugin("a.example"));
    assert_eq!(registered(&mut events).await, "a.example unix:///plugins/a.example/csi.sock");
    assert!(started.elapsed() <= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(registrar.notified().await, Ok(()));

    // As with kubelet, the exit of the registrar changes nothing; only its socket counts.
    drop(registrar);
    no_event(&mut events).await;
    fs::remove_file(&socket).expect("removed");
    assert_eq!(deregistered(&mut events).await, ("a.example".into(), DeregistrationReason::SocketRemoved));
}

#[tokio::test(start_paused = true)]
async fn stale_socket_registers_when_a_registrar_replaces_it() {
    let (directory, mut events) = start_watch();
    let socket = directory.path().join("a-reg.sock");
    drop(UnixListener::bind(&socket).expect("a socket without a server"));
    no_event(&mut events).await;

    fs::remove_file(&socket).expect("removed");
    let mut registrar = Registrar::start(&socket, plugin("a"));
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    assert_eq!(registrar.notified().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn restarted_registrar_registers_its_driver_again() {
    let (directory, mut events) = start_watch();
    let socket = directory.path().join("a-reg.sock");
    let first = Registrar::start(&socket, plugin("a"));
    registered(&mut events).await;
    drop(first);
    // Renamed, so that no listing of the directory finds the socket missing.
    let new = directory.path().join(".a-reg.sock");
    let mut second = Registrar::start(&new, plugin("a"));
    fs::rename(&new, &socket).expect("renamed");
    assert_eq!(deregistered(&mut events).await, ("a".into(), DeregistrationReason::SocketReplaced));
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    assert_eq!(second.notified().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn invalid_plugin_is_rejected_with_its_field() {
    for (field, info) in [
        ("name", plugin("not/a/name")),
        ("supported_versions", {
            let supported_versions = vec!["2.0.0".into()];
            PluginInfo { supported_versions, ..plugin("a") }
        }),
        ("endpoint", {
            let endpoint = "tcp://10.0.0.1:1".into();
            PluginInfo { endpoint, ..plugin("a") }
        }),
    ] {
        let (directory, mut events) = start_watch();
        let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
        let reason = registrar.notified().await.expect_err("rejected");
        assert!(reason.starts_with(field), "{field}: {reason}");
        no_event(&mut events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn plugin_of_another_type_is_ignored() {
    let (directory, mut events) = start_watch();
    let info = PluginInfo { r#type: "DRAPlugin".into(), ..plugin("a") };
    let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
    no_event(&mut events).await;
    assert!(registrar.was_not_notified());
}

#[tokio::test(start_paused = true)]
async fn duplicate_name_is_rejected_until_the_first_is_removed() {
    let (directory, mut events) = start_watch();
    let first = directory.path().join("first-reg.sock");
    let mut one = Registrar::start(&first, plugin("a"));
    registered(&mut events).await;
    assert_eq!(one.notified().await, Ok(()));
    let mut two = Registrar::start(&directory.path().join("second-reg.sock"), plugin("a"));
    let reason = two.notified().await.expect_err("rejected");
    assert!(reason.contains("name a is already registered") && reason.contains("first-reg.sock"), "{reason}");

    fs::remove_file(&first).expect("removed");
    assert_eq!(deregistered(&mut events).await.1, DeregistrationReason::SocketRemoved);
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    while two.notified().await.is_err() {}
}

#[tokio::test(start_paused = true)]
async fn get_info_times_out_and_does_not_delay_others() {
    let (directory, mut events) = start_watch();
    let hangs = UnixListener::bind(directory.path().join("0-hangs-reg.sock")).expect("a socket");
    let (mut connection, _) = hangs.accept().await.expect("a dial");
    let dialled = Instant::now();
    let _other = Registrar::start(&directory.path().join("a-reg.sock"), plugin("a"));
    registered(&mut events).await;
    assert!(dialled.elapsed() <= Duration::from_secs(1), "{:?}", dialled.elapsed());

    let mut preface = Vec::new();
    connection.read_to_end(&mut preface).await.expect("the end of the connection");
    assert!(preface.starts_with(b"PRI * HTTP/2.0"));
    let held = dialled.elapsed();
    assert!(held >= Duration::from_secs(1) && held < Duration::from_millis(1500), "{held:?}");
    // The call is retried.
    timeout(Duration::from_secs(60), hangs.accept()).await.expect("a dial in time").expect("a dial");
}

#[tokio::test(start_paused = true)]
async fn call_to_a_removed_socket_is_aborted() {
    let directory = tempfile::tempdir().expect("a directory");
    let _events = watch(directory.path()).expect("a watch");
    let socket = directory.path().join("a-reg.sock");
    let hangs = UnixListener::bind(&socket).expect("a socket");
    let (mut connection, _) = hangs.accept().await.expect("a dial");
    fs::remove_file(&socket).expect("removed");
    let removed = Instant::now();
    connection.read_to_end(&mut Vec::new()).await.expect("the end of the connection");
    assert!(removed.elapsed() <= Duration::from_millis(600), "{:?}", removed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn server_without_http2_registers_nothing() {
    let (directory, mut events) = start_watch();
    let peer = UnixListener::bind(directory.path().join("a-reg.sock")).expect("a socket");
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 4096]] {
        let dial = timeout(Duration::from_secs(60), peer.accept()).await.expect("a dial in time");
        let (mut connection, _) = dial.expect("a dial");
        // The client may close the connection before everything was written.
        let _ = connection.write_all(answer).await;
    }
    drop(peer);
    no_event(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn answer_is_limited_to_64_kib() {
    // The other fields and the lengths take 43 bytes.
    for (name_bytes, read) in [(64 * 1024 - 43, true), (64 * 1024 - 42, false)] {
        let (directory, mut events) = start_watch();
        let info = PluginInfo { name: "n".repeat(name_bytes), ..plugin("a") };
        let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
        no_event(&mut events).await;
        if read {
            let reason = registrar.notified().await.expect_err("rejected");
            assert!(reason.starts_with("name is not valid: "), "{reason}");
        } else {
            assert!(registrar.was_not_notified());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_sockets_without_a_leading_dot_are_dialled() {
    let (directory, mut events) = start_watch();
    let path = |name: &str| directory.path().join(name);
    let _hidden = Registrar::start(&path(".a-reg.sock"), plugin("hidden"));
    fs::write(path("file-reg.sock"), b"").expect("a file");
    fs::create_dir(path("directory")).expect("a directory");
    let _nested = Registrar::start(&path("directory/b-reg.sock"), plugin("nested"));
    std::os::unix::fs::symlink(path(".a-reg.sock"), path("link-reg.sock")).expect("a link");
    no_event(&mut events).await;
    fs::rename(path(".a-reg.sock"), path("a-reg.sock")).expect("renamed");
    assert_eq!(registered(&mut events).await, "hidden unix:///plugins/hidden/csi.sock");
}

#[tokio::test(start_paused = true)]
async fn removed_directory_deregisters_and_may_be_recreated() {
    let parent = tempfile::tempdir().expect("a directory");
    let directory = parent.path().join("made/here");
    let mut events = watch(&directory).expect("a watch");
    let first = Registrar::start(&directory.join("a-reg.sock"), plugin("a"));
    registered(&mut events).await;
    drop(first);
    fs::remove_dir_all(&directory).expect("removed");
    assert_eq!(deregistered(&mut events).await.1, DeregistrationReason::SocketRemoved);
    fs::create_dir(&directory).expect("made");
    let _second = Registrar::start(&directory.join("a-reg.sock"), plugin("a"));
    registered(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn registers_64_drivers_before_events_are_received() {
    let (directory, mut events) = start_watch();
    let start = |index: usize| {
        Registrar::start(&directory.path().join(format!("{index}.sock")), plugin(&format!("driver-{index}")))
    };
    let mut registrars: Vec<_> = (0..64).map(start).collect();
    for registrar in &mut registrars {
        assert_eq!(registrar.notified().await, Ok(()));
    }
    for _ in 0..64 {
        registered(&mut events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_the_receiver_closes_connections() {
    let (directory, events) = start_watch();
    let hangs = UnixListener::bind(directory.path().join("a-reg.sock")).expect("a socket");
    let (mut connection, _) = hangs.accept().await.expect("a dial");
    let dialled = Instant::now();
    drop(events);
    connection.read_to_end(&mut Vec::new()).await.expect("the end of the connection");
    assert_eq!(dialled.elapsed(), Duration::ZERO);
    let again = timeout(Duration::from_secs(300), hangs.accept()).await;
    assert!(again.is_err(), "dialled again");
}

#[tokio::test]
async fn errors_name_the_directory() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, b"").expect("a file");
    for bad in [file.as_path(), &file.join("below"), Path::new("")] {
        let error = watch(bad).expect_err("rejected");
        let message = error.to_string();
        assert!(message.starts_with(&format!("plugin registry directory {} ", bad.display())), "{message}");
    }
}
