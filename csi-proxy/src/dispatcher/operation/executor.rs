//! Executes the operations of all drivers, each driver apart.

use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use csi_proto::DriverName;

use super::Counts;
use super::HashMap;
use super::driver_executor::DriverExecutor;
use crate::call::{Fault, Term};

/// One executor for each driver that had a call, so that the operations of one driver take no place of another. An
/// executor outlives the registration of its driver, since it remembers the begun call numbers.
#[derive(Debug)]
pub(crate) struct Executor {
    wait: Duration,
    drivers: RwLock<HashMap<DriverName, Arc<DriverExecutor>>>,
}

impl Executor {
    /// Creates an executor without drivers; `wait` is the queue timeout.
    pub(crate) fn new(wait: Duration) -> Self {
        Self { wait, drivers: RwLock::default() }
    }

    /// The executor of a driver, if it had a call.
    pub(crate) fn get(&self, driver: &DriverName) -> Option<Arc<DriverExecutor>> {
        self.read().get(driver).cloned()
    }

    /// The executor of a driver, which is created if there is none: only for a registered driver, since it is never
    /// removed.
    pub(crate) fn get_or_create(&self, driver: &DriverName) -> Arc<DriverExecutor> {
        self.get(driver).unwrap_or_else(|| {
            let mut drivers = self.drivers.write().unwrap_or_else(PoisonError::into_inner);
            let new = || Arc::new(DriverExecutor::new(self.wait));
            Arc::clone(drivers.entry(driver.clone()).or_insert_with(new))
        })
    }

    pub(crate) fn term(&self, driver: &DriverName) -> Option<Term> {
        self.get(driver)?.term()
    }

    /// Records the term of a registered driver.
    pub(crate) fn record_term(&self, driver: &DriverName, term: Term) {
        self.get_or_create(driver).record_term(term);
    }

    pub(crate) fn forget_term(&self, driver: &DriverName) {
        if let Some(executor) = self.get(driver) {
            executor.forget_term();
        }
    }

    /// Rejects all queued calls; nothing begins any more.
    pub(crate) fn reject_queued(&self, fault: &Fault) {
        let drivers: Vec<_> = self.read().values().cloned().collect();
        for driver in drivers {
            driver.reject_queued(fault.clone());
        }
    }

    /// The counts of all drivers together.
    pub(crate) fn counts(&self) -> Counts {
        let drivers = self.read();
        drivers.values().map(|driver| driver.counts()).fold(Counts::default(), |sum, one| Counts {
            running: sum.running + one.running,
            waiters: sum.waiters + one.waiters,
            waiting: sum.waiting + one.waiting,
            kept: sum.kept + one.kept,
            bytes: sum.bytes + one.bytes,
        })
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<DriverName, Arc<DriverExecutor>>> {
        self.drivers.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use csi_proto::Method;
    use csi_proto::csi::v1 as csi;
    use prost::Message as _;

    use super::super::driver_executor::{Decision, RunningOperation, Waiting};
    use super::super::{Answer, Identity, Served};
    use super::*;
    use crate::call::{Call, CallId, MethodPath, NodeId, Outcome};

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

    fn submit(executor: &Executor, call: &Call) -> Waiting {
        let identity = Identity::of(&call.driver, Method::ControllerExpandVolume, &call.body);
        let identity = identity.unwrap().unwrap();
        executor.get_or_create(&call.driver).submit(call, identity, None)
    }

    fn begin(executor: &Executor, call: &Call) -> RunningOperation {
        match submit(executor, call).try_decision() {
            Some(Decision::Run(operation)) => operation,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn results_of_one_driver_do_not_evict_those_of_another() {
        let executor = Executor::new(Duration::from_secs(2));
        let answer = || Answer::new(Some(vec![0; 1 << 20].into()), Outcome::ok()).unwrap();
        let kept = expand("b", "v", 1);
        begin(&executor, &kept).answered(answer());
        for volume in ["1", "2", "3", "4", "5"] {
            begin(&executor, &expand("a", volume, 1)).answered(answer());
        }
        assert_eq!(executor.counts().kept, 1 + 3, "4 MiB for each driver, with the rest of each result");
        let decision = submit(&executor, &kept).try_decision();
        assert!(matches!(decision, Some(Decision::Answer(_, Served::Replayed))), "{decision:?}");
    }

    #[test]
    fn fences_of_drivers_are_independent() {
        let executor = Executor::new(Duration::from_secs(2));
        let [a, b] = ["a", "b"].map(|name| DriverName::new(name).unwrap());
        executor.record_term(&a, Term::MAX);
        executor.record_term(&b, Term::FIRST);
        assert_eq!((executor.term(&a), executor.term(&b)), (Some(Term::MAX), Some(Term::FIRST)));
        executor.forget_term(&a);
        assert_eq!((executor.term(&a), executor.term(&b)), (None, Some(Term::FIRST)));
    }

    #[test]
    fn queue_of_one_driver_leaves_room_for_another() {
        let executor = Executor::new(Duration::from_secs(2));
        let mut open = Vec::new();
        let mut queue = |driver: &str, volume: &str, number| {
            open.push(submit(&executor, &expand(driver, volume, number)));
            open.last().is_some_and(Waiting::is_queued)
        };
        let queued = (0..40u32).flat_map(|volume| (0..9).map(move |number| (volume.to_string(), number)));
        let queued = queued.filter(|(volume, number)| queue("a", volume, *number)).count();
        assert_eq!(queued, 256, "the queue of this driver is full");
        assert!(!queue("b", "v", 0) && queue("b", "v", 1));
    }
}
