//! The sidecars: each repeats the call for one operation until the driver has answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proxy::{Call, MethodPath, NodeId, Relay, Replies, Reply};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::answer::secret;
use crate::context::Context;
use crate::facts::{End, call_id};
use crate::ids::{AttemptId, InstanceId, OrderId};
use crate::plan::{Operation, Order, driver_name};
use crate::rng::Rng;

/// First and longest backoff between two attempts of an order.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// The endpoint of a proxy's process, which the sidecars of a driver call.
#[derive(Clone)]
pub(crate) struct ProxyEndpoint {
    pub(crate) instance: InstanceId,
    pub(crate) relay: Arc<dyn Relay>,
    /// Wakes all sidecars when the process ends.
    pub(crate) ended: Arc<Notify>,
}

impl std::fmt::Debug for ProxyEndpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ProxyEndpoint").field("instance", &self.instance).finish_non_exhaustive()
    }
}

/// Makes attempts for an order until the driver has answered, or the sidecar gives up.
pub(crate) async fn follow(context: Arc<Context>, id: OrderId, order: Order, driver: usize, mut rng: Rng) {
    sleep_until(context.instant(order.starts)).await;
    let mut attempts: u32 = 0;
    loop {
        if let Some(endpoint) = endpoint(&context, driver, &mut rng)
            && attempt(&context, id, order, endpoint, &mut rng).await
        {
            break;
        }
        attempts += 1;
        if order.attempts.is_some_and(|most| attempts >= most) {
            context.note("sidecar", || format!("{id:?} is not wanted any more"));
            break;
        }
        context.with(|inner| inner.retries += 1);
        // A restarted sidecar has no backoff.
        let restarted = order.cancels && rng.happens(400) && !context.with(|inner| inner.calm);
        let wait = FIRST_WAIT.saturating_mul(1 << attempts.min(6)).min(LONGEST_WAIT);
        sleep(if restarted { rng.millis(1, 40) } else { wait }).await;
    }
    context.with(|inner| {
        inner.unfinished -= 1;
        inner.open.remove(&id);
    });
}

/// Returns an endpoint of the driver's proxy: mostly of the newest process, and sometimes of an older one that still
/// runs.
fn endpoint(context: &Context, driver: usize, rng: &mut Rng) -> Option<ProxyEndpoint> {
    context.with(|inner| match inner.endpoints.get(driver)?.as_slice() {
        [older, .., _] if rng.happens(400) => Some(older.clone()),
        endpoints => endpoints.last().cloned(),
    })
}

/// Makes one call. Returns whether the driver has answered.
async fn attempt(
    context: &Arc<Context>,
    id: OrderId,
    order: Order,
    endpoint: ProxyEndpoint,
    rng: &mut Rng,
) -> bool {
    let Some((attempt, operation)) = context.asks(id, endpoint.instance) else { return false };
    let Some(mut call) = call(context, attempt, &operation) else { return false };
    call.remaining = order.timeout;
    let calm = context.with(|inner| inner.calm);
    let leaves = (order.cancels && !calm).then(|| {
        let longest = if rng.happens(500) { 120 } else { 3_000 };
        Instant::now() + rng.millis(1, longest)
    });
    let late = order.timeout.map(|timeout| Instant::now() + timeout);
    let mut messages = Vec::new();
    let ended = Arc::clone(&endpoint.ended).notified_owned();
    let reading = async {
        match endpoint.relay.relay(call).await {
            Ok(replies) => read(replies, order.reading, rng, &mut messages).await,
            Err(error) => End::Failed(error),
        }
    };
    let end = tokio::select! {
        biased;
        () = ended => End::Died,
        end = reading => end,
        () = maybe(leaves) => End::Left,
        () = maybe(late) => End::Late,
    };
    context.ends(attempt, end, &messages)
}

async fn maybe(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

async fn read(mut replies: Replies, reading: Duration, rng: &mut Rng, messages: &mut Vec<Bytes>) -> End {
    loop {
        match replies.next().await {
            Some(Reply::Message(message)) => {
                messages.push(message);
                sleep(rng.time(reading / 2, reading)).await;
            }
            Some(Reply::End(outcome)) => {
                return match outcome.fault() {
                    Some(fault) => End::Failed(fault.clone()),
                    None => End::Answered(outcome),
                };
            }
            None => return End::Left,
        }
    }
}

fn call(context: &Context, attempt: AttemptId, operation: &Operation) -> Option<Call> {
    let node = NodeId::new(context.with(|inner| inner.plan.name(operation.agent))).ok()?;
    let driver = DriverName::new(driver_name(operation.driver)).ok()?;
    let method = MethodPath::new(operation.path()).ok()?;
    Some(Call::new(call_id(attempt), node, driver, method, operation.request(&secret(attempt))))
}
