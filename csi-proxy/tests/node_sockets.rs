//! A socket for each node of a driver.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failing test panics")]

mod common;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::{connect, driver_name, in_time};
use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_client::ControllerClient;
use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proxy::{
    Call, Code, Fault, InvalidSocketAddress, MemoryStore, NodeId, NodeSocketError, NodeSockets, Outcome,
    Relay, Replies,
};
use prost::Message;
use tempfile::TempDir;

/// A driver without a topology on every node, behind a relay that can be offline.
#[derive(Debug, Clone, Default)]
struct Nodes {
    off: Arc<AtomicBool>,
}

fn ok(message: impl Message) -> Result<Replies, Fault> {
    Ok(Replies::unary(message.encode_to_vec(), Outcome::ok()))
}

#[async_trait]
impl Relay for Nodes {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if self.off.load(Ordering::SeqCst) {
            return Err(Fault::NodeOffline { node: call.node });
        }
        match Method::from_path(call.method.as_str()).unwrap() {
            Method::GetPluginInfo => ok(csi::GetPluginInfoResponse::default()),
            Method::GetPluginCapabilities => {
                let services = [Service::ControllerService].map(csi::PluginCapability::service);
                ok(services.into_iter().collect::<csi::GetPluginCapabilitiesResponse>())
            }
            Method::ControllerGetCapabilities => ok(csi::ControllerGetCapabilitiesResponse::default()),
            Method::Probe => ok(csi::ProbeResponse::default()),
            Method::NodeGetInfo => ok(csi::NodeGetInfoResponse {
                node_id: format!("id-of-{}", call.node),
                max_volumes_per_node: 3,
                ..Default::default()
            }),
            Method::CreateVolume => {
                let volume = csi::Volume { volume_id: format!("on-{}", call.node), ..Default::default() };
                ok(csi::CreateVolumeResponse { volume: Some(volume) })
            }
            _ => Ok(Replies::outcome(Outcome::from_driver(Code::UNIMPLEMENTED, "no"))),
        }
    }
}

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

/// Sockets in a separate directory, and their store.
struct Site {
    directory: TempDir,
    store: MemoryStore,
    nodes: Nodes,
}

impl Site {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            store: MemoryStore::default(),
            nodes: Nodes::default(),
        }
    }

    fn sockets(&self) -> NodeSockets {
        let directory = self.directory.path().join("s");
        NodeSockets::new(directory, driver_name(), self.nodes.clone())
            .with_driver_info(self.store.clone())
            .with_startup_timeout(Duration::from_secs(5))
            .with_topology_key("kubernetes.io/hostname")
            .with_max_sockets(2)
    }

    fn socket(&self, node: &str) -> PathBuf {
        self.directory.path().join("s").join(node).join("csi.sock")
    }
}

async fn node_info(socket: &Path) -> Result<csi::NodeGetInfoResponse, tonic::Status> {
    let mut client = NodeClient::new(connect(socket.to_owned()).await);
    Ok(client.node_get_info(csi::NodeGetInfoRequest {}).await?.into_inner())
}

#[tokio::test]
async fn socket_of_a_node_relays_to_that_node() {
    let site = Site::new();
    let sockets = site.sockets();
    for name in ["edge-1", "edge-2"] {
        sockets.serve(&node(name)).await.unwrap();
        let mode = std::fs::metadata(site.socket(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let place = csi::Topology::from_iter([("kubernetes.io/hostname", name)]);
        let info = node_info(&site.socket(name)).await.unwrap();
        assert_eq!((info.node_id, info.max_volumes_per_node), (format!("id-of-{name}"), 3));
        assert_eq!(info.accessible_topology, Some(place.clone()));
        let mut controller = ControllerClient::new(connect(site.socket(name)).await);
        let created = controller.create_volume(csi::CreateVolumeRequest::default()).await.unwrap();
        let volume = created.into_inner().volume.unwrap();
        assert_eq!((volume.volume_id, volume.accessible_topology), (format!("on-{name}"), vec![place]));
    }
    let names: Vec<_> = sockets.nodes().into_iter().map(|(node, _)| node).collect();
    assert_eq!(names, ["edge-1", "edge-2"].map(node));
    let refused = sockets.serve(&node("edge-3")).await.unwrap_err();
    assert!(matches!(refused, NodeSocketError::TooMany { max: 2, .. }), "{refused}");
    assert!(!site.socket("edge-3").exists());
}

#[tokio::test]
async fn socket_of_an_offline_node_answers_startup_calls() {
    let site = Site::new();
    let sockets = site.sockets();
    sockets.serve(&node("edge-1")).await.unwrap();
    let before = node_info(&site.socket("edge-1")).await.unwrap();
    site.nodes.off.store(true, Ordering::SeqCst);
    sockets.refresh();
    assert_eq!(node_info(&site.socket("edge-1")).await.unwrap(), before);
    in_time(sockets.shutdown(Duration::from_secs(1))).await;
    assert!(!site.socket("edge-1").exists());
    let sockets = site.sockets();
    sockets.serve(&node("edge-1")).await.unwrap();
    assert_eq!(node_info(&site.socket("edge-1")).await.unwrap(), before);
    let mut controller = ControllerClient::new(connect(site.socket("edge-1")).await);
    let status = controller.create_volume(csi::CreateVolumeRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unavailable);
}

#[tokio::test]
async fn released_node_leaves_nothing() {
    let site = Site::new();
    let sockets = site.sockets();
    for name in ["edge-1", "edge-2"] {
        sockets.serve(&node(name)).await.unwrap();
    }
    assert!(in_time(sockets.release(&node("edge-1"), Duration::from_secs(1))).await);
    assert!(!site.socket("edge-1").parent().unwrap().exists() && site.socket("edge-2").exists());
    assert!(!sockets.release(&node("edge-1"), Duration::ZERO).await);
}

#[tokio::test]
async fn rejects_too_long_socket_path() {
    let site = Site::new();
    let sockets = site.sockets();
    let long = node(&"n".repeat(100));
    let error = sockets.serve(&long).await.unwrap_err();
    assert!(
        matches!(&error, NodeSocketError::Path { source: InvalidSocketAddress::TooLong { .. }, .. }),
        "{error}"
    );
    assert!(error.to_string().contains("107"), "{error}");
    for name in ["..", ".", "a/b", "", "/etc", "-a"] {
        assert!(NodeId::new(name).is_err(), "{name}");
    }
}

/// Whether the node's driver is ready within a second of paused time; `false` if it takes longer.
async fn is_ready_at_once(sockets: &NodeSockets) -> bool {
    let (_, startup) = sockets.nodes().pop().unwrap();
    let ready = async {
        while !startup.status().ready {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(1), ready).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn reconnected_node_is_ready_when_reported_online() {
    let site = Site::new();
    let sockets = site.sockets();
    site.nodes.off.store(true, Ordering::SeqCst);
    sockets.serve(&node("edge-1")).await.unwrap();
    // The retry interval is at its maximum now.
    tokio::time::sleep(Duration::from_secs(200)).await;
    site.nodes.off.store(false, Ordering::SeqCst);
    assert!(!is_ready_at_once(&sockets).await, "it was not reported");
    sockets.online(&node("edge-2"));
    assert!(!is_ready_at_once(&sockets).await, "another node was reported");
    sockets.online(&node("edge-1"));
    assert!(is_ready_at_once(&sockets).await);
}
