//! The seam to the drivers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::driver::{
    CallError, CallOutcome, Driver, DriverFacts, DriverPolicy, Generation, Operation, Secrets, VolumeSpec,
};
use crate::excerpt::chain;
use crate::registry::DriverEndpoint;

/// Makes drivers of what is registered.
pub trait Drivers: Send + Sync {
    /// A driver that is to be connected to. Nothing is dialled yet.
    ///
    /// # Errors
    /// If it can never be connected to, in words.
    fn driver(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Dial>, String>;
}

/// A driver that can be connected to.
#[async_trait]
pub trait Dial: Send + Sync {
    /// Connects, and asks what the driver is and can do.
    ///
    /// # Errors
    /// If it cannot be reached now, in words. It is tried again.
    async fn connect(&self) -> Result<Arc<dyn Connection>, String>;
}

/// A live connection to a driver.
#[async_trait]
pub trait Connection: Send + Sync {
    /// What the driver is and can do.
    fn facts(&self) -> &DriverFacts;

    /// Whether every process that served the driver before is certain to have ended.
    fn predecessors_ended(&self) -> bool;

    /// Waits until the connection is gone.
    async fn closed(&self);

    /// Makes a call. It ends within a bound of the connection's own.
    ///
    /// # Errors
    /// If it is not known to be good.
    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError>;
}

/// Drivers behind sockets.
pub(super) struct SocketDrivers {
    secrets: Arc<dyn Secrets>,
    /// Each driver that was registered, as it was first announced. These never connect: they stand for what is known of the
    /// processes that served the driver, which has to outlive a registration.
    known: Mutex<BTreeMap<DriverName, Driver>>,
}

impl SocketDrivers {
    pub(super) fn new(secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets, known: Mutex::default() }
    }
}

impl Drivers for SocketDrivers {
    fn driver(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Dial>, String> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let driver = match known.get(name) {
            Some(first) => first.announced_anew(endpoint.clone(), policy.clone()),
            None => {
                let secrets = Arc::clone(&self.secrets);
                let first = Driver::new(name.clone(), endpoint.clone(), policy.clone(), secrets);
                let driver = first.announced_anew(endpoint.clone(), policy.clone());
                known.insert(name.clone(), first);
                driver
            }
        };
        Ok(Arc::new(driver))
    }
}

#[async_trait]
impl Dial for Driver {
    async fn connect(&self) -> Result<Arc<dyn Connection>, String> {
        match self.generation().await {
            Ok(generation) => Ok(generation),
            Err(error) => Err(chain(&error)),
        }
    }
}

#[async_trait]
impl Connection for Generation {
    fn facts(&self) -> &DriverFacts {
        self.facts()
    }

    fn predecessors_ended(&self) -> bool {
        self.earlier_processes_ended()
    }

    async fn closed(&self) {
        self.closed().await;
    }

    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        self.call(volume, operation).await
    }
}
