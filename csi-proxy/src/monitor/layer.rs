//! A relay whose caller is watched.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use csi_proto::{DriverName, Method};
use tokio::time::{Instant, sleep};

use super::{CallNumber, Counts, End, Event, Monitor, Violation};
use crate::call::{Call, CallId, Fault, Outcome, Replies};
use crate::relay::Relay;

/// Most drivers that are watched. The calls of more pass unwatched.
pub const MAX_WATCHED_DRIVERS: usize = 64;

/// The monitors of a node's drivers, one each, which know nothing of the time before. Cheap to clone; all clones are the same, so that several relays to one driver,
/// such as one for the hub's calls and one for kubelet's, can be watched as one.
///
/// Each violation is a line in the log, and, with the feature `metrics`, counted.
#[derive(Debug, Clone, Default)]
pub struct Monitors(Arc<Mutex<Watch>>);

#[derive(Debug, Default)]
struct Watch {
    drivers: BTreeMap<DriverName, Monitor>,
    next: u64,
    full_told: bool,
}

impl Monitors {
    /// How much is watched, and what was found, over all drivers.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let watch = self.lock();
        watch.drivers.values().map(Monitor::counts).fold(Counts::default(), |sum, one| Counts {
            volumes: sum.volumes + one.volumes,
            open: sum.open + one.open,
            dropped: sum.dropped + one.dropped,
            violations: sum.violations + one.violations,
        })
    }

    /// Sets the gauges, which change too often to be set each time.
    #[cfg(feature = "metrics")]
    pub fn publish_metrics(&self) {
        crate::metrics::monitor(&self.counts());
    }

    /// Sees a call begin. `None` if it says nothing.
    fn begin(&self, call: &Call) -> Option<Watched> {
        let method = Method::from_path(call.method.as_str()).filter(|method| Monitor::watches(*method))?;
        let mut watch = self.lock();
        watch.next += 1;
        let number = CallNumber::new(watch.next);
        let monitor = watch.monitor(&call.driver)?;
        let began = Event::Began { call: number, method, body: &call.body };
        let violations = monitor.handle(Instant::now().into_std(), began);
        drop(watch);
        for violation in &violations {
            tell(call.id, &call.driver, violation);
        }
        Some(Watched { monitors: self.clone(), driver: call.driver.clone(), number, over: false })
    }

    fn end(&self, driver: &DriverName, call: CallNumber, end: End<'_>) {
        if let Some(monitor) = self.lock().drivers.get_mut(driver) {
            // An end breaks no rule.
            let _ = monitor.handle(Instant::now().into_std(), Event::Ended { call, end });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Watch> {
        // What a monitor knows is judged by nobody's life.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    fn monitor(&mut self, driver: &DriverName) -> Option<&mut Monitor> {
        if !self.drivers.contains_key(driver) {
            if self.drivers.len() >= MAX_WATCHED_DRIVERS {
                if !std::mem::replace(&mut self.full_told, true) {
                    tracing::warn!(%driver, max = MAX_WATCHED_DRIVERS, "too many drivers; calls of this one and of others are not watched");
                }
                return None;
            }
            self.drivers.insert(driver.clone(), Monitor::default());
        }
        self.drivers.get_mut(driver)
    }
}

fn tell(call: CallId, driver: &DriverName, violation: &Violation) {
    let Violation { rule, method, volume, expected, found } = violation;
    tracing::warn!(
        %call, %driver, %method, volume, %rule, section = rule.section(), expected, found,
        "the orchestrator breaks a rule of the spec"
    );
    #[cfg(feature = "metrics")]
    crate::metrics::violation(driver, *rule);
}

/// A call that is under way, and over for its caller when this is dropped.
#[derive(Debug)]
struct Watched {
    monitors: Monitors,
    driver: DriverName,
    number: CallNumber,
    over: bool,
}

impl Watched {
    fn end(&mut self, end: End<'_>) {
        if !std::mem::replace(&mut self.over, true) {
            self.monitors.end(&self.driver, self.number, end);
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.end(End::Left);
    }
}

/// Hands calls on and watches whether their caller keeps the order of the spec. It changes and refuses nothing.
///
/// It stands where the orchestrator's calls arrive, before anything that joins or repeats them.
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
    /// Watches the calls to this relay.
    #[must_use]
    pub fn new(inner: R, monitors: Monitors) -> Self {
        Self { inner, monitors }
    }
}

#[async_trait]
impl<R: Relay> Relay for Monitored<R> {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let Some(mut watched) = self.monitors.begin(&call) else { return self.inner.relay(call).await };
        let waited = call.remaining;
        // What is watched is unary.
        let answer = async { Ok::<_, Fault>(self.inner.relay(call).await?.read_unary().await) };
        let mut answer = pin!(answer);
        let answer = match waited {
            None => answer.await,
            Some(waited) => tokio::select! {
                biased;
                answer = &mut answer => answer,
                // Over a link the caller's leaving is not always heard of, but its time is known.
                () = sleep(waited) => {
                    watched.end(End::Left);
                    answer.await
                }
            },
        };
        match &answer {
            Err(fault) => watched.end(End::Answered { code: fault.code(), message: None }),
            Ok((message, Outcome { code, .. })) => {
                watched.end(End::Answered { code: *code, message: message.as_deref() });
            }
        }
        answer.map(|(message, outcome)| Replies::whole(message, outcome))
    }
}
