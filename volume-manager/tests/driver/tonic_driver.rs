//! A driver on an ordinary gRPC server, so that the tests do not depend on the scripted driver alone.

use csi_proto::csi::v1::identity_server::{Identity, IdentityServer};
use csi_proto::csi::v1::node_server::{Node, NodeServer};
use csi_proto::csi::v1::node_service_capability::rpc::Type as NodeRpc;
use csi_proto::csi::v1::*;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use volume_manager::advanced::driver::{CallError, CallOutcome, Operation};

use super::scripted::NAME;
use super::{Place, path, publish, stage, volume};

struct Service;

/// Defines a service with a response expression for each method.
macro_rules! service {
    ($service:ident { $($method:ident($request:ident: $of:ty) -> $answer:ty { $body:expr })* }) => {
        #[tonic::async_trait]
        impl $service for Service {
            $(async fn $method(&self, request: Request<$of>) -> Result<Response<$answer>, Status> {
                let $request = &request.get_ref();
                $body.map(Response::new)
            })*
        }
    };
}

service! {
    Identity {
        get_plugin_info(_request: GetPluginInfoRequest) -> GetPluginInfoResponse {
            Ok(GetPluginInfoResponse { name: NAME.into(), ..Default::default() })
        }
        get_plugin_capabilities(_request: GetPluginCapabilitiesRequest) -> GetPluginCapabilitiesResponse {
            Ok(GetPluginCapabilitiesResponse::default())
        }
        probe(_request: ProbeRequest) -> ProbeResponse { Ok(ProbeResponse { ready: None }) }
    }
}

service! {
    Node {
        node_stage_volume(_request: NodeStageVolumeRequest) -> NodeStageVolumeResponse {
            Ok(NodeStageVolumeResponse {})
        }
        node_unstage_volume(request: NodeUnstageVolumeRequest) -> NodeUnstageVolumeResponse {
            Err(Status::internal(format!("unmounting {}: Gerät belegt, 100 %\n", request.staging_target_path)))
        }
        node_publish_volume(_request: NodePublishVolumeRequest) -> NodePublishVolumeResponse {
            Ok(NodePublishVolumeResponse {})
        }
        node_unpublish_volume(_request: NodeUnpublishVolumeRequest) -> NodeUnpublishVolumeResponse {
            Err(Status::not_found("no such volume"))
        }
        node_get_volume_stats(_request: NodeGetVolumeStatsRequest) -> NodeGetVolumeStatsResponse {
            Err(Status::unimplemented(""))
        }
        node_get_volume_health(_request: NodeGetVolumeHealthRequest) -> NodeGetVolumeHealthResponse {
            Err(Status::unimplemented(""))
        }
        node_get_storage_health(_request: NodeGetStorageHealthRequest) -> NodeGetStorageHealthResponse {
            Err(Status::unimplemented(""))
        }
        node_expand_volume(_request: NodeExpandVolumeRequest) -> NodeExpandVolumeResponse {
            Err(Status::unimplemented(""))
        }
        node_get_capabilities(_request: NodeGetCapabilitiesRequest) -> NodeGetCapabilitiesResponse {
            Ok([NodeRpc::StageUnstageVolume].into_iter().collect())
        }
        node_get_info(_request: NodeGetInfoRequest) -> NodeGetInfoResponse {
            Ok(NodeGetInfoResponse { node_id: "n".into(), ..Default::default() })
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_ordinary_server_is_understood_and_so_are_its_errors() {
    let place = Place::new();
    let listener = UnixListener::bind(&place.socket).expect("a socket");
    let server =
        Server::builder().add_service(IdentityServer::new(Service)).add_service(NodeServer::new(Service));
    let server = tokio::spawn(server.serve_with_incoming(UnixListenerStream::new(listener)));
    let volume = volume("v");
    assert_eq!(place.driver.call(&volume, &stage()).await, Ok(CallOutcome::Done));
    assert_eq!(place.driver.call(&volume, &publish()).await, Ok(CallOutcome::Done));
    let unpublish = Operation::NodeUnpublish { target_path: path("/target/1") };
    let error = place.driver.call(&volume, &unpublish).await.expect_err("an error");
    assert_eq!(error.code(), Some(5));
    let unstage = Operation::NodeUnstage { staging_path: path("/staging/1") };
    let ended = place.driver.call(&volume, &unstage).await;
    let message = "unmounting /staging/1: Gerät belegt, 100 % ".to_owned();
    assert_eq!(ended, Err(CallError::Status { method: unstage.method(), code: 13, message }));
    server.abort();
}
