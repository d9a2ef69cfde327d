//! The handshake with a driver: readiness, name, capabilities, node info.

use csi_proto::csi::v1::plugin_capability::service::Type as Service;
use csi_proto::csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, NodeGetCapabilitiesRequest,
    NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse, ProbeRequest, ProbeResponse,
};
use csi_proto::grpc::Connection;
use csi_proto::validate::NODE_ID_MAX_BYTES;
use csi_proto::{Code, DriverName, Method};
use prost::Message;
use tokio::time::{Duration, Instant, sleep_until};

use super::call_error::CallError;
use super::channel::{self, CALL_TIMEOUT, Stripper};
use super::connect::ConnectError;
use super::facts::{Capabilities, ControllerCapabilities, DriverFacts, NodeCapabilities};
use crate::excerpt::excerpt;

/// The gRPC codes that are handled here.
const INVALID_ARGUMENT: i32 = Code::INVALID_ARGUMENT.number() as i32;
const UNAUTHENTICATED: i32 = Code::UNAUTHENTICATED.number() as i32;
const UNIMPLEMENTED: i32 = Code::UNIMPLEMENTED.number() as i32;
const FAILED_PRECONDITION: i32 = Code::FAILED_PRECONDITION.number() as i32;
const PERMISSION_DENIED: i32 = Code::PERMISSION_DENIED.number() as i32;

/// How long Probe may report that the driver is not ready before connecting fails.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The interval between probes of a driver that is not ready.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest timeout of a probe.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(1);

/// The size in bytes at which a version or a name is cut.
const MAX_VERSION_BYTES: usize = 128;

/// The maximum number of topology segments.
const MAX_SEGMENTS: usize = 64;

/// Queries the driver: six calls if it has a controller service, otherwise five.
pub(super) async fn identify(
    connection: &Connection,
    expected: &DriverName,
) -> Result<DriverFacts, ConnectError> {
    let handshake = Handshake(connection);
    handshake.wait_until_ready().await?;
    let info: GetPluginInfoResponse = handshake.call(Method::GetPluginInfo, GetPluginInfoRequest {}).await?;
    if info.name != expected.as_str() {
        let found = excerpt(&info.name, MAX_VERSION_BYTES);
        return Err(ConnectError::WrongPlugin { expected: expected.clone(), found });
    }
    let plugin: GetPluginCapabilitiesResponse =
        handshake.call(Method::GetPluginCapabilities, GetPluginCapabilitiesRequest {}).await?;
    let node: NodeGetCapabilitiesResponse =
        handshake.call(Method::NodeGetCapabilities, NodeGetCapabilitiesRequest {}).await?;
    let mut controller = ControllerCapabilities::default();
    if plugin.has_service(Service::ControllerService) {
        // GetPluginCapabilities describes the plugin as a whole; node sockets often do not serve the controller service.
        let answer: Option<ControllerGetCapabilitiesResponse> = handshake
            .call_optional(Method::ControllerGetCapabilities, ControllerGetCapabilitiesRequest {})
            .await?;
        controller = answer.as_ref().map(ControllerCapabilities::read).unwrap_or_default();
    }
    let node_info: Option<NodeGetInfoResponse> =
        handshake.call_optional(Method::NodeGetInfo, NodeGetInfoRequest {}).await?;
    let mut facts = DriverFacts::new(expected.clone());
    facts.vendor_version = excerpt(&info.vendor_version, MAX_VERSION_BYTES);
    facts.capabilities = Capabilities { controller, node: NodeCapabilities::read(&node) };
    if let Some(node_info) = node_info {
        set_node_info(node_info, &mut facts)?;
    }
    Ok(facts)
}

/// Validates the node info and copies it.
fn set_node_info(answer: NodeGetInfoResponse, facts: &mut DriverFacts) -> Result<(), CallError> {
    let invalid = |reason| CallError::Answer { method: Method::NodeGetInfo, reason };
    let found = answer.node_id.len();
    if !(1..=NODE_ID_MAX_BYTES).contains(&found) {
        return Err(invalid(format!("node_id has {found} bytes; 1 to {NODE_ID_MAX_BYTES} are allowed")));
    }
    let topology = answer.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
    let found = topology.len();
    if found > MAX_SEGMENTS {
        let reason = format!("accessible_topology has {found} segments; at most {MAX_SEGMENTS} are allowed");
        return Err(invalid(reason));
    }
    facts.node_id = Some(answer.node_id);
    // 0 means that the driver has no limit. Negative limits are invalid and ignored.
    facts.max_volumes = u64::try_from(answer.max_volumes_per_node).ok().filter(|limit| *limit != 0);
    facts.topology = topology;
    Ok(())
}

/// The calls of the handshake with a driver.
struct Handshake<'a>(&'a Connection);

impl Handshake<'_> {
    async fn call<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: Q,
    ) -> Result<A, CallError> {
        channel::call(self.0, method, request, CALL_TIMEOUT, &Stripper::new([])).await
    }

    /// Makes a call that the driver need not implement; `None` if it answers UNIMPLEMENTED.
    async fn call_optional<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: Q,
    ) -> Result<Option<A>, CallError> {
        match self.call(method, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.code() == Some(UNIMPLEMENTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Probes until the driver is ready, for at most [`READY_WITHIN`].
    async fn wait_until_ready(&self) -> Result<(), ConnectError> {
        let end = Instant::now() + READY_WITHIN;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (bound, stripper) = (left.max(MIN_PROBE_TIMEOUT), Stripper::new([]));
            let answer: Result<ProbeResponse, CallError> =
                channel::call(self.0, Method::Probe, ProbeRequest {}, bound, &stripper).await;
            match answer {
                Ok(ProbeResponse { ready: None | Some(true) }) => return Ok(()),
                // Kubelet does not probe, so some drivers do not implement Probe.
                Err(CallError::Status { code: UNIMPLEMENTED, .. }) => return Ok(()),
                // Permanent errors.
                Err(CallError::Status {
                    code: INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION | UNAUTHENTICATED,
                    message,
                    ..
                }) => return Err(ConnectError::Unhealthy { message }),
                Ok(ProbeResponse { ready: Some(false) })
                | Err(CallError::Status { .. } | CallError::Timeout { .. }) => {}
                Err(error) => return Err(error.into()),
            }
            let next = Instant::now() + PROBE_INTERVAL;
            if next >= end {
                return Err(ConnectError::NotReady { within: READY_WITHIN });
            }
            sleep_until(next).await;
        }
    }
}
