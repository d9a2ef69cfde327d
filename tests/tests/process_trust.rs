//! A hostile caller that follows the protocol with its own bytes reaches only the driver and the methods that it may call.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use edge_csi_tests::cluster::TestCluster;
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::wait;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const DRIVER: &str = "hostpath.csi.edge";

/// Appends a field of protobuf with the wire type of bytes.
fn field(message: &mut Vec<u8>, number: u8, value: &[u8]) {
    varint(message, u64::from(number) << 3 | 2);
    varint(message, value.len() as u64);
    message.extend_from_slice(value);
}

/// Appends a field of protobuf that is a number.
fn number(message: &mut Vec<u8>, number: u8, value: u64) {
    varint(message, u64::from(number) << 3);
    varint(message, value);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        message.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// A link of the attacker, without a line of the project's client.
struct Attacker {
    socket: UnixStream,
    calls: u64,
}

impl Attacker {
    /// Connects to the hub's socket as the peer `name`, which offers no service.
    async fn connect(cluster: &TestCluster, name: &str) -> Self {
        let mut hello = Vec::new();
        number(&mut hello, 1, 1);
        number(&mut hello, 2, 1);
        field(&mut hello, 3, name.as_bytes());
        number(&mut hello, 7, 1 << 20);
        // The instance is a fixed64.
        hello.push(10 << 3 | 1);
        hello.extend_from_slice(&7u64.to_le_bytes());
        number(&mut hello, 11, 1);
        let mut header = Vec::new();
        field(&mut header, 10, &hello);
        let socket = UnixStream::connect(cluster.path("hub.sock")).await.unwrap();
        let mut attacker = Self { socket, calls: 0 };
        attacker.send(&header, &[]).await;
        attacker.receive().await;
        attacker
    }

    async fn send(&mut self, header: &[u8], body: &[u8]) {
        let mut frame = Vec::new();
        varint(&mut frame, header.len() as u64);
        frame.extend_from_slice(header);
        frame.extend_from_slice(body);
        let mut bytes = u32::try_from(frame.len()).unwrap().to_be_bytes().to_vec();
        bytes.extend_from_slice(&frame);
        self.socket.write_all(&bytes).await.unwrap();
    }

    async fn receive(&mut self) -> Vec<u8> {
        let read = async {
            let length = self.socket.read_u32().await.unwrap();
            let mut frame = vec![0; length as usize];
            self.socket.read_exact(&mut frame).await.unwrap();
            frame
        };
        wait::within("a frame of the hub", read).await
    }

    /// Sends a call of a method of a driver to a service of `edge-1`, and returns the first frame of the answer as text.
    async fn call(&mut self, service: &str, driver: &str, method: &str, body: &[u8]) -> String {
        self.calls += 1;
        let mut call = Vec::new();
        field(&mut call, 1, &[u8::try_from(self.calls).unwrap(); 16]);
        field(&mut call, 2, b"edge-1");
        field(&mut call, 3, driver.as_bytes());
        field(&mut call, 4, method.as_bytes());
        let mut request = Vec::new();
        field(&mut request, 1, service.as_bytes());
        field(&mut request, 3, &call);
        number(&mut request, 4, 1 << 16);
        let mut header = Vec::new();
        field(&mut header, 2, b"edge-1");
        number(&mut header, 3, self.calls);
        field(&mut header, 11, &request);
        self.send(&header, body).await;
        loop {
            let frame = self.receive().await;
            // Pings, and presence of the hub, have no number of a call.
            if frame.windows(2).any(|at| at == [3 << 3, u8::try_from(self.calls).unwrap()]) {
                return String::from_utf8_lossy(&frame).into_owned();
            }
        }
    }
}

/// A method that mounts, unmounts or reads the node's disk is refused, by whatever name of the service it is called.
#[tokio::test]
async fn node_methods_cannot_be_called_over_a_session() {
    let cluster = TestCluster::start(LinkKind::Uds).await;
    let mut attacker = Attacker::connect(&cluster, "proxy/attacker").await;
    let service = format!("csi/{DRIVER}");
    let methods = [
        "NodeStageVolume",
        "NodeUnstageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeGetVolumeStats",
        "NodeExpandVolume",
        "NodeOfALaterVersion",
    ];
    for method in methods {
        for service in ["csi", &service] {
            let answer = attacker.call(service, DRIVER, &format!("/csi.v1.Node/{method}"), b"").await;
            assert!(answer.contains("cannot be called from another host"), "{method}: {answer}");
        }
    }
    for method in ["/csi.v1.Node/NodeGetInfo", "/csi.v1.Identity/GetPluginInfo"] {
        let answer = attacker.call(&service, DRIVER, method, b"").await;
        assert!(!answer.contains("cannot be called"), "{method}: {answer}");
    }
    let log = cluster.agent.as_ref().unwrap().log();
    assert!(log.contains("call of another peer refused") && log.contains("proxy/attacker"), "{log}");
}

/// A caller that may call one driver reaches no other one, and no other service of the node.
#[tokio::test]
async fn a_rule_for_a_driver_allows_no_other() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.hub_options(&[
        "--allow",
        &format!("proxy=edge-*:{DRIVER}"),
        "--allow",
        "other=edge-*:other.driver",
    ]);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_agent(&["--allow", &format!("proxy=edge-1:{DRIVER}")]).unwrap();
    cluster.start_proxy(&[]).unwrap();
    edge_csi_tests::csi::ready(&cluster.proxy_socket()).await;
    let info = "/csi.v1.Identity/GetPluginInfo";
    let own = format!("csi/{DRIVER}");

    let mut proxy = Attacker::connect(&cluster, "proxy/attacker").await;
    for service in ["csi", "csi/other.driver", "volumes"] {
        let answer = proxy.call(service, DRIVER, info, b"").await;
        assert!(answer.contains(&format!("may not call {service} of edge-1")), "{service}: {answer}");
    }
    let answer = proxy.call(&own, "other.driver", info, b"").await;
    assert!(answer.contains("header names driver other.driver"), "{answer}");
    assert!(proxy.call(&own, DRIVER, info, b"").await.contains(DRIVER));

    // The hub's rule allows this call, and the agent's refuses it.
    let mut other = Attacker::connect(&cluster, "other").await;
    let answer = other.call("csi/other.driver", "other.driver", info, b"").await;
    assert!(answer.contains("edge-1 does not allow other"), "{answer}");
}
