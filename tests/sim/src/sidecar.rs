//! The sidecars: each wants one operation done, asks for it, and asks again until the driver itself has answered.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proxy::{Call, MethodPath, NodeId, Relay, Replies, Reply};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, sleep_until};

use crate::chance::Chance;
use crate::context::Context;
use crate::facts::{End, call_id};
use crate::ids::{AttemptId, LifeId, OrderId};
use crate::plan::{Operation, Order, driver_name};

/// First and longest wait before an order is tried again.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// Where the sidecars of a driver make their calls.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) life: LifeId,
    pub(crate) relay: Arc<dyn Relay>,
    /// Wakes all when the process ends, in their order.
    pub(crate) ended: Arc<Notify>,
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("life", &self.life).finish_non_exhaustive()
    }
}

/// Follows an order to its end.
pub(crate) async fn follow(
    context: Arc<Context>,
    id: OrderId,
    order: Order,
    driver: usize,
    mut chance: Chance,
) {
    sleep_until(context.instant(order.starts)).await;
    let mut attempts: u32 = 0;
    loop {
        if let Some(desk) = desk(&context, driver, &mut chance)
            && attempt(&context, id, order, desk, &mut chance).await
        {
            break;
        }
        attempts += 1;
        if order.attempts.is_some_and(|most| attempts >= most) {
            context.note("sidecar", || format!("{id:?} is not wanted any more"));
            break;
        }
        context.with(|inner| inner.retries += 1);
        // One that was begun anew asks at once.
        let anew = order.restless && chance.happens(400) && !context.with(|inner| inner.calm);
        let wait = FIRST_WAIT.saturating_mul(1 << attempts.min(6)).min(LONGEST_WAIT);
        sleep(if anew { chance.millis(1, 40) } else { wait }).await;
    }
    context.with(|inner| {
        inner.unfinished -= 1;
        inner.open.remove(&id);
    });
}

/// Where to ask: mostly the newest process of the driver's proxy, and one that it has replaced while that does not know of it.
fn desk(context: &Context, driver: usize, chance: &mut Chance) -> Option<Desk> {
    context.with(|inner| match inner.desks.get(driver)?.as_slice() {
        [older, .., _] if chance.happens(400) => Some(older.clone()),
        desks => desks.last().cloned(),
    })
}

/// Makes one call. Says whether the driver has answered.
async fn attempt(context: &Arc<Context>, id: OrderId, order: Order, desk: Desk, chance: &mut Chance) -> bool {
    let Some((attempt, operation)) = context.asks(id, desk.life) else { return false };
    let Some(mut call) = call(context, attempt, &operation) else { return false };
    call.remaining = order.patience;
    let calm = context.with(|inner| inner.calm);
    let leaves = (order.restless && !calm).then(|| {
        let longest = if chance.happens(500) { 120 } else { 3_000 };
        Instant::now() + chance.millis(1, longest)
    });
    let late = order.patience.map(|patience| Instant::now() + patience);
    let mut messages = Vec::new();
    let ended = Arc::clone(&desk.ended).notified_owned();
    let reading = async {
        match desk.relay.relay(call).await {
            Ok(replies) => read(replies, order.reading, chance, &mut messages).await,
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

async fn read(
    mut replies: Replies,
    reading: Duration,
    chance: &mut Chance,
    messages: &mut Vec<Bytes>,
) -> End {
    loop {
        match replies.next().await {
            Some(Reply::Message(message)) => {
                messages.push(message);
                sleep(chance.time(reading / 2, reading)).await;
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
    Some(Call::new(call_id(attempt), node, driver, method, operation.request(attempt)))
}
