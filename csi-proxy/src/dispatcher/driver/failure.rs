//! What the failure of a call to a driver is to the caller.

use csi_proto::grpc::{CallError, ConnectError, MessageError};
use csi_proto::{Delivery, DriverName};

use crate::call::Fault;

/// The fault for a call that has no answer. The driver's own status is none of these.
pub(super) fn fault_of(driver: &DriverName, error: CallError) -> Fault {
    let driver = driver.clone();
    match error {
        CallError::Connect(ConnectError::Missing { path, .. }) => {
            Fault::DriverSocketMissing { driver, path: path.display().to_string() }
        }
        // The one proof that the driver does not have the request is the client's.
        error if error.delivery() == Delivery::NotSent => {
            Fault::DriverRefused { driver, reason: error.to_string() }
        }
        CallError::Lost(error) => Fault::DriverGone { driver, reason: error.to_string() },
        CallError::Message(MessageError::TooLarge { found, max }) => {
            Fault::ReplyTooLarge { found: found as u64, max: max as u64 }
        }
        error => Fault::DriverProtocol { driver, reason: error.to_string() },
    }
}
