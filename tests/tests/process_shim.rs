//! The sockets that kubelet is given in the place of the drivers' own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::csi::{channel, controller, create_volume, identity, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::raw::{self, Raw};
use edge_csi_tests::stand::{DRIVER, NODE, Stand};
use edge_csi_tests::volumes::ground::{mounts_below, private};
use edge_csi_tests::{metrics, wait};
use prost::Message as _;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::codegen::http;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

const GET_INFO: &str = "/csi.v1.Node/NodeGetInfo";

/// The id of the volume whose calls do not end before [`Plain::release`].
const HELD: &str = "held";

/// A driver without a topology, which does nothing and says OK.
#[derive(Debug, Clone)]
struct Plain {
    seen: Arc<Mutex<Vec<String>>>,
    released: Arc<watch::Sender<bool>>,
}

impl Plain {
    fn serve(socket: &Path) -> Self {
        let driver = Self { seen: Arc::default(), released: Arc::new(watch::Sender::new(false)) };
        let incoming = UnixListenerStream::new(UnixListener::bind(socket).unwrap());
        tokio::spawn(tonic::transport::Server::builder().serve_with_incoming(driver.clone(), incoming));
        driver
    }

    fn release(&self) {
        self.released.send_replace(true);
    }

    /// How often it was told to do this.
    fn count(&self, method: &str) -> usize {
        self.seen.lock().unwrap().iter().filter(|seen| seen.ends_with(method)).count()
    }

    fn answer(path: &str) -> Vec<u8> {
        use csi::controller_service_capability as controller;
        use csi::node_service_capability as node;
        match path.rsplit('/').next().unwrap() {
            "GetPluginInfo" => {
                let (name, vendor_version) = (DRIVER.to_owned(), "1.0.0".to_owned());
                csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }.encode_to_vec()
            }
            "GetPluginCapabilities" => {
                use csi::plugin_capability::{Service, Type, service};
                let service = Service { r#type: service::Type::ControllerService.into() };
                let capabilities = vec![csi::PluginCapability { r#type: Some(Type::Service(service)) }];
                csi::GetPluginCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            "ControllerGetCapabilities" => {
                let rpc = controller::Rpc { r#type: controller::rpc::Type::PublishUnpublishVolume.into() };
                let r#type = Some(controller::Type::Rpc(rpc));
                let capabilities = vec![csi::ControllerServiceCapability { r#type }];
                csi::ControllerGetCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            "NodeGetCapabilities" => {
                let rpc = node::Rpc { r#type: node::rpc::Type::StageUnstageVolume.into() };
                let capabilities = vec![csi::NodeServiceCapability { r#type: Some(node::Type::Rpc(rpc)) }];
                csi::NodeGetCapabilitiesResponse { capabilities }.encode_to_vec()
            }
            "NodeGetInfo" => {
                let info = csi::NodeGetInfoResponse { node_id: NODE.to_owned(), ..Default::default() };
                // And field 99 of a version to come.
                [&info.encode_to_vec()[..], &[0x9a, 0x06, 0x02, b'h', b'i']].concat()
            }
            _ => Vec::new(),
        }
    }
}

#[derive(Debug)]
struct Call {
    driver: Plain,
    path: String,
}

impl tonic::server::UnaryService<Bytes> for Call {
    type Response = Bytes;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Bytes>, Status>> + Send>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (driver, path) = (self.driver.clone(), self.path.clone());
        Box::pin(async move {
            driver.seen.lock().unwrap().push(path.clone());
            let body = request.into_inner();
            if path.ends_with("NodeStageVolume")
                && body.windows(HELD.len()).any(|part| part == HELD.as_bytes())
            {
                // An error means that nobody can release it any more.
                let _ = driver.released.subscribe().wait_for(|released| *released).await;
            }
            Ok(Response::new(Plain::answer(&path).into()))
        })
    }
}

impl tower::Service<http::Request<tonic::body::Body>> for Plain {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let call = Call { driver: self.clone(), path: request.uri().path().to_owned() };
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).unary(call, request).await) })
    }
}

impl tonic::server::NamedService for Plain {
    const NAME: &'static str = "any";
}

fn shim(stand: &Stand) -> PathBuf {
    stand.path("shim").join(format!("{DRIVER}.sock"))
}

fn node(stand: &Stand) -> NodeClient<Channel> {
    NodeClient::new(channel(&shim(stand)))
}

fn start_agent(stand: &mut Stand, more: &[&str]) {
    let directory = stand.path("shim");
    let directory = directory.to_string_lossy();
    let options = [&["--shim", &directory, "--http", "127.0.0.1:0"], more].concat();
    stand.start_agent(&options);
}

/// Everything but the driver, with the sockets for kubelet.
async fn stand() -> Stand {
    let mut stand = Stand::empty(LinkKind::Uds);
    stand.start_hub().await;
    start_agent(&mut stand, &[]);
    stand.start_proxy(&[]);
    stand
}

async fn plain() -> (Stand, Plain) {
    let stand = stand().await;
    let driver = Plain::serve(&stand.driver_socket());
    ready(&shim(&stand)).await;
    ready(&stand.proxy_socket()).await;
    (stand, driver)
}

fn capability() -> Option<csi::VolumeCapability> {
    create_volume("").volume_capabilities.pop()
}

fn stage(id: &str, path: &str) -> csi::NodeStageVolumeRequest {
    csi::NodeStageVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: path.to_owned(),
        volume_capability: capability(),
        ..Default::default()
    }
}

fn publish(id: &str, staging: &str, target: &str) -> csi::NodePublishVolumeRequest {
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        staging_target_path: staging.to_owned(),
        target_path: target.to_owned(),
        volume_capability: capability(),
        secrets: [("password".to_owned(), "canary-of-the-shim".to_owned())].into(),
        ..Default::default()
    }
}

fn unpublish(id: &str, target: &str) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: target.to_owned() }
}

