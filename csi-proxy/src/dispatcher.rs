//! The edge end of a relay: calls arrive and the driver that they name answers them.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use async_trait::async_trait;
use csi_proto::DriverName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio::time::timeout;

use crate::address::SocketAddress;
use crate::call::Call;
use crate::driver::Driver;
use crate::endpoint::Drained;
use crate::fault::Fault;
use crate::observe::Observation;
use crate::relay::{Relay, RelayError};
use crate::replies::{Replies, Reply};

/// Most calls that one driver is given at once, unless set otherwise.
pub const DEFAULT_MAX_IN_FLIGHT: usize = 1024;

/// Parts of a streamed answer that wait for the caller before the driver is held up.
const WAITING_PARTS: usize = 4;

/// The drivers of a node. Cheap to clone; all clones see the same drivers, which may come and go while calls run.
///
/// A call that has been given to a driver runs to its end in a task of its own, whether or not anybody still waits for it.
#[derive(Debug, Clone)]
pub struct Dispatcher {
    drivers: Arc<RwLock<BTreeMap<DriverName, Entry>>>,
    max_in_flight: usize,
    open: Arc<watch::Sender<Open>>,
}

/// What is open, over all drivers, also those that have been taken away.
#[derive(Debug, Default)]
struct Open {
    calls: usize,
    draining: bool,
}

/// A call's place, until the call has ended.
struct Place {
    open: Arc<watch::Sender<Open>>,
    _slot: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.open.send_modify(|open| open.calls -= 1);
    }
}

#[derive(Debug, Clone)]
struct Entry {
    driver: Driver,
    slots: Arc<Semaphore>,
}

impl Dispatcher {
    /// No drivers yet.
    #[must_use]
    pub fn new() -> Self {
        Self {
            drivers: Arc::default(),
            max_in_flight: DEFAULT_MAX_IN_FLIGHT,
            open: Arc::new(watch::Sender::default()),
        }
    }

    /// Gives a driver at most this many calls at once; one more fails with [`Fault::Overloaded`]. Holds for drivers that are
    /// registered after it.
    #[must_use]
    pub fn with_max_in_flight(mut self, calls: usize) -> Self {
        self.max_in_flight = calls.clamp(1, Semaphore::MAX_PERMITS);
        self
    }

    /// The same dispatcher with a driver of that name at that socket.
    #[must_use]
    pub fn with_driver(self, name: DriverName, address: SocketAddress) -> Self {
        self.register(Driver::new(name, address));
        self
    }

    /// Adds a driver, or puts it in the place of the one of its name. Calls that run go on where they are.
    pub fn register(&self, driver: Driver) {
        let entry = Entry { slots: Arc::new(Semaphore::new(self.max_in_flight)), driver };
        tracing::info!(driver = %entry.driver.name(), address = %entry.driver.address(), "driver registered");
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        drivers.insert(entry.driver.name().clone(), entry);
    }

    /// Takes a driver away and says whether it was there. Calls that run go on to their end.
    pub fn unregister(&self, name: &DriverName) -> bool {
        let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
        drivers.remove(name).is_some()
    }

    /// The names of the drivers, sorted.
    #[must_use]
    pub fn drivers(&self) -> Vec<DriverName> {
        self.drivers.read().unwrap_or_else(PoisonError::into_inner).keys().cloned().collect()
    }

    /// Takes no more calls, which fail with [`Fault::Draining`], and waits up to `bound` for those that are open.
    pub async fn drain(&self, bound: Duration) -> Drained {
        self.open.send_modify(|open| open.draining = true);
        let mut open = self.open.subscribe();
        match timeout(bound, open.wait_for(|open| open.calls == 0)).await {
            Ok(_) => Drained::All,
            Err(_) => Drained::Some,
        }
    }

    fn admit(&self, name: &DriverName) -> Result<(Driver, Place), Fault> {
        let drivers = self.drivers.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Entry { driver, slots }) = drivers.get(name) else {
            return Err(Fault::DriverNotRegistered { driver: name.clone() });
        };
        let slot = Arc::clone(slots).try_acquire_owned().map_err(|_| Fault::Overloaded {
            what: format!("the call table of driver {name}"),
            max: self.max_in_flight as u64,
        })?;
        let admitted = self.open.send_if_modified(|open| {
            open.calls += usize::from(!open.draining);
            !open.draining
        });
        if !admitted {
            return Err(Fault::Draining { what: "the dispatcher".to_owned() });
        }
        Ok((driver.clone(), Place { open: Arc::clone(&self.open), _slot: slot }))
    }
}

impl Default for Dispatcher {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Relay for Dispatcher {
    async fn relay(&self, call: Call) -> Result<Replies, RelayError> {
        let (driver, place) = self.admit(&call.driver)?;
        let (answered, answer) = oneshot::channel();
        tokio::spawn(see_through(driver, call, answered, place));
        match answer.await {
            Ok(answer) => answer,
            Err(_) => Err(Fault::ServiceLost { what: "the dispatcher's task".to_owned() }.into()),
        }
    }
}

/// Makes the call and stays with it to its end.
async fn see_through(
    driver: Driver,
    call: Call,
    answered: oneshot::Sender<Result<Replies, RelayError>>,
    _place: Place,
) {
    let observation = Observation::start("dispatcher", &call);
    let mut parts = match observation.answered(driver.relay(call).await).map(Replies::into_whole) {
        Err(error) => return drop(answered.send(Err(error))),
        Ok(Ok((message, outcome))) => return drop(answered.send(Ok(Replies::whole(message, outcome)))),
        Ok(Err(parts)) => parts,
    };
    let (sender, replies) = Replies::channel(WAITING_PARTS);
    let mut sender = answered.send(Ok(replies)).is_ok().then_some(sender);
    while let Some(part) = parts.next().await {
        match part {
            Reply::Message(message) => {
                let left = match &mut sender {
                    Some(sender) => sender.message(message).await.is_err(),
                    None => false,
                };
                if left {
                    sender = None;
                }
            }
            Reply::End(outcome) => {
                if let Some(sender) = sender.take() {
                    let _ = sender.end(outcome).await;
                }
            }
        }
    }
}
