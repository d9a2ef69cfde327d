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
///
/// The contract of an implementation:
///
/// - **Threads:** connections to several drivers are opened at once, one at a time for each driver; no call blocks its thread.
/// - **Bounds:** a call must end by itself: no timeout is applied. After an error it is repeated, after 0.1 s at first and
///   10 s at most.
/// - **Order:** the previous connection of a driver was closed, or is dropped with its registration.
/// - **Cancellation:** the future is dropped when the driver is deregistered or registered again, and with the volumes.
///   Nothing of the connection may then stay open.
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
///
/// The contract of an implementation:
///
/// - **Threads:** calls are made at once, up to the setting of calls for each driver; none blocks its thread.
/// - **Bounds:** each call ends within a bound that the implementation documents, such as 2 min.
/// - **Order:** none between calls: at most one is in flight for each volume.
/// - **Cancellation:** a call whose future is dropped may still be running in the driver; it is repeated after a restart.
///   [`closed`](Self::closed) is cancel safe.
/// - **Honesty:** an error says whether the call [was sent](CallError::was_sent). The state of a volume depends on it: when in
///   doubt, it was.
#[async_trait]
pub trait Connection: Send + Sync {
    /// Returns the driver's identity and capabilities.
    fn facts(&self) -> &DriverFacts;

    /// Returns whether every earlier process of the driver is known to have exited, so that no call of an earlier connection is
    /// still running. When in doubt: `false`.
    fn earlier_processes_ended(&self) -> bool;

    /// Waits until the connection is closed. The volumes then connect again.
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
