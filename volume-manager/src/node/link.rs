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

/// Connects to what is registered.
#[async_trait]
pub trait Drivers: Send + Sync {
    /// Connects to a driver, and asks what it is and can do.
    ///
    /// # Errors
    /// If it cannot be reached now, in words. It is tried again.
    async fn connect(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, String>;
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
    /// Each driver that was registered, since what is known of the processes that served it has to outlive a registration.
    known: Mutex<BTreeMap<DriverName, Arc<Driver>>>,
}

impl SocketDrivers {
    pub(super) fn new(secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets, known: Mutex::default() }
    }

    fn driver(&self, name: &DriverName) -> Arc<Driver> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Driver::new(name.clone(), Arc::clone(&self.secrets)));
        Arc::clone(known.entry(name.clone()).or_insert_with(new))
    }
}

#[async_trait]
impl Drivers for SocketDrivers {
    async fn connect(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, String> {
        match self.driver(name).connect(endpoint, policy).await {
            Ok(generation) => Ok(Arc::new(generation)),
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
