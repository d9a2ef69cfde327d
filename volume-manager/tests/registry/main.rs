//! The plugin registry against registrars on real sockets. Time is virtual: it passes when nothing else happens.
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

fn watched() -> (TempDir, Receiver<DriverEvent>) {
    let directory = tempfile::tempdir().expect("a directory");
    let events = watch(directory.path()).expect("a watch");
    (directory, events)
}

/// The next event within five virtual minutes.
async fn next(events: &mut Receiver<DriverEvent>) -> DriverEvent {
    let event = timeout(Duration::from_secs(300), events.recv()).await;
    event.expect("an event in time").expect("the watch goes on")
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

/// Nothing is heard for five virtual minutes.
async fn silence(events: &mut Receiver<DriverEvent>) {
    let event = timeout(Duration::from_secs(300), events.recv()).await;
    assert!(event.is_err(), "{event:?}");
}

#[tokio::test(start_paused = true)]
async fn a_registrar_is_found_asked_and_told_and_its_driver_goes_with_its_socket() {
    let (directory, mut events) = watched();
    let socket = directory.path().join("a-reg.sock");
    let started = Instant::now();
    let mut registrar = Registrar::start(&socket, plugin("a.example"));
    assert_eq!(registered(&mut events).await, "a.example unix:///plugins/a.example/csi.sock");
    assert!(started.elapsed() <= Duration::from_secs(1), "{:?}", started.elapsed());
    assert_eq!(registrar.told().await, Ok(()));

    // The registrar may die; as with kubelet, what counts is its socket.
    drop(registrar);
    silence(&mut events).await;
    fs::remove_file(&socket).expect("removed");
    assert_eq!(deregistered(&mut events).await, ("a.example".into(), DeregistrationReason::SocketRemoved));
}

#[tokio::test(start_paused = true)]
async fn a_stale_socket_registers_nothing_until_a_registrar_replaces_it() {
    let (directory, mut events) = watched();
    let socket = directory.path().join("a-reg.sock");
    drop(UnixListener::bind(&socket).expect("a socket that nobody serves"));
    silence(&mut events).await;

    fs::remove_file(&socket).expect("removed");
    let mut registrar = Registrar::start(&socket, plugin("a"));
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    assert_eq!(registrar.told().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_restarted_registrar_registers_its_driver_anew() {
    let (directory, mut events) = watched();
    let socket = directory.path().join("a-reg.sock");
    let first = Registrar::start(&socket, plugin("a"));
    registered(&mut events).await;
    drop(first);
    // Renamed into place, so that no reading of the directory finds nothing there.
    let new = directory.path().join(".a-reg.sock");
    let mut second = Registrar::start(&new, plugin("a"));
    fs::rename(&new, &socket).expect("renamed");
    assert_eq!(deregistered(&mut events).await, ("a".into(), DeregistrationReason::SocketReplaced));
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    assert_eq!(second.told().await, Ok(()));
}

#[tokio::test(start_paused = true)]
async fn a_plugin_with_a_fault_is_told_so_and_not_announced() {
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
        let (directory, mut events) = watched();
        let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
        let reason = registrar.told().await.expect_err("refused");
        assert!(reason.starts_with(field), "{field}: {reason}");
        silence(&mut events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_plugin_of_another_type_is_told_nothing_and_not_announced() {
    let (directory, mut events) = watched();
    let info = PluginInfo { r#type: "DRAPlugin".into(), ..plugin("a") };
    let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
    silence(&mut events).await;
    assert!(registrar.was_told_nothing());
}

#[tokio::test(start_paused = true)]
async fn a_second_driver_of_a_name_is_refused_until_the_first_is_gone() {
    let (directory, mut events) = watched();
    let first = directory.path().join("first-reg.sock");
    let mut one = Registrar::start(&first, plugin("a"));
    registered(&mut events).await;
    assert_eq!(one.told().await, Ok(()));
    let mut two = Registrar::start(&directory.path().join("second-reg.sock"), plugin("a"));
    let reason = two.told().await.expect_err("refused");
    assert!(reason.contains("name a is registered already") && reason.contains("first-reg.sock"), "{reason}");

    fs::remove_file(&first).expect("removed");
    assert_eq!(deregistered(&mut events).await.1, DeregistrationReason::SocketRemoved);
    assert_eq!(registered(&mut events).await, "a unix:///plugins/a/csi.sock");
    while two.told().await.is_err() {}
}

#[tokio::test(start_paused = true)]
async fn a_registrar_that_hangs_is_hung_up_on_after_a_second_and_delays_no_other() {
    let (directory, mut events) = watched();
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
    // And it is tried again.
    timeout(Duration::from_secs(60), hangs.accept()).await.expect("a dial in time").expect("a dial");
}

#[tokio::test(start_paused = true)]
async fn a_call_to_a_socket_that_is_removed_is_given_up() {
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
async fn a_peer_that_speaks_no_http2_or_hangs_up_registers_nothing() {
    let (directory, mut events) = watched();
    let peer = UnixListener::bind(directory.path().join("a-reg.sock")).expect("a socket");
    for answer in [&b""[..], b"HTTP/1.1 400 Bad Request\r\n\r\n", &[0xff; 4096]] {
        let dial = timeout(Duration::from_secs(60), peer.accept()).await.expect("a dial in time");
        let (mut connection, _) = dial.expect("a dial");
        // It may have hung up before all was written.
        let _ = connection.write_all(answer).await;
    }
    drop(peer);
    silence(&mut events).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_64_kib_is_read_and_a_larger_one_is_not() {
    // The other fields and the lengths take 43 bytes.
    for (name_bytes, read) in [(64 * 1024 - 43, true), (64 * 1024 - 42, false)] {
        let (directory, mut events) = watched();
        let info = PluginInfo { name: "n".repeat(name_bytes), ..plugin("a") };
        let mut registrar = Registrar::start(&directory.path().join("a-reg.sock"), info);
        silence(&mut events).await;
        if read {
            let reason = registrar.told().await.expect_err("refused");
            assert!(reason.starts_with("name is not valid: "), "{reason}");
        } else {
            assert!(registrar.was_told_nothing());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_sockets_without_a_leading_dot_are_dialled() {
    let (directory, mut events) = watched();
    let path = |name: &str| directory.path().join(name);
    let _hidden = Registrar::start(&path(".a-reg.sock"), plugin("hidden"));
    fs::write(path("file-reg.sock"), b"").expect("a file");
    fs::create_dir(path("directory")).expect("a directory");
    let _nested = Registrar::start(&path("directory/b-reg.sock"), plugin("nested"));
    std::os::unix::fs::symlink(path(".a-reg.sock"), path("link-reg.sock")).expect("a link");
    silence(&mut events).await;
    fs::rename(path(".a-reg.sock"), path("a-reg.sock")).expect("renamed");
    assert_eq!(registered(&mut events).await, "hidden unix:///plugins/hidden/csi.sock");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_goes_takes_its_drivers_along_and_may_come_back() {
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
async fn many_drivers_register_though_nobody_takes_the_events_yet() {
    let (directory, mut events) = watched();
    let start = |index: usize| {
        Registrar::start(&directory.path().join(format!("{index}.sock")), plugin(&format!("driver-{index}")))
    };
    let mut registrars: Vec<_> = (0..64).map(start).collect();
    for registrar in &mut registrars {
        assert_eq!(registrar.told().await, Ok(()));
    }
    for _ in 0..64 {
        registered(&mut events).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_watch_ends_with_its_receiver_and_hangs_up() {
    let (directory, events) = watched();
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
async fn bad_directories_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, b"").expect("a file");
    for bad in [file.as_path(), &file.join("below"), Path::new("")] {
        let error = watch(bad).expect_err("refused");
        let message = error.to_string();
        assert!(message.starts_with(&format!("plugin registry directory {} ", bad.display())), "{message}");
    }
}
