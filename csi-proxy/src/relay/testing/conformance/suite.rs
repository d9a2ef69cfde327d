//! Calls of the suite, and what it expects.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;

use super::far_end::FarEnd;
use super::{NODE, Violation};
use crate::call::{Call, CallId, MethodPath, NodeId, Outcome, Replies};
use crate::relay::Relay;

/// The timeout of one call.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);

/// How long until the state of the relay is checked again.
pub(super) const POLL: Duration = Duration::from_millis(20);

/// A relay, and the far end that it is connected to.
#[derive(Clone)]
pub(super) struct Suite {
    pub(super) relay: Arc<dyn Relay>,
    pub(super) far: Arc<FarEnd>,
}

impl Suite {
    /// The whole answer to a call with the usual deadline.
    pub(super) async fn answer(
        &self,
        case: &'static str,
        driver: &str,
        method: &str,
        body: Bytes,
    ) -> Result<(Vec<Bytes>, Outcome), Violation> {
        let call = call(case, driver, method, body)?;
        within(case, async { collect(self.open(call).await).await }).await
    }

    /// Sends a call. A fault becomes an answer.
    pub(super) async fn open(&self, call: Call) -> Replies {
        self.relay.relay(call).await.unwrap_or_else(Replies::outcome)
    }
}

pub(super) async fn collect(replies: Replies) -> (Vec<Bytes>, Outcome) {
    replies.collect().await
}

pub(super) fn call(case: &'static str, driver: &str, method: &str, body: Bytes) -> Result<Call, Violation> {
    let broken = |found: String| Violation { case, found };
    let driver = DriverName::new(driver).map_err(|error| broken(error.to_string()))?;
    let node = NodeId::new(NODE).map_err(|error| broken(error.to_string()))?;
    let method = MethodPath::new(method).map_err(|error| broken(error.to_string()))?;
    Ok(Call::new(CallId::new(), node, driver, method, body).with_remaining(TIMEOUT))
}

pub(super) async fn within<T>(case: &'static str, future: impl Future<Output = T>) -> Result<T, Violation> {
    let late = |_| Violation { case, found: format!("no result within {TIMEOUT:?}") };
    tokio::time::timeout(TIMEOUT, future).await.map_err(late)
}

/// Waits until a condition holds.
pub(super) async fn until(
    case: &'static str,
    found: &str,
    holds: impl Fn() -> bool,
) -> Result<(), Violation> {
    let waits = async {
        while !holds() {
            tokio::time::sleep(POLL).await;
        }
    };
    let late = |_| Violation { case, found: format!("{found} after {TIMEOUT:?}") };
    tokio::time::timeout(TIMEOUT, waits).await.map_err(late)
}

pub(super) fn expect(
    case: &'static str,
    holds: bool,
    found: impl FnOnce() -> String,
) -> Result<(), Violation> {
    if holds { Ok(()) } else { Err(Violation { case, found: found() }) }
}
