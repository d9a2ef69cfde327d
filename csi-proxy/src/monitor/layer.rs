//! A relay that monitors its caller.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::time::{Instant, sleep};

use super::core::Monitor;
use super::event::{CallNumber, Counts, End, Event};
use super::rule::{Rule, Violation};
use crate::call::{Call, CallId, Fault, Outcome, Replies};
use crate::log_limit::LogLimit;
use crate::relay::Relay;

/// The maximum number of monitored drivers. Calls to further drivers pass unmonitored.
pub const MAX_WATCHED_DRIVERS: usize = 64;

/// One monitor per driver of a node, with an unknown initial state. Cheap to clone; clones share their state, so that
/// several relays to one driver, such as for calls of the hub and of kubelet, are monitored together.
///
/// Each violation is counted (`csi_plugin_orchestrator_violations_total`, feature `metrics`), and logged, at most once in
/// 10 s for each driver and rule.
#[derive(Debug, Clone, Default)]
pub struct Monitors(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    drivers: BTreeMap<DriverName, Watched>,
    next: u64,
    full_warned: bool,
}

#[derive(Debug, Default)]
struct Watched {
    monitor: Monitor,
    warnings: BTreeMap<Rule, LogLimit>,
}

impl Monitors {
    /// The sum of the counts of all drivers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let state = self.lock();
        state.drivers.values().map(|watched| watched.monitor.counts()).fold(Counts::default(), |sum, one| {
            Counts {
                volumes: sum.volumes + one.volumes,
                open: sum.open + one.open,
                dropped: sum.dropped + one.dropped,
                violations: sum.violations + one.violations,
            }
        })
    }

    /// Sets the gauges; call this before each scrape, since the values change too often to set each time.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::metrics::monitor(&self.counts());
    }

    /// Records the start of a call. `None` if the call is not monitored.
    fn begin(&self, call: &Call) -> Option<OpenCall> {
        let method = Method::from_path(call.method.as_str()).filter(|method| Monitor::watches(*method))?;
        let mut state = self.lock();
        state.next += 1;
        let number = CallNumber::new(state.next);
        let Watched { monitor, warnings } = state.watched(&call.driver)?;
        let began = Event::Began { call: number, method, body: &call.body };
        let now = Instant::now().into_std();
        let mut warn = |rule| warnings.entry(rule).or_default().permits(now);
        let violations = monitor.handle(now, began).into_iter();
        let violations: Vec<_> = violations.map(|violation| (warn(violation.rule), violation)).collect();
        drop(state);
        for (warn, violation) in &violations {
            report(call.id, &call.driver, violation, *warn);
        }
        Some(OpenCall { monitors: self.clone(), driver: call.driver.clone(), number, ended: false })
    }

    fn end(&self, driver: &DriverName, call: CallNumber, end: End<'_>) {
        if let Some(Watched { monitor, .. }) = self.lock().drivers.get_mut(driver) {
            // The end of a call breaks no rule.
            let _ = monitor.handle(Instant::now().into_std(), Event::Ended { call, end });
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A monitor only reports, so its state is used even after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn watched(&mut self, driver: &DriverName) -> Option<&mut Watched> {
        if !self.drivers.contains_key(driver) {
            if self.drivers.len() >= MAX_WATCHED_DRIVERS {
                if !std::mem::replace(&mut self.full_warned, true) {
                    tracing::warn!(%driver, max = MAX_WATCHED_DRIVERS, "too many drivers, not monitoring this one and further ones");
                }
                return None;
            }
            self.drivers.insert(driver.clone(), Watched::default());
        }
        self.drivers.get_mut(driver)
    }
}

fn report(call: CallId, driver: &DriverName, violation: &Violation, warn: bool) {
    let Violation { rule, method, volume, expected, found } = violation;
    if warn {
        tracing::warn!(
            %call, %driver, %method, volume, %rule, section = rule.section(), expected, found,
            "the orchestrator breaks a rule of the spec"
        );
    }
    #[cfg(feature = "metrics")]
    crate::metrics::violation(driver, *rule);
}

/// An open call, which ends for its caller when dropped.
#[derive(Debug)]
struct OpenCall {
    monitors: Monitors,
    driver: DriverName,
    number: CallNumber,
    ended: bool,
}

impl OpenCall {
    fn end(&mut self, end: End<'_>) {
        if !std::mem::replace(&mut self.ended, true) {
            self.monitors.end(&self.driver, self.number, end);
        }
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.end(End::Left);
    }
}

/// Forwards all calls unchanged, and monitors whether their caller follows the spec.
///
/// Place this relay where the calls of the orchestrator arrive, before anything that coalesces or retries them.
///
/// ```
/// use csi_proxy::monitor::{Monitored, Monitors};
/// use csi_proxy::{Dispatcher, Driver};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let driver = Driver::new("csi-hostpath".parse()?, "unix:///plugins/csi-hostpath/csi.sock".parse()?);
/// let monitors = Monitors::default();
/// let relay = Monitored::new(driver, monitors.clone());
/// assert_eq!(monitors.counts().violations, 0);
/// # drop(relay);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Monitored<R> {
    inner: R,
    monitors: Monitors,
}

impl<R: Relay> Monitored<R> {
    /// Monitors the calls to this relay.
    #[must_use]
    pub fn new(inner: R, monitors: Monitors) -> Self {
        Self { inner, monitors }
    }
}

#[async_trait]
impl<R: Relay> Relay for Monitored<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let Some(mut open) = self.monitors.begin(&call) else { return self.inner.relay(call).await };
        let waited = call.remaining;
        // Monitored calls are unary.
        let answer = async { Ok::<_, Fault>(self.inner.relay(call).await?.read_unary().await) };
        let mut answer = pin!(answer);
        let answer = match waited {
            None => answer.await,
            Some(waited) => tokio::select! {
                biased;
                answer = &mut answer => answer,
                // Over a link the cancellation is not always reported, but the deadline is known.
                () = sleep(waited) => {
                    open.end(End::Left);
                    answer.await
                }
            },
        };
        match &answer {
            Err(fault) => open.end(End::Answered { code: fault.code(), message: None }),
            Ok((message, Outcome { code, .. })) => {
                open.end(End::Answered { code: *code, message: message.as_deref() });
            }
        }
        answer.map(|(message, outcome)| Replies::whole(message, outcome))
    }
}
