//! Limits the memory of large answers to calls of other hosts.

use std::sync::Arc;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proto::grpc::Response;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::fault_of;
use crate::call::Fault;

/// An answer up to this size, in bytes, is always read: those to all call slots of other hosts take 16 MiB.
const SMALL: usize = 16 * 1024;

/// The bytes of larger answers of a driver that are being read, or that no caller has received yet. One answer may exceed it.
const MAX: u32 = 8 * 1024 * 1024;

/// The share of a driver. One caller asks for many lists at once, over many links; together they must not take the memory of
/// the node, where kubelet's calls pass too.
#[derive(Debug, Clone)]
pub(super) struct LargeAnswers(Arc<Semaphore>);

/// A message that counts until its last clone is dropped.
struct Counted {
    message: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.message
    }
}

impl LargeAnswers {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(MAX as usize)))
    }
}

/// The limit for one call.
#[derive(Debug)]
pub(super) struct Limit {
    pub(super) answers: LargeAnswers,
    pub(super) is_read_only: bool,
}

impl Limit {
    /// Counts the next message of a response, before it is read. `None` for a small one.
    ///
    /// # Errors
    /// If the response fails, or others take the memory. The call must then end: a message that is left unread would fill the
    /// window of the connection.
    pub(super) async fn count(
        &self,
        driver: &DriverName,
        response: &mut Response,
    ) -> Result<Option<LargeAnswer>, Fault> {
        let bytes = response.announced().await.map_err(|error| fault_of(driver, error))?;
        if bytes <= SMALL {
            return Ok(None);
        }
        let permits = u32::try_from(bytes).unwrap_or(MAX).min(MAX);
        let what = format!("memory for large answers of driver {driver} to other hosts, in bytes,");
        let full = |_| match self.is_read_only {
            true => Fault::Overloaded { what, max: MAX.into() },
            // It may have changed something.
            false => {
                Fault::DriverLost { driver: driver.clone(), reason: format!("{what} is full (limit {MAX})") }
            }
        };
        let permit = Arc::clone(&self.answers.0).try_acquire_many_owned(permits).map_err(full)?;
        Ok(Some(LargeAnswer(permit)))
    }
}

/// Memory for a large answer.
pub(super) struct LargeAnswer(OwnedSemaphorePermit);

/// Returns the message, and keeps its memory, if it was counted, for as long.
pub(super) fn keep_for(message: Bytes, counted: Option<LargeAnswer>) -> Bytes {
    match counted {
        Some(LargeAnswer(permit)) => Bytes::from_owner(Counted { message, _permit: permit }),
        None => message,
    }
}
