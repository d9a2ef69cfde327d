//! The agent's sockets that kubelet uses instead of the drivers' own.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::identity_client::IdentityClient;
use csi_proto::csi::v1::node_client::NodeClient;
use edge_csi_tests::cluster::{DRIVER, NODE, TestCluster};
use edge_csi_tests::csi::{channel, controller, create_volume, identity, ready, within};
use edge_csi_tests::link::LinkKind;
use edge_csi_tests::raw::{self, Raw};
use edge_csi_tests::volumes::namespace::{mounts_below, private};
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

/// A driver without a topology, which does nothing and returns OK.
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

    /// The number of calls.
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
                // Field 99, as of a later version.
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
                // An error means that the sender was dropped.
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

fn shim(cluster: &TestCluster) -> PathBuf {
    cluster.path("shim").join(format!("{DRIVER}.sock"))
}

fn node(cluster: &TestCluster) -> NodeClient<Channel> {
    NodeClient::new(channel(&shim(cluster)))
}

fn start_agent(cluster: &mut TestCluster, more: &[&str]) {
    let directory = cluster.path("shim");
    let directory = directory.to_string_lossy();
    let options = [&["--kubelet-socket-dir", &directory], more].concat();
    cluster.start_agent(&options).unwrap();
}

/// Starts a cluster with the sockets for kubelet and without a driver.
async fn cluster() -> TestCluster {
    let mut cluster = TestCluster::empty(LinkKind::Uds);
    cluster.start_hub().await.unwrap();
    start_agent(&mut cluster, &[]);
    cluster.start_proxy(&[]).unwrap();
    cluster
}

async fn plain() -> (TestCluster, Plain) {
    let cluster = cluster().await;
    let driver = Plain::serve(&cluster.driver_socket());
    ready(&shim(&cluster)).await;
    ready(&cluster.proxy_socket()).await;
    (cluster, driver)
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

/// Returns how often the agent reported a violation of this rule.
async fn broken(cluster: &TestCluster, rule: &str) -> f64 {
    let all = metrics::of(cluster.agent.as_ref().unwrap()).await;
    let name = format!(r#"csi_plugin_orchestrator_violations_total{{driver_name="{DRIVER}",rule="{rule}"}}"#);
    all.get(&name).copied().unwrap_or_default()
}

async fn no_rule_is_broken(cluster: &TestCluster) {
    let all = metrics::of(cluster.agent.as_ref().unwrap()).await;
    let broken: Vec<_> = all.iter().filter(|(name, _)| name.contains("orchestrator_violations")).collect();
    assert!(broken.is_empty(), "{broken:?}");
}

#[tokio::test]
async fn kubelet_gets_a_topology_if_the_driver_reports_none() {
    let (mut cluster, _driver) = plain().await;
    let own = raw::call(&cluster.driver_socket(), GET_INFO, Bytes::new()).await.unwrap();
    let reported = raw::call(&shim(&cluster), GET_INFO, Bytes::new()).await.unwrap();
    assert!(reported.starts_with(&own) && reported.len() > own.len(), "the driver's own bytes are first");
    let info = csi::NodeGetInfoResponse::decode(reported).unwrap();
    assert_eq!(info.node_id, NODE);
    let topology = info.accessible_topology.unwrap();
    assert_eq!(topology.segment(&format!("topology.{DRIVER}/node")), Some(NODE));
    assert!(is_constrained(identity(&shim(&cluster))).await);
    assert!(is_constrained(identity(&cluster.proxy_socket())).await, "the same is said in the cloud");
    assert!(!is_constrained(identity(&cluster.driver_socket())).await);

    cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut cluster, &["--topology-key", "none"]);
    ready(&shim(&cluster)).await;
    let reported = raw::call(&shim(&cluster), GET_INFO, Bytes::new()).await.unwrap();
    assert_eq!(reported, own);
}

#[tokio::test]
async fn a_volume_has_one_call_at_a_time() {
    let (cluster, driver) = plain().await;
    let staging = |path: &'static str| {
        let mut client = node(&cluster);
        tokio::spawn(async move { client.node_stage_volume(stage(HELD, path)).await })
    };
    let first = staging("/s");
    wait::until("the driver executes it", async || (driver.count("NodeStageVolume") == 1).then_some(()))
        .await;
    let second = staging("/s");
    cluster.agent.as_ref().unwrap().logged("joined the running operation").await;

    let other = staging("/other").await.unwrap().unwrap_err();
    assert_eq!(other.code(), Code::Aborted, "{other}");
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: HELD.to_owned(),
        node_id: NODE.to_owned(),
        volume_capability: capability(),
        ..Default::default()
    };
    let attached = controller(&cluster.proxy_socket()).controller_publish_volume(attach).await.unwrap_err();
    assert_eq!(attached.code(), Code::Aborted, "over the hub as well: {attached}");

    driver.release();
    wait::within("the first is answered", first).await.unwrap().unwrap();
    wait::within("the second is answered", second).await.unwrap().unwrap();
    assert_eq!(driver.count("NodeStageVolume"), 1);
    assert_eq!(driver.count("ControllerPublishVolume"), 0);
    // The caller on the node does not know about the attachment, which another component made.
    assert_eq!(broken(&cluster, "one_call_per_volume").await, 1.0);
}

