//! Why a request cannot be built.

use csi_proto::DriverName;

use super::policy::PolicyConflict;
use crate::name::ConsumerId;

/// Why an operation cannot be asked of a driver at all.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// The volume is another driver's.
    #[error("the volume belongs to driver {expected}, and this is {found}; ask the other one")]
    Driver {
        /// The volume's driver.
        expected: DriverName,
        /// The driver that was asked.
        found: DriverName,
    },
    /// The driver does not have the call.
    #[error("the driver lacks {capability}; leave the call out")]
    Capability {
        /// The capability, as the spec names it.
        capability: &'static str,
    },
    /// A volume of an ephemeral kind has no such call.
    #[error("the volume is ephemeral, which is only ever published and unpublished")]
    Ephemeral,
    /// The driver does not take such a volume.
    #[error(transparent)]
    Policy(#[from] PolicyConflict),
    /// There is no id to attach to or detach from.
    #[error("the driver has no id of this node; it needs NodeGetInfo to attach volumes")]
    NoNodeId,
    /// The driver wants tokens of a pod, and there is no pod.
    #[error("the driver asks for service-account tokens, and {consumer} is no pod; give its PodInfo")]
    NoPod {
        /// Who it is for.
        consumer: ConsumerId,
    },
}
