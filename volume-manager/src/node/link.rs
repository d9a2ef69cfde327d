//! The seam to the drivers.

use std::sync::Arc;

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::driver::{
    CallError, CallOutcome, Driver, DriverFacts, DriverPolicy, Generation, Operation, Secrets, Settings,
    VolumeSpec,
};
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
    pub(super) settings: Settings,
    pub(super) secrets: Arc<dyn Secrets>,
}

impl Drivers for SocketDrivers {
    fn driver(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Dial>, String> {
        let (settings, secrets) = (self.settings.clone(), Arc::clone(&self.secrets));
        let driver = Driver::new(name.clone(), endpoint.clone(), policy.clone(), settings, secrets);
        driver.map(|driver| Arc::new(driver) as Arc<dyn Dial>).map_err(|error| error.to_string())
    }
}

#[async_trait]
impl Dial for Driver {
    async fn connect(&self) -> Result<Arc<dyn Connection>, String> {
        match self.generation().await {
            Ok(generation) => Ok(generation),
            Err(error) => Err(error.to_string()),
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