/// The volume may be unmounted between the late answer and the retry.
#[tokio::test]
async fn a_late_answer_about_a_mount_is_not_kept() {
    let (cluster, driver) = plain().await;
    // The timeout is long enough for the call to reach the driver.
    let late = within(Duration::from_secs(3), stage(HELD, "/s"));
    let status = node(&cluster).node_stage_volume(late).await.unwrap_err();
    assert!(matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled), "{status}");
    assert_eq!(driver.count("NodeStageVolume"), 1);
    driver.release();
    cluster.driver_answered("NodeStageVolume").await;
    node(&cluster).node_stage_volume(stage(HELD, "/s")).await.unwrap();
    assert_eq!(driver.count("NodeStageVolume"), 2);
    no_rule_is_broken(&cluster).await;
}

#[tokio::test]
async fn a_call_out_of_order_is_logged_counted_and_forwarded() {
    let (cluster, driver) = plain().await;
    let mut client = node(&cluster);
    client.node_stage_volume(stage("v", "/s")).await.unwrap();
    client.node_publish_volume(publish("v", "/s", "/t")).await.unwrap();
    no_rule_is_broken(&cluster).await;

    client.node_unstage_volume(unstage("v", "/s")).await.unwrap();
    assert_eq!(driver.count("NodeUnstageVolume"), 1);
    assert_eq!(broken(&cluster, "unstage_while_published").await, 1.0);
    let log = cluster.agent.as_ref().unwrap().log();
    let reported = log.lines().find(|line| line.contains("unstage_while_published")).unwrap();
    for part in ["WARN", DRIVER, "NodeUnstageVolume", "/t"] {
        assert!(reported.contains(part), "{reported}");
    }
    assert!(!log.contains("canary-of-the-shim"), "{log}");
}

/// Needs root, to mount.
#[tokio::test]
async fn mounts_through_the_shim_that_outlives_the_driver() {
    let Some(_) = private() else {
        return;
    };
    let mut cluster = cluster().await;
    cluster.start_driver(&[]).unwrap();
    ready(&shim(&cluster)).await;
    ready(&cluster.proxy_socket()).await;
    let own = raw::call(&cluster.driver_socket(), GET_INFO, Bytes::new()).await.unwrap();
    let reported = raw::call(&shim(&cluster), GET_INFO, Bytes::new()).await.unwrap();
    assert_eq!(reported, own, "a driver's own topology stays unchanged");

    let answer = controller(&cluster.proxy_socket()).create_volume(create_volume("pvc-1")).await.unwrap();
    let id = answer.into_inner().volume.unwrap().volume_id;
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: NODE.to_owned(),
        volume_capability: capability(),
        ..Default::default()
    };
    let attached = controller(&cluster.proxy_socket()).controller_publish_volume(attach).await.unwrap();
    let publish_context = attached.into_inner().publish_context;
    let (staging, target) = (cluster.path("staging"), cluster.path("pod"));
    std::fs::create_dir(&staging).unwrap();
    std::fs::create_dir(&target).unwrap();
    let target = target.join("mount");
    let (at, to) = (staging.to_string_lossy(), target.to_string_lossy());

    let mut client = node(&cluster);
    client.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await.unwrap();
    let staged = csi::NodeStageVolumeRequest { publish_context: publish_context.clone(), ..stage(&id, &at) };
    for _ in 0..2 {
        client.node_stage_volume(staged.clone()).await.unwrap();
    }
    let published =
        csi::NodePublishVolumeRequest { publish_context: publish_context.clone(), ..publish(&id, &at, &to) };
    client.node_publish_volume(published.clone()).await.unwrap();
    std::fs::write(target.join("written"), "by a pod").unwrap();

    cluster.driver.as_mut().unwrap().kill();
    let away = client.node_unpublish_volume(unpublish(&id, &to)).await.unwrap_err();
    assert_eq!(away.code(), Code::Unavailable, "{away}");
    cluster.start_driver(&[]).unwrap();
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
    controller(&cluster.proxy_socket()).controller_unpublish_volume(detach).await.unwrap();
    let delete = csi::DeleteVolumeRequest { volume_id: id, ..Default::default() };
    controller(&cluster.proxy_socket()).delete_volume(delete).await.unwrap();
    no_rule_is_broken(&cluster).await;
}

