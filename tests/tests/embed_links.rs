//! The programs of `examples/embed` with own links and an own HTTP server, run as their reader would.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::process::Command;

/// Runs a program that is built from the current sources, and returns what it prints.
fn printed(program: &str) -> String {
    let profile = std::env::current_exe().unwrap();
    let profile = profile.parent().and_then(|deps| deps.parent()).unwrap();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--quiet", "--locked", "-p", "embed", "--bin", program]);
    cargo.arg("--manifest-path").arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"));
    cargo.arg("--target-dir").arg(profile.parent().unwrap());
    if profile.ends_with("release") {
        cargo.arg("--release");
    }
    assert!(cargo.status().unwrap().success(), "{cargo:?}");
    let output = Command::new(profile.join(program)).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn own_link_connects_a_peer() {
    assert_eq!(printed("own_link"), "edge-1 is connected over a tunnel link\n");
}

#[test]
fn own_server_shares_its_port_with_a_hub() {
    let expected = "the hub has 1 peer of this process\n/ is the rest of the server\n";
    assert_eq!(printed("own_server"), expected);
}

#[test]
fn own_axum_shares_its_port_with_a_hub() {
    let printed = printed("own_axum");
    let lines: Vec<_> = printed.lines().collect();
    let [peer, other, edge] = lines[..] else { panic!("{printed}") };
    assert_eq!(peer, "the hub has 1 peer of this process");
    assert_eq!(other, "/ without an upgrade: 200, the rest of the application");
    assert!(edge.starts_with("/edge without an upgrade: 400, "), "{edge}");
}
