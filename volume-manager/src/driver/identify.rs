//! What a driver is asked when it is connected to, before the first volume.

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
use super::channel::{self, BOUND, Stripper};
use super::dial::ConnectError;
use super::facts::{Capabilities, ControllerCapabilities, DriverFacts, NodeCapabilities};
use crate::excerpt::excerpt;

/// gRPC codes that decide something here.
const INVALID_ARGUMENT: i32 = Code::INVALID_ARGUMENT.number() as i32;
const UNAUTHENTICATED: i32 = Code::UNAUTHENTICATED.number() as i32;
const UNIMPLEMENTED: i32 = Code::UNIMPLEMENTED.number() as i32;
const FAILED_PRECONDITION: i32 = Code::FAILED_PRECONDITION.number() as i32;
const PERMISSION_DENIED: i32 = Code::PERMISSION_DENIED.number() as i32;

/// How long a driver may be not ready (Probe) before connecting to it fails.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long to wait before a driver that is not ready is probed again.
const PROBE_INTERVAL: Duration = Duration::from_secs(1);

/// The shortest time that a probe has.
const SHORTEST_PROBE: Duration = Duration::from_millis(1);

/// The most bytes of a version that are kept.
const MAX_VERSION: usize = 128;

/// The most domains of a topology that are kept.
const MAX_SEGMENTS: usize = 64;

/// Asks all that is to be known: six calls to a driver with a controller, five to one without.
pub(super) async fn identify(
    connection: &Connection,
    expected: &DriverName,
) -> Result<DriverFacts, ConnectError> {
    let driver = Asked(connection);
    driver.wait_until_ready().await?;
    let info: GetPluginInfoResponse = driver.ask(Method::GetPluginInfo, GetPluginInfoRequest {}).await?;
    if info.name != expected.as_str() {
        let found = excerpt(&info.name, MAX_VERSION);
        return Err(ConnectError::WrongPlugin { expected: expected.clone(), found });
    }
    let plugin: GetPluginCapabilitiesResponse =
        driver.ask(Method::GetPluginCapabilities, GetPluginCapabilitiesRequest {}).await?;
    let node: NodeGetCapabilitiesResponse =
        driver.ask(Method::NodeGetCapabilities, NodeGetCapabilitiesRequest {}).await?;
    let mut controller = ControllerCapabilities::default();
    if plugin.has_service(Service::ControllerService) {
        // The plugin as a whole has the service, which on the sockets of the nodes is often not served.
        let answer: Option<ControllerGetCapabilitiesResponse> = driver
            .ask_if_there(Method::ControllerGetCapabilities, ControllerGetCapabilitiesRequest {})
            .await?;
        controller = answer.as_ref().map(ControllerCapabilities::read).unwrap_or_default();
    }
    let place: Option<NodeGetInfoResponse> =
        driver.ask_if_there(Method::NodeGetInfo, NodeGetInfoRequest {}).await?;
    let mut facts = DriverFacts::new(expected.clone());
    facts.vendor_version = excerpt(&info.vendor_version, MAX_VERSION);
    facts.capabilities = Capabilities { controller, node: NodeCapabilities::read(&node) };
    if let Some(place) = place {
        put(place, &mut facts)?;
    }
    Ok(facts)
}

/// Checks what a driver says of the node, and takes it over.
fn put(place: NodeGetInfoResponse, facts: &mut DriverFacts) -> Result<(), CallError> {
    let unusable = |reason| CallError::Answer { method: Method::NodeGetInfo, reason };
    let found = place.node_id.len();
    if !(1..=NODE_ID_MAX_BYTES).contains(&found) {
        return Err(unusable(format!("node_id has {found} bytes; 1 to {NODE_ID_MAX_BYTES} are allowed")));
    }
    let topology = place.accessible_topology.map(|topology| topology.segments).unwrap_or_default();
    let found = topology.len();
    if found > MAX_SEGMENTS {
        let reason = format!("accessible_topology has {found} segments; at most {MAX_SEGMENTS} are kept");
        return Err(unusable(reason));
    }
    facts.node_id = Some(place.node_id);
    // 0 leaves the limit to the caller, and a negative one makes no sense.
    facts.max_volumes = u64::try_from(place.max_volumes_per_node).ok().filter(|limit| *limit != 0);
    facts.topology = topology;
    Ok(())
}

/// A driver that is not known yet.
struct Asked<'a>(&'a Connection);

impl Asked<'_> {
    async fn ask<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: Q,
    ) -> Result<A, CallError> {
        channel::call(self.0, method, request, BOUND, &Stripper::new([])).await
    }

    /// `None` if the driver does not have the call.
    async fn ask_if_there<Q: Message, A: Message + Default>(
        &self,
        method: Method,
        request: Q,
    ) -> Result<Option<A>, CallError> {
        match self.ask(method, request).await {
            Ok(answer) => Ok(Some(answer)),
            Err(error) if error.code() == Some(UNIMPLEMENTED) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Probes until the driver says that it is ready, in vain for a while at most.
    async fn wait_until_ready(&self) -> Result<(), ConnectError> {
        let end = Instant::now() + READY_WITHIN;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (bound, stripper) = (left.max(SHORTEST_PROBE), Stripper::new([]));
            let answer: Result<ProbeResponse, CallError> =
                channel::call(self.0, Method::Probe, ProbeRequest {}, bound, &stripper).await;
            match answer {
                Ok(ProbeResponse { ready: None | Some(true) }) => return Ok(()),
                // Kubelet does not probe, so there are drivers that have nothing to answer.
                Err(CallError::Status { code: UNIMPLEMENTED, .. }) => return Ok(()),
                // What another try will not mend.
                Err(CallError::Status {
                    code: INVALID_ARGUMENT | PERMISSION_DENIED | FAILED_PRECONDITION | UNAUTHENTICATED,
                    message,
                    ..
                }) => return Err(ConnectError::Unhealthy { message }),
                Ok(ProbeResponse { ready: Some(false) })
                | Err(CallError::Status { .. } | CallError::Late { .. }) => {}
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