/// Starts a process with a mount that kubelet makes in the containers of a pod, in a mount namespace of its own.
fn container_of(uid: &str, directory: &Path) -> Child {
    let (log, at) = (directory.join(format!("pods/{uid}/containers/app/log")), directory.join("at"));
    std::fs::create_dir_all(log.parent().unwrap()).unwrap();
    for file in [&log, &at] {
        std::fs::write(file, "").unwrap();
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command.args(["mount --bind \"$1\" \"$2\" && echo mounted && exec cat", "sh"]).arg(log).arg(at);
    let mut container = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(container.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "mounted\n");
    container
}

/// Needs root, to mount.
#[tokio::test]
async fn volume_of_a_running_pod_stays_published() {
    let Some(directory) = private() else {
        return;
    };
    let (mut cluster, driver) = plain().await;
    cluster.agent.as_mut().unwrap().kill();
    start_agent(&mut cluster, &["--keep-mounts-in-use"]);
    ready(&shim(&cluster)).await;
    let mut client = node(&cluster);
    let target = "/kubelet/pods/1c2d/volumes/kubernetes.io~csi/pv/mount";
    client.node_stage_volume(stage("v", "/s")).await.unwrap();
    client.node_publish_volume(publish("v", "/s", target)).await.unwrap();

    let mut container = container_of("1c2d", &directory);
    let kept = client.node_unpublish_volume(unpublish("v", target)).await.unwrap_err();
    assert_eq!(kept.code(), Code::FailedPrecondition, "{kept}");
    assert!(kept.message().contains(&format!("pod 1c2d runs as process {}", container.id())), "{kept}");
    // As a kubelet does that has its pods again.
    client.node_publish_volume(publish("v", "/s", target)).await.unwrap();
    assert_eq!(driver.count("NodeUnpublishVolume"), 0);

    container.kill().unwrap();
    container.wait().unwrap();
    client.node_unpublish_volume(unpublish("v", target)).await.unwrap();
    client.node_unstage_volume(unstage("v", "/s")).await.unwrap();
    assert_eq!(driver.count("NodeUnpublishVolume"), 1);
    no_rule_is_broken(&cluster).await;
}

#[tokio::test]
async fn volume_published_again_for_its_pod_is_reported() {
    let (cluster, _driver) = plain().await;
    let mut client = node(&cluster);
    let target = "/kubelet/pods/1c2d/volumes/kubernetes.io~csi/pv/mount";
    // The calls of KubeEdge's edged when it starts again.
    for _ in 0..2 {
        client.node_stage_volume(stage("v", "/s")).await.unwrap();
        client.node_publish_volume(publish("v", "/s", target)).await.unwrap();
        client.node_unpublish_volume(unpublish("v", target)).await.unwrap();
        client.node_unstage_volume(unstage("v", "/s")).await.unwrap();
    }
    assert_eq!(broken(&cluster, "unpublish_while_in_use").await, 1.0);
}