fn unstage(id: &str, path: &str) -> csi::NodeUnstageVolumeRequest {
    csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: path.to_owned() }
}

async fn is_constrained(mut client: IdentityClient<Channel>) -> bool {
    use csi::plugin_capability::{Type, service::Type::VolumeAccessibilityConstraints};
    let answer = client.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await.unwrap();
    answer.into_inner().capabilities.iter().any(|capability| {
        matches!(&capability.r#type, Some(Type::Service(service))
            if service.r#type == i32::from(VolumeAccessibilityConstraints))
    })
}

/// How often the agent has seen this rule broken.
async fn broken(stand: &Stand, rule: &str) -> f64 {
    let all = metrics::of(stand.agent.as_ref().unwrap()).await;
    let name = format!(r#"csi_plugin_orchestrator_violations_total{{driver_name="{DRIVER}",rule="{rule}"}}"#);
    all.get(&name).copied().unwrap_or_default()
}

async fn no_rule_is_broken(stand: &Stand) {
    let all = metrics::of(stand.agent.as_ref().unwrap()).await;
    let broken: Vec<_> = all.iter().filter(|(name, _)| name.contains("orchestrator_violations")).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[tokio::test]
async fn kubelet_learns_where_the_node_is_from_a_driver_that_does_not_say() {
    let (mut stand, _driver) = plain().await;
    let own = raw::call(&stand.driver_socket(), GET_INFO, Bytes::new()).await.unwrap();
    let told = raw::call(&shim(&stand), GET_INFO, Bytes::new()).await.unwrap();
    assert!(told.starts_with(&own) && told.len() > own.len(), "the driver's own bytes come first");
    let info = csi::NodeGetInfoResponse::decode(told).unwrap();
    assert_eq!(info.node_id, NODE);
    let topology = info.accessible_topology.unwrap();
    assert_eq!(topology.segment(&format!("topology.{DRIVER}/node")), Some(NODE));
    assert!(is_constrained(identity(&shim(&stand))).await);
    assert!(is_constrained(identity(&stand.proxy_socket())).await, "the same is said in the cloud");
    assert!(!is_constrained(identity(&stand.driver_socket())).await);

    stand.agent.as_mut().unwrap().kill();
    start_agent(&mut stand, &["--topology-key", "none"]);
    ready(&shim(&stand)).await;
    let told = raw::call(&shim(&stand), GET_INFO, Bytes::new()).await.unwrap();
    assert_eq!(told, own);
}

#[tokio::test]
async fn a_volume_has_one_call_at_a_time_whoever_makes_it() {
    let (stand, driver) = plain().await;
    let staging = |path: &'static str| {
        let mut client = node(&stand);
        tokio::spawn(async move { client.node_stage_volume(stage(HELD, path)).await })
    };
    let first = staging("/s");
    wait::until("the driver is at it", async || (driver.count("NodeStageVolume") == 1).then_some(())).await;
    let second = staging("/s");
    stand.agent.as_ref().unwrap().logged("joins the same operation").await;

    let other = staging("/other").await.unwrap().unwrap_err();
    assert_eq!(other.code(), Code::Aborted, "{other}");
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: HELD.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: capability(),
        ..Default::default()
    };
    let attached = controller(&stand.proxy_socket()).controller_publish_volume(attach).await.unwrap_err();
    assert_eq!(attached.code(), Code::Aborted, "over the hub as well: {attached}");

    driver.release();
    wait::within("the first is answered", first).await.unwrap().unwrap();
    wait::within("the second is answered", second).await.unwrap().unwrap();
    assert_eq!(driver.count("NodeStageVolume"), 1);
    assert_eq!(driver.count("ControllerPublishVolume"), 0);
    // The attachment is another part's: what calls on the node does not know of it.
    assert_eq!(broken(&stand, "one_call_per_volume").await, 1.0);
}

/// What was mounted may be gone by the time that it is asked for again.
#[tokio::test]
async fn an_answer_about_a_mount_that_came_too_late_is_not_kept() {
    let (stand, driver) = plain().await;
    // Long enough for it to reach the driver.
    let late = within(Duration::from_secs(3), stage(HELD, "/s"));
    let status = node(&stand).node_stage_volume(late).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    assert_eq!(driver.count("NodeStageVolume"), 1);
    driver.release();
    stand.driver_answered("NodeStageVolume").await;
    node(&stand).node_stage_volume(stage(HELD, "/s")).await.unwrap();
    assert_eq!(driver.count("NodeStageVolume"), 2);
    no_rule_is_broken(&stand).await;
}

#[tokio::test]
async fn a_call_out_of_order_is_logged_and_counted_and_goes_to_the_driver_all_the_same() {
    let (stand, driver) = plain().await;
    let mut client = node(&stand);
    client.node_stage_volume(stage("v", "/s")).await.unwrap();
    client.node_publish_volume(publish("v", "/s", "/t")).await.unwrap();
    no_rule_is_broken(&stand).await;

    client.node_unstage_volume(unstage("v", "/s")).await.unwrap();
    assert_eq!(driver.count("NodeUnstageVolume"), 1);
    assert_eq!(broken(&stand, "unstage_while_published").await, 1.0);
    let log = stand.agent.as_ref().unwrap().log();
    let told = log.lines().find(|line| line.contains("unstage_while_published")).unwrap();
    for part in ["WARN", DRIVER, "NodeUnstageVolume", "/t"] {
        assert!(told.contains(part), "{told}");
    }
    assert!(!log.contains("canary-of-the-shim"), "{log}");
}

/// Needs root, to mount.
#[tokio::test]
async fn a_volume_is_mounted_through_the_shim_and_its_socket_outlives_the_driver() {
    let Some(_) = private("a_volume_is_mounted_through_the_shim_and_its_socket_outlives_the_driver") else {
        return;
    };
    let mut stand = stand().await;
    stand.start_driver();
    ready(&shim(&stand)).await;
    ready(&stand.proxy_socket()).await;
    let own = raw::call(&stand.driver_socket(), GET_INFO, Bytes::new()).await.unwrap();
    let told = raw::call(&shim(&stand), GET_INFO, Bytes::new()).await.unwrap();
    assert_eq!(told, own, "a driver's own topology stays as it is");

    let answer = controller(&stand.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
    let id = answer.into_inner().volume.unwrap().volume_id;
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: NODE.to_owned(),
        volume_capability: capability(),
        ..Default::default()
    };
    let attached = controller(&stand.proxy_socket()).controller_publish_volume(attach).await.unwrap();
    let publish_context = attached.into_inner().publish_context;
    let (staging, target) = (stand.path("staging"), stand.path("pod"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::create_dir(&target).unwrap();
    let target = target.join("mount");
    let (at, to) = (staging.to_string_lossy(), target.to_string_lossy());

    let mut client = node(&stand);
    client.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await.unwrap();
    let staged = csi::NodeStageVolumeRequest { publish_context: publish_context.clone(), ..stage(&id, &at) };
    for _ in 0..2 {
        client.node_stage_volume(staged.clone()).await.unwrap();
    }
    let published =
        csi::NodePublishVolumeRequest { publish_context: publish_context.clone(), ..publish(&id, &at, &to) };
    client.node_publish_volume(published.clone()).await.unwrap();
    std::fs::write(target.join("written"), "by a pod").unwrap();

    stand.driver.as_mut().unwrap().kill();
    let away = client.node_unpublish_volume(unpublish(&id, &to)).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away}");
    stand.start_driver();
    wait::until("the driver is back", async || {
        client.clone().node_unpublish_volume(unpublish(&id, &to)).await.ok()
    })
    .await;
    client.node_publish_volume(published).await.unwrap();
    assert_eq!(std::fs::read_to_string(target.join("written")).unwrap(), "by a pod");

    client.node_unpublish_volume(unpublish(&id, &to)).await.unwrap();
    client.node_unstage_volume(unstage(&id, &at)).await.unwrap();
    assert!(mounts_below(&staging).is_empty() && mounts_below(&target).is_empty());
    let detach = csi::ControllerUnpublishVolumeRequest {
        volume_id: id.clone(),
        node_id: NODE.to_owned(),
        ..Default::default()
    };
    controller(&stand.proxy_socket()).controller_unpublish_volume(detach).await.unwrap();
    let delete = csi::DeleteVolumeRequest { volume_id: id, ..Default::default() };
    controller(&stand.proxy_socket()).delete_volume(delete).await.unwrap();
    no_rule_is_broken(&stand).await;
}
