//! The drivers of a node: their places for open calls, and their operations.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::driver::Driver;
use super::operation::{Counts, DriverExecutor, share};
use crate::call::{Call, Fault};

/// The drivers that are or were registered, each apart: the operations of one take no place of another.
#[derive(Debug, Default)]
pub(super) struct Drivers(RwLock<BTreeMap<DriverName, Entry>>);

#[derive(Debug)]
struct Entry {
    /// `None` once the driver was removed.
    registered: Option<Registered>,
    /// Outlives the registration, since it remembers the begun call numbers.
    executor: Arc<DriverExecutor>,
}

#[derive(Debug)]
struct Registered {
    driver: Driver,
    max_in_flight: usize,
    slots: Arc<Semaphore>,
    /// A remote call takes a place here too, so that the other places are left for the calls of the node.
    remote_slots: Arc<Semaphore>,
}

/// The places of an open call.
pub(super) type Slots = (Option<OwnedSemaphorePermit>, OwnedSemaphorePermit);

impl Drivers {
    /// Adds a driver, or replaces the driver of the same name. `wait` is the queue timeout of a new one.
    pub(super) fn register(&self, driver: Driver, max_in_flight: usize, wait: Duration) {
        let slots = |remote| Arc::new(Semaphore::new(share(max_in_flight, remote)));
        let (name, slots, remote_slots) = (driver.name().clone(), slots(false), slots(true));
        let mut drivers = self.write();
        let new = || Entry { registered: None, executor: Arc::new(DriverExecutor::new(wait)) };
        let entry = drivers.entry(name).or_insert_with(new);
        entry.registered = Some(Registered { driver, max_in_flight, slots, remote_slots });
    }

    /// Removes a driver and returns whether it was registered.
    pub(super) fn unregister(&self, name: &DriverName) -> bool {
        self.write().get_mut(name).is_some_and(|entry| entry.registered.take().is_some())
    }

    /// Sets the queue timeout of all drivers, which forgets their operations.
    pub(super) fn set_wait(&self, wait: Duration) {
        self.write().values_mut().for_each(|entry| entry.executor = Arc::new(DriverExecutor::new(wait)));
    }

    /// The names of the registered drivers, sorted.
    pub(super) fn names(&self) -> Vec<DriverName> {
        let drivers = self.read();
        let registered = drivers.iter().filter(|(_, entry)| entry.registered.is_some());
        registered.map(|(name, _)| name.clone()).collect()
    }

    /// The operations of a driver that is or was registered.
    pub(super) fn executor(&self, driver: &DriverName) -> Result<Arc<DriverExecutor>, Fault> {
        let drivers = self.read();
        let entry = drivers.get(driver).ok_or_else(|| not_registered(driver))?;
        Ok(Arc::clone(&entry.executor))
    }

    /// Takes the places of a call.
    pub(super) fn admit(&self, call: &Call) -> Result<(Driver, Slots), Fault> {
        let (name, remote, drivers) = (&call.driver, call.remote, self.read());
        let registered = drivers.get(name).and_then(|entry| entry.registered.as_ref());
        let Registered { driver, max_in_flight, slots, remote_slots } =
            registered.ok_or_else(|| not_registered(name))?;
        let slot = |slots: &Arc<Semaphore>| {
            Arc::clone(slots).try_acquire_owned().map_err(|_| Fault::Overloaded {
                what: format!("the call table of driver {name}"),
                max: share(*max_in_flight, remote) as u64,
            })
        };
        let slots = (remote.then(|| slot(remote_slots)).transpose()?, slot(slots)?);
        Ok((driver.clone(), slots))
    }

    /// Fails unless a driver is registered.
    pub(super) fn check_registered(&self, driver: &DriverName) -> Result<(), Fault> {
        let drivers = self.read();
        let is_registered = drivers.get(driver).is_some_and(|entry| entry.registered.is_some());
        is_registered.then_some(()).ok_or_else(|| not_registered(driver))
    }

    /// Rejects all queued calls; nothing begins any more.
    pub(super) fn reject_queued(&self, fault: &Fault) {
        let executors: Vec<_> = self.read().values().map(|entry| Arc::clone(&entry.executor)).collect();
        for executor in executors {
            executor.reject_queued(fault.clone());
        }
    }

