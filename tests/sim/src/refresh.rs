//! The calls by which each proxy asks the nodes about its driver, also the node that lies.

use std::sync::Arc;
use std::time::Duration;

use csi_proto::{DriverName, Method};
use csi_proxy::{Call, CallId, MethodPath, NodeId};
use tokio::time::{sleep, timeout};

use crate::attacker::Role;
use crate::context::Context;
use crate::plan::driver_name;
use crate::rng::Rng;
use crate::sidecar::ProxyEndpoint;

/// The time limit of a question.
const WAITED: Duration = Duration::from_secs(2);

/// Asks one node after the other, until the proxy or the run ends. The answers are ignored.
pub(crate) async fn refresh(context: Arc<Context>, endpoint: ProxyEndpoint, driver: usize, mut rng: Rng) {
    let ended = Arc::clone(&endpoint.ended).notified_owned();
    let (lies, agents) = context.with(|inner| (inner.plan.has_lying_node(), inner.plan.agents));
    let asking = async {
        loop {
            sleep(rng.millis(500, if lies { 8_000 } else { 20_000 })).await;
            if context.with(|inner| inner.unfinished == 0) {
                return;
            }
            let node = match lies && rng.happens(600) {
                true => Role::Node.name().to_owned(),
                false => context.with(|inner| inner.plan.name(rng.below(agents))),
            };
            let Some(call) = question(node, driver) else { return };
            let answer = async { Some(endpoint.relay.relay(call).await.ok()?.collect().await) };
            let _ = timeout(WAITED, answer).await;
        }
    };
    tokio::select! {
        biased;
        () = ended => {}
        () = asking => {}
    }
}

/// Returns a call without data of a tenant.
fn question(node: String, driver: usize) -> Option<Call> {
    let driver = DriverName::new(driver_name(driver)).ok()?;
    let method = MethodPath::new(Method::GetPluginInfo.path()).ok()?;
    // No attempt of a sidecar has this id.
    let id = CallId::from_bytes([0; 16]);
    let call = Call::new(id, NodeId::new(node).ok()?, driver, method, bytes::Bytes::new());
    Some(call.with_remaining(WAITED))
}
