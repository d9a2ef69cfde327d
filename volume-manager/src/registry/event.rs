//! What the registry tells the one who uses it.

use std::fmt;

use csi_proto::DriverName;

use super::plugin::{DriverEndpoint, PluginVersion};

/// A driver came or went.
///
/// For one name the two kinds alternate, beginning with `Registered`.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverEvent {
    /// A registrar announced a driver and nothing speaks against it.
    Registered {
        /// The driver's name; no other registered driver has it.
        name: DriverName,
        /// Where the driver serves CSI. Nobody has dialled it yet.
        endpoint: DriverEndpoint,
        /// The versions of CSI that the driver claims and that are supported here, highest first; at least one.
        versions: Vec<PluginVersion>,
    },
    /// A driver that was registered is so no more.
    Deregistered {
        /// The driver's name; it is free again.
        name: DriverName,
        /// What ended the registration.
        reason: DeregistrationReason,
    },
}

/// What ended a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum DeregistrationReason {
    /// The registration socket is gone from the directory.
    SocketRemoved,
    /// Another socket stands at the same path: the registrar began anew. If it answers, `Registered` follows.
    SocketReplaced,
}

impl fmt::Display for DeregistrationReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SocketRemoved => "the registration socket was removed",
            Self::SocketReplaced => "the registration socket was replaced by a new one",
        })
    }
}
