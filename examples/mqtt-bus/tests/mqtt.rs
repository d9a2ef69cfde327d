//! The relay over a real broker, which is restarted. `MOSQUITTO` names the program; default `mosquitto`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use csi_proxy::{Call, CallId, Fault, MethodPath, NodeId, Relay, Replies, conformance};
use mqtt_bus::{Broker, KEY_LEN, MqttRelay, Seal, serve};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{Packet, PubAckReason};
use rumqttc::v5::{AsyncClient, Event, MqttOptions};
use tempfile::TempDir;
use tokio::sync::Notify;

/// A broker with the permissions of the example.
struct Server {
    folder: TempDir,
    port: u16,
    process: Mutex<Child>,
}

const PASSWORD: &str = "secret";

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let passwords = folder.path().join("passwords");
        std::fs::write(&passwords, "").unwrap();
        for user in ["proxy", "edge-1", conformance::NODE] {
            let mut command = Command::new("mosquitto_passwd");
            command.arg("-b").arg(&passwords).args([user, PASSWORD]);
            assert!(command.status().expect("mosquitto_passwd, of the package mosquitto").success());
        }
        let example = Path::new(env!("CARGO_MANIFEST_DIR"));
        let configuration = std::fs::read_to_string(example.join("mosquitto.conf")).unwrap();
        let configuration = configuration
            .replace("1883", &port.to_string())
            .replace("/etc/mosquitto/passwords", passwords.to_str().unwrap())
            .replace("/etc/mosquitto/mosquitto.acl", example.join("mosquitto.acl").to_str().unwrap());
        // Started by root, the broker would change to a user that cannot read the folder.
        let configuration = format!("{configuration}\nuser root\n");
        std::fs::write(folder.path().join("mosquitto.conf"), configuration).unwrap();
        let process = Mutex::new(spawn(folder.path()));
        Self { folder, port, process }
    }

    /// Kills the broker, with all that it holds, and starts another one.
    fn restart(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
        *process = spawn(self.folder.path());
    }

    fn login(&self, user: impl ToString) -> Broker {
        let seal = Seal::with_key(&[7; KEY_LEN]).unwrap();
        Broker::new("127.0.0.1", self.port, seal).with_login(user.to_string(), PASSWORD)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let process = self.process.get_mut().unwrap();
        let _ = process.kill();
        let _ = process.wait();
    }
}

fn spawn(folder: &Path) -> Child {
    let program = std::env::var_os("MOSQUITTO").unwrap_or_else(|| "mosquitto".into());
    Command::new(program)
        .arg("-c")
        .arg(folder.join("mosquitto.conf"))
        .stderr(Stdio::null())
        .spawn()
        .expect("mosquitto, or the program in MOSQUITTO")
}

fn call(node: &NodeId) -> Call {
    let method = MethodPath::new("/csi.v1.Controller/CreateVolume").unwrap();
    Call::new(CallId::new(), node.clone(), "none".parse().unwrap(), method, Bytes::new())
}

/// Calls until the broker reports the node.
async fn answered(relay: &MqttRelay, node: &NodeId) -> Result<Replies, Fault> {
    loop {
        match relay.relay(call(node)).await {
            Err(Fault::NodeOffline { .. } | Fault::HubUnreachable { .. }) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            answer => return answer,
        }
    }
}

/// A relay to the far end through the broker.
async fn through<R: Relay + Clone + 'static>(server: &Server, node: NodeId, far: R) -> MqttRelay {
    let (there, name) = (server.login(&node), node.clone());
    tokio::spawn(async move { serve(&there, &name, far).await });
    let relay = MqttRelay::new(server.login("proxy"));
    let _ = answered(&relay, &node).await;
    relay
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs mosquitto"]
async fn a_relay_over_mqtt_conforms() {
    let server = Server::start();
    let relay = async |far| through(&server, conformance::NODE.parse().unwrap(), far).await;
    conformance::check(relay).with_faults(async || server.restart()).await.unwrap();
}

/// A driver that never answers.
#[derive(Clone, Default)]
struct Silent(Arc<Notify>);

#[async_trait]
impl Relay for Silent {
    async fn relay(&self, _: Call) -> Result<Replies, Fault> {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// The last will of a node ends its open calls, and later ones are known not to have been sent.
#[tokio::test]
#[ignore = "needs mosquitto"]
async fn a_node_that_leaves_ends_its_calls() {
    let server = Server::start();
    let (node, far) = ("edge-1".parse().unwrap(), Silent::default());
    let (there, name, begun) = (server.login(&node), NodeId::clone(&node), Arc::clone(&far.0));
    let serving = tokio::spawn(async move { serve(&there, &name, far).await });
    let relay = MqttRelay::new(server.login("proxy"));
    let leave = async {
        begun.notified().await;
        serving.abort();
    };
    let (cut, ()) = tokio::join!(answered(&relay, &node), leave);
    assert!(matches!(cut, Err(Fault::LinkLost { .. })), "{cut:?}");
    let later = relay.relay(call(&node)).await;
    assert!(matches!(later, Err(Fault::NodeOffline { .. })), "{later:?}");
}

/// Whether the broker refuses a message to this topic, by its answer or by the end of the connection.
async fn is_refused(options: MqttOptions, topic: &str) -> bool {
    let (client, mut events) = AsyncClient::new(options, 8);
    let mut is_connected = false;
    loop {
        match events.poll().await {
            Ok(Event::Incoming(Packet::ConnAck(_))) => {
                is_connected = true;
                // Unlike QoS 0, QoS 1 has an answer.
                client.publish(topic, QoS::AtLeastOnce, false, "x").await.unwrap();
            }
            Ok(Event::Incoming(Packet::PubAck(answer))) => {
                break answer.reason == PubAckReason::NotAuthorized;
            }
            Ok(_) => {}
            Err(_) if is_connected => break true,
            // The broker is not there yet.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The account of a node writes its own answers, and neither calls nor the answers of others.
#[tokio::test]
#[ignore = "needs mosquitto"]
async fn the_account_of_a_node_writes_only_its_answers() {
    let server = Server::start();
    let mut options = MqttOptions::new("edge-1", "127.0.0.1", server.port);
    options.set_credentials("edge-1", PASSWORD);
    let mut refused = Vec::new();
    for topic in ["csi/edge-1", "csi/edge-2", "csi/edge-2/left", "answer/edge-2/x", "answer/edge-1/x"] {
        let is_refused = tokio::time::timeout(Duration::from_secs(20), is_refused(options.clone(), topic));
        refused.push((topic, is_refused.await.unwrap()));
    }
    let (own, others) = refused.split_last().unwrap();
    assert!(!own.1 && others.iter().all(|(_, refused)| *refused), "{refused:?}");
}