    /// The counts of all drivers together.
    pub(super) fn counts(&self) -> Counts {
        let drivers = self.read();
        drivers.values().map(|entry| entry.executor.counts()).fold(Counts::default(), |sum, one| Counts {
            running: sum.running + one.running,
            waiters: sum.waiters + one.waiters,
            waiting: sum.waiting + one.waiting,
            kept: sum.kept + one.kept,
            bytes: sum.bytes + one.bytes,
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<DriverName, Entry>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<DriverName, Entry>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn not_registered(driver: &DriverName) -> Fault {
    Fault::DriverNotRegistered { driver: driver.clone() }
}

#[cfg(test)]
mod tests {
    use csi_proto::Method;
    use csi_proto::csi::v1 as csi;
    use prost::Message as _;

    use super::super::operation::{Answer, Decision, Identity, RunningOperation, Served, Waiting};
    use super::*;
    use crate::call::{CallId, MethodPath, NodeId, Outcome, Term};

    fn drivers() -> Drivers {
        let drivers = Drivers::default();
        for name in ["a", "b"] {
            let driver = Driver::new(name.parse().unwrap(), "/csi.sock".parse().unwrap());
            drivers.register(driver, 1024, Duration::from_secs(2));
        }
        drivers
    }

    /// A call that expands a volume. Calls with another number are other operations.
    fn expand(driver: &str, volume: &str, number: u8) -> Call {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: number.into(), limit_bytes: 0 }),
            ..Default::default()
        };
        let (node, driver) = (NodeId::new("edge-1").unwrap(), DriverName::new(driver).unwrap());
        let method = MethodPath::new(Method::ControllerExpandVolume.path()).unwrap();
        let mut id = [number; 16];
        id[..volume.len()].copy_from_slice(volume.as_bytes());
        Call::new(CallId::from_bytes(id), node, driver, method, request.encode_to_vec().into())
    }

    fn submit(drivers: &Drivers, call: &Call) -> Waiting {
        let identity = Identity::of(&call.driver, Method::ControllerExpandVolume, &call.body);
        let identity = identity.unwrap().unwrap();
        drivers.executor(&call.driver).unwrap().submit(call, identity, None)
    }

    fn begin(drivers: &Drivers, call: &Call) -> RunningOperation {
        match submit(drivers, call).try_decision() {
            Some(Decision::Run(operation)) => operation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_of_one_driver_do_not_evict_those_of_another() {
        let drivers = drivers();
        let answer = || Answer::new(Some(vec![0; 1 << 20].into()), Outcome::ok()).unwrap();
        let kept = expand("b", "v", 1);
        begin(&drivers, &kept).answered(answer());
        for volume in ["1", "2", "3", "4", "5"] {
            begin(&drivers, &expand("a", volume, 1)).answered(answer());
        }
        assert_eq!(drivers.counts().kept, 1 + 3, "4 MiB for each driver, with the rest of each result");
        let decision = submit(&drivers, &kept).try_decision();
        assert!(matches!(decision, Some(Decision::Answer(_, Served::Replayed))), "{decision:?}");
    }

    #[test]
    fn fences_of_drivers_are_independent() {
        let drivers = drivers();
        let [a, b] = ["a", "b"].map(|name| drivers.executor(&name.parse().unwrap()).unwrap());
        a.record_term(Term::MAX);
        b.record_term(Term::FIRST);
        assert_eq!((a.term(), b.term()), (Some(Term::MAX), Some(Term::FIRST)));
        a.forget_term();
        assert_eq!((a.term(), b.term()), (None, Some(Term::FIRST)));
    }

    #[test]
    fn queue_of_one_driver_leaves_room_for_another() {
        let drivers = drivers();
        let mut open = Vec::new();
        let mut queue = |driver: &str, volume: &str, number| {
            open.push(submit(&drivers, &expand(driver, volume, number)));
            open.last().is_some_and(Waiting::is_queued)
        };
        let queued = (0..40u32).flat_map(|volume| (0..9).map(move |number| (volume.to_string(), number)));
        let queued = queued.filter(|(volume, number)| queue("a", volume, *number)).count();
        assert_eq!(queued, 256, "the queue of this driver is full");
        assert!(!queue("b", "v", 0) && queue("b", "v", 1));
    }
}
