//! What goes into a [`Monitor`](super::Monitor), and within which bounds.

use csi_proto::Method;

use csi_proto::Code;

/// Bounds of a [`Monitor`](super::Monitor).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Most volumes that are watched; default 4096. The one that was called for least lately is forgotten first.
    pub volumes: usize,
    /// About the most bytes of memory for what is known of them; default 8 MiB.
    pub bytes: usize,
    /// Most calls that are watched at once; default 4096. More are not.
    pub open: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { volumes: 4096, bytes: 8 << 20, open: 4096 }
    }
}

/// What is known of the time before the first call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Before {
    /// Nothing: volumes may be staged and published already.
    #[default]
    Unknown,
    /// There was none: whatever was not seen has not been done. True after a boot, if every call since is seen.
    Nothing,
}

/// Names one call. Chosen by whoever drives the monitor; never used again for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallNumber(u64);

impl CallNumber {
    /// Takes a number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }
}

/// What has happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The orchestrator makes a call.
    Began {
        /// The call.
        call: CallNumber,
        /// Its method.
        method: Method,
        /// Its request.
        body: &'a [u8],
    },
    /// The call is over for the orchestrator. Every call that began ends so, once.
    Ended {
        /// The call.
        call: CallNumber,
        /// How.
        end: End<'a>,
    },
}

/// How a call is over for its orchestrator.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum End<'a> {
    /// It was answered.
    Answered {
        /// With this status.
        code: Code,
        /// And this message. Looked at for what a driver offers, what it calls its node, and which volume it has made.
        message: Option<&'a [u8]>,
    },
    /// The caller did not wait for the answer.
    Left,
}

/// How much is watched, and what was found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Volumes of which something is known, or that a call is under way for.
    pub volumes: usize,
    /// Calls under way.
    pub open: usize,
    /// Volumes that were forgotten, and calls that were not watched, for lack of room.
    pub dropped: u64,
    /// Violations.
    pub violations: u64,
}
