//! The interface to drivers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use csi_proto::DriverName;

use crate::driver::{
    CallError, CallOutcome, ConnectError, Driver, DriverConnection, DriverFacts, DriverPolicy, Operation,
    Secrets, VolumeSpec,
};
use crate::registry::DriverEndpoint;

/// Connects to registered drivers.
#[async_trait]
pub trait DriverConnector: Send + Sync {
    /// Connects to a driver and reads its identity and capabilities.
    ///
    /// # Errors
    /// If the driver cannot be used now. The caller retries.
    async fn connect(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError>;
}

/// A connection to a driver.
#[async_trait]
pub trait Connection: Send + Sync {
    /// Returns the driver's identity and capabilities.
    fn facts(&self) -> &DriverFacts;

    /// Returns whether every earlier process of the driver is known to have exited.
    fn earlier_processes_ended(&self) -> bool;

    /// Waits until the connection is closed.
    async fn closed(&self);

    /// Makes a call, which ends within the connection's timeout.
    ///
    /// # Errors
    /// If the call did not succeed, or its outcome is unknown.
    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError>;
}

/// Connects to drivers on Unix sockets.
pub(super) struct SocketConnector {
    secrets: Arc<dyn Secrets>,
    /// All drivers that were ever registered: the history of a driver's processes outlives its registration.
    drivers: Mutex<BTreeMap<DriverName, Arc<Driver>>>,
}

impl SocketConnector {
    pub(super) fn new(secrets: Arc<dyn Secrets>) -> Self {
        Self { secrets, drivers: Mutex::default() }
    }

    fn driver(&self, name: &DriverName) -> Arc<Driver> {
        let mut drivers = self.drivers.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Driver::new(name.clone(), Arc::clone(&self.secrets)));
        Arc::clone(drivers.entry(name.clone()).or_insert_with(new))
    }
}

#[async_trait]
impl DriverConnector for SocketConnector {
    async fn connect(
        &self,
        name: &DriverName,
        endpoint: &DriverEndpoint,
        policy: &DriverPolicy,
    ) -> Result<Arc<dyn Connection>, ConnectError> {
        Ok(Arc::new(self.driver(name).connect(endpoint, policy).await?))
    }
}

#[async_trait]
impl Connection for DriverConnection {
    fn facts(&self) -> &DriverFacts {
        self.facts()
    }

    fn earlier_processes_ended(&self) -> bool {
        self.earlier_processes_ended()
    }

    async fn closed(&self) {
        self.closed().await;
    }

    async fn call(&self, volume: &VolumeSpec, operation: &Operation) -> Result<CallOutcome, CallError> {
        self.call(volume, operation).await
    }
}
