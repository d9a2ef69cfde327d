//! Events and limits of a [`Monitor`](super::core::Monitor).

use csi_proto::Method;

use csi_proto::Code;

/// Limits of a [`Monitor`](super::core::Monitor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// The maximum number of monitored volumes; default 4096. The least recently used one is evicted first.
    pub volumes: usize,
    /// The approximate memory limit in bytes; default 8 MiB.
    pub bytes: usize,
    /// The maximum number of open monitored calls; default 4096. Further calls are not monitored.
    pub open: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { volumes: 4096, bytes: 8 << 20, open: 4096 }
    }
}

/// The state before the first observed call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum InitialState {
    /// Unknown: volumes may be staged and published already.
    #[default]
    Unknown,
    /// No call was made before. True after a boot, if every call since then is observed.
    Empty,
}

/// Identifies one call. Assigned by the caller of the monitor; never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(u64);

impl CallNumber {
    /// Converts a number to the id of a call.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// An input of the monitor.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The orchestrator sends a call.
    Began {
        /// The call.
        call: CallNumber,
        /// The method of the call.
        method: Method,
        /// The encoded request.
        body: &'a [u8],
    },
    /// The call has ended for the orchestrator. Every begun call ends once.
    Ended {
        /// The call.
        call: CallNumber,
        /// The result.
        end: End<'a>,
    },
}

/// How a call ended for its orchestrator.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum End<'a> {
    /// The call was answered.
    Answered {
        /// The status code.
        code: Code,
        /// The response message. Read for the capabilities of the driver, its node id, the created volume, and whether an
        /// expansion needs the node.
        message: Option<&'a [u8]>,
    },
    /// The caller cancelled the call.
    Left,
}

/// The counts of a monitor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Volumes with known state or open calls.
    pub volumes: usize,
    /// Open calls.
    pub open: usize,
    /// Evicted volumes and unmonitored calls.
    pub dropped: u64,
    /// Violations.
    pub violations: u64,
}
