//! The relay over a real server, which is restarted. `NATS_SERVER` names the program; default `nats-server`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use csi_proxy::{Call, CallId, Fault, MethodPath, NodeId, Relay, conformance};
use nats_bus::{Connection, KEY_LEN, NatsRelay, Seal, serve};
use tempfile::TempDir;

struct Server {
    folder: TempDir,
    port: u16,
    process: Mutex<Child>,
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("nats.conf"), "max_payload: 17MB\n").unwrap();
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = free.local_addr().unwrap().port();
        drop(free);
        let process = Mutex::new(spawn(folder.path(), port));
        Self { folder, port, process }
    }

    /// Kills the server, with all that it holds, and starts another one.
    fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        *process = spawn(self.folder.path(), self.port);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn spawn(folder: &Path, port: u16) -> Child {
    let program = std::env::var_os("NATS_SERVER").unwrap_or_else(|| "nats-server".into());
    Command::new(program)
        .args(["-a", "127.0.0.1", "-p", &port.to_string(), "-c"])
        .arg(folder.join("nats.conf"))
        .stderr(Stdio::null())
        .spawn()
        .expect("nats-server, or the program in NATS_SERVER")
}

async fn connect(port: u16) -> Connection {
    let connection =
        Connection::open(&format!("127.0.0.1:{port}"), Seal::with_key(&[7; KEY_LEN]).unwrap()).await.unwrap();
    while !connection.is_connected() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    connection
}

/// Waits until the server knows the subscription of the node.
async fn subscribed(relay: &NatsRelay, node: &NodeId) {
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    let call = || {
        let driver = "none".parse().unwrap();
        Call::new(CallId::new(), node.clone(), driver, method.clone(), Bytes::new())
    };
    while let Err(Fault::NodeOffline { .. }) = relay.relay(call()).await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A relay to the far end through the server.
async fn through<R: Relay + Clone + 'static>(port: u16, node: NodeId, far: R) -> NatsRelay {
    let (near, there) = (connect(port).await, connect(port).await);
    let name = node.clone();
    tokio::spawn(async move { serve(there, &name, far).await });
    let relay = NatsRelay::new(near).await.unwrap();
    subscribed(&relay, &node).await;
    relay
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs nats-server"]
async fn a_relay_over_nats_conforms() {
    let server = Arc::new(Server::start());
    let port = server.port;
    let relay = async |far| through(port, conformance::NODE.parse().unwrap(), far).await;
    conformance::check(relay).with_faults(async || server.restart()).await.unwrap();
}
