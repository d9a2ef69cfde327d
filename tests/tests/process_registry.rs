//! Drivers that register with the agent as they do with kubelet.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::node_client::NodeClient;
use csi_proto::pluginregistration::v1::registration_server::{Registration, RegistrationServer};
use csi_proto::pluginregistration::v1::{
    InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse,
};
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{channel, controller, create_volume, ready};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::process::Process;
use edge_csi_tests::wait;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Code, Request, Response, Status};

/// A stub of node-driver-registrar: reports the driver's endpoint and receives whether it was registered.
#[derive(Debug, Clone)]
struct Registrar {
    endpoint: PathBuf,
    statuses: Arc<Mutex<Vec<RegistrationStatus>>>,
}

#[tonic::async_trait]
impl Registration for Registrar {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        Ok(Response::new(PluginInfo {
            r#type: "CSIPlugin".to_owned(),
            name: DRIVER.to_owned(),
            endpoint: self.endpoint.to_string_lossy().into_owned(),
            supported_versions: vec!["1.0.0".to_owned()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        self.statuses.lock().unwrap().push(request.into_inner());
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}

#[tokio::test]
async fn a_driver_registers_and_deregisters_with_its_socket() {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_driver(&[]).unwrap();
    cluster.start_hub().await.unwrap();
    cluster.start_proxy(&[]).unwrap();
    let (registry, shim) = (cluster.path("registry"), cluster.path("shim"));
    let (registry_option, shim_option) = (registry.to_string_lossy(), shim.to_string_lossy());
    let hub = cluster.hub_url();
    let arguments = [
        "--nodeid",
        NODE,
        "--hub",
        hub,
        "--plugins-registry",
        &registry_option,
        "--kubelet-socket-dir",
        &shim_option,
    ];
    cluster.agent = Some(Process::start(cluster.directory(), "agent", "edge-agent", arguments));
    wait::until("the agent has made the directory", async || registry.is_dir().then_some(())).await;

    let registrar = Registrar { endpoint: cluster.driver_socket(), statuses: Arc::default() };
    let socket = registry.join("hostpath-reg.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let server = tonic::transport::Server::builder()
        .add_service(RegistrationServer::new(registrar.clone()))
        .serve_with_incoming(UnixListenerStream::new(listener));
    let server = tokio::spawn(server);

    ready(&cluster.proxy_socket()).await;
    let statuses = wait::until("the registrar is notified", async || {
        registrar.statuses.lock().unwrap().first().cloned()
    })
    .await;
    assert!(statuses.plugin_registered, "{statuses:?}");
    controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();

    let shim = shim.join(format!("{DRIVER}.sock"));
    ready(&shim).await;
    let mut node = NodeClient::new(channel(&shim));
    let info = node.node_get_info(csi::NodeGetInfoRequest {}).await.unwrap();
    assert_eq!(info.into_inner().node_id, NODE);

    server.abort();
    std::fs::remove_file(&socket).unwrap();
    wait::until("the driver is deregistered", async || {
        let status = controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-2")).await.err()?;
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains(DRIVER), "{status}");
        Some(())
    })
    .await;
    let away = node.node_get_info(csi::NodeGetInfoRequest {}).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "kubelet's socket stays: {away}");
}
