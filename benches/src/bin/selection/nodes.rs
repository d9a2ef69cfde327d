//! The nodes: each answers the start-up calls, `CreateVolume` and `GetCapacity` after a fixed time.

use std::time::Duration;

use csi_proto::Method;
use csi_proto::csi::v1 as csi;
use csi_proto::csi::v1::controller_service_capability::rpc::Type as Rpc;
use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proxy::{Call, Code, Fault, NodeId, Outcome, Relay, Replies};
use prost::Message;

/// The driver of all nodes.
pub(super) const DRIVER: &str = "bench.csi.edge";

/// The key under which each node reports its name.
const KEY: &str = "topology.bench.csi.edge/node";

/// Free bytes of each node.
const CAPACITY: i64 = 1 << 40;

/// The name of a node.
pub(super) fn name(number: usize) -> String {
    format!("edge-{number:05}.example.org")
}

/// The topology of the node of this name.
pub(super) fn place(name: &str) -> csi::Topology {
    csi::Topology::from_iter([(KEY, name)])
}

/// The id of a volume of a node.
pub(super) fn volume_id(name: &str) -> String {
    format!("{name}/{name}")
}

/// Carries each call to its node.
#[derive(Debug, Clone, Copy)]
pub(super) struct Nodes {
    /// The time from a call to its answer.
    pub(super) latency: Duration,
}

#[async_trait::async_trait]
impl Relay for Nodes {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        if !self.latency.is_zero() {
            tokio::time::sleep(self.latency).await;
        }
        Ok(answer(&call).unwrap_or_else(|| {
            Replies::outcome(Outcome::from_driver(Code::UNIMPLEMENTED, "not a method of these nodes"))
        }))
    }
}

fn answer(call: &Call) -> Option<Replies> {
    let ok = |message: Vec<u8>| Some(Replies::unary(message, Outcome::ok()));
    match Method::from_path(call.method.as_str())? {
        Method::GetPluginInfo => {
            let (name, vendor_version) = (DRIVER.to_owned(), "1".to_owned());
            ok(csi::GetPluginInfoResponse { name, vendor_version, ..Default::default() }.encode_to_vec())
        }
        Method::GetPluginCapabilities => {
            let services = [Service::ControllerService, Service::VolumeAccessibilityConstraints];
            let services = services.map(csi::PluginCapability::service);
            ok(services.into_iter().collect::<csi::GetPluginCapabilitiesResponse>().encode_to_vec())
        }
        Method::ControllerGetCapabilities => {
            let rpcs = [Rpc::CreateDeleteVolume, Rpc::ListVolumes, Rpc::GetCapacity];
            ok(rpcs.into_iter().collect::<csi::ControllerGetCapabilitiesResponse>().encode_to_vec())
        }
        Method::NodeGetCapabilities => ok(Vec::new()),
        Method::NodeGetInfo => ok(csi::NodeGetInfoResponse {
            node_id: call.node.to_string(),
            accessible_topology: Some(place(call.node.as_str())),
            ..Default::default()
        }
        .encode_to_vec()),
        Method::Probe => ok(csi::ProbeResponse::default().encode_to_vec()),
        Method::GetCapacity => {
            ok(csi::GetCapacityResponse { available_capacity: CAPACITY, ..Default::default() }
                .encode_to_vec())
        }
        Method::CreateVolume => created(&call.node, &call.body).and_then(ok),
        _ => None,
    }
}

fn created(node: &NodeId, request: &[u8]) -> Option<Vec<u8>> {
    let name = csi::CreateVolumeRequest::decode(request).ok()?.name;
    let volume = csi::Volume {
        volume_id: volume_id(&name),
        accessible_topology: vec![place(node.as_str())],
        ..Default::default()
    };
    Some(csi::CreateVolumeResponse { volume: Some(volume) }.encode_to_vec())
}
