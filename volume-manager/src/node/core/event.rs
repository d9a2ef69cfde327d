//! The events and actions of the core.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use csi_proto::DriverName;

use super::super::change::VolumeChange;
use super::super::desired::{DesiredVolume, Published, Reconciled};
use super::super::error::{
    AttachError, ExpandError, InspectError, PublishError, ReconcileError, UnpublishError,
};
use super::reply::{Answer, Reply};
use super::{Epoch, Slot};
use crate::driver::{CallError, CallOutcome, ConsumerSpec, DriverFacts, DriverPolicy, Operation, VolumeSpec};
use crate::mounts::{self, Inspection, MountTable, TableError};
use crate::name::{ConsumerId, VolumeKey};
use crate::store::{self, RecordKey, StoreError};

/// An event for the core.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// A request. One [`Action::Answer`] follows, now or later.
    Request(Request),
    /// A driver is registered, possibly again. No call is made before it is [connected](Self::DriverConnected).
    ///
    /// Calls use the new policy. The attach mode of volumes with a state machine does not change.
    DriverRegistered {
        /// The name of the driver.
        driver: DriverName,
        /// The policy from its CSIDriver object.
        policy: DriverPolicy,
    },
    /// A driver is connected.
    DriverConnected {
        /// The driver's identity and capabilities.
        facts: Box<DriverFacts>,
        /// True if every earlier process of the driver is known to have exited, so that none of their calls is running.
        earlier_processes_ended: bool,
    },
    /// An attempt to connect to a driver failed. The next one follows without an event.
    DriverUnreachable {
        /// The name of the driver.
        driver: DriverName,
        /// The text of the error.
        error: String,
    },
    /// The connection to a driver was lost. The driver stays registered, with its policy. Each of its running
    /// calls still ends with [`Event::CallEnded`].
    DriverDisconnected(DriverName),
    /// A driver was deregistered. Each of its running calls still ends with [`Event::CallEnded`].
    DriverDeregistered(DriverName),
    /// The call of an [`Action::Call`] ended.
    CallEnded {
        /// The volume.
        slot: Slot,
        /// The result of the call.
        result: Result<CallOutcome, CallError>,
        /// The observation after a result that may be a success, if [`CallOrder::verify`] is set.
        observed: Option<CheckResult>,
    },
    /// The check of an [`Action::Check`] ended.
    Checked {
        /// The volume.
        slot: Slot,
        /// The result of the check.
        observed: CheckResult,
    },
    /// The commit of an [`Action::Commit`] ended.
    Committed(Result<(), CommitFailure>),
    /// The reopening of an [`Action::Reopen`] ended. An error is the text of the store's error.
    Reopened(Result<(), String>),
    /// The mount table was read again.
    MountsSeen {
        /// The table.
        table: Arc<MountTable>,
        /// [`Node::epoch`](super::Node::epoch) from before the table was read.
        since: Epoch,
    },
    /// The time of [`Node::next_deadline`](super::Node::next_deadline) is reached.
    Tick,
}

/// A failed commit: none of its changes is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitFailure {
    /// The text of the store's error.
    pub reason: String,
    /// The rejected record, if the store still accepts others. The others are committed without it.
    pub refused: Option<RecordKey>,
}

impl CommitFailure {
    /// Classifies an error of the store.
    #[must_use]
    pub fn of(error: &StoreError) -> Self {
        Self { reason: crate::excerpt::chain(error), refused: error.rejected_record().cloned() }
    }
}

/// A request to the node. An accepted request stays in effect if its answer is abandoned.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// Publishes a volume for a consumer.
    Publish {
        /// The volume.
        spec: Arc<VolumeSpec>,
        /// The consumer.
        consumer: Arc<ConsumerSpec>,
        /// Answered when the volume is published and the mount table agrees.
        reply: Reply<Result<Published, PublishError>>,
    },
    /// Unpublishes a volume for a consumer.
    Unpublish {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
        /// Answered when nothing of the volume is at the target.
        reply: Reply<Result<(), UnpublishError>>,
    },
    /// Expands a volume to at least this size.
    Expand {
        /// The volume.
        key: VolumeKey,
        /// The size in bytes.
        required_bytes: u64,
        /// Answered with the new size in bytes.
        reply: Reply<Result<u64, ExpandError>>,
    },
    /// A volume was attached externally, or will be detached externally, which unstages it first.
    Attach {
        /// The volume.
        key: VolumeKey,
        /// The publish context from ControllerPublishVolume; `None` to detach.
        publish_context: Option<BTreeMap<String, String>>,
        /// Answered with whether the volume is known, when the request is on disk.
        reply: Reply<Result<bool, AttachError>>,
    },
    /// Replaces the desired set of volumes.
    Reconcile {
        /// All desired volumes.
        desired: Vec<DesiredVolume>,
        /// Answered with the changes, when they are on disk.
        reply: Reply<Result<Reconciled, ReconcileError>>,
    },
    /// A read-only query to the driver.
    Inspect {
        /// The volume.
        key: VolumeKey,
        /// The query.
        query: Query,
        /// Answered with the driver's response.
        reply: Reply<Result<CallOutcome, InspectError>>,
    },
}

/// A read-only query to the driver.
#[allow(clippy::exhaustive_enums, reason = "the two read-only calls of the spec")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// The usage of a volume.
    Stats,
    /// The health issues of a volume.
    Health,
}

/// An action that the caller of the core performs.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Make these changes durable, all or none, then send [`Event::Committed`]. At most one commit is in progress.
    Commit(Vec<store::Change>),
    /// Reopen the store, then send [`Event::Reopened`].
    Reopen,
    /// Make a call and verify it, then send [`Event::CallEnded`].
    Call(CallOrder),
    /// Check a path and the mount table, then send [`Event::Checked`].
    Check {
        /// The volume.
        slot: Slot,
        /// The check.
        check: PathCheck,
    },
    /// Remove these paths in order, if they are empty and not mounted. No event follows.
    RemoveEmpty(Vec<PathBuf>),
    /// [Deliver](Answer::deliver) an answer.
    Answer(Answer),
    /// Read the mount table again, then send [`Event::MountsSeen`]. If it cannot be read, retry later.
    ReadTable,
    /// Notify the watchers.
    Notify(VolumeChange),
}

/// A call to make.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallOrder {
    /// The volume's id, for [`Event::CallEnded`].
    pub slot: Slot,
    /// The volume.
    pub spec: Arc<VolumeSpec>,
    /// The call. The caller creates the directories that the spec requires: the staging directory of a stage call, and
    /// the parent directory of a publish call's target.
    pub operation: Operation,
    /// True if nothing of the volume can be at the target of a publish call yet. Anything found there is foreign, and
    /// the call must not be sent.
    pub first_publish: bool,
    /// The check after OK, and after NOT_FOUND, which may count as OK.
    pub verify: Option<PathCheck>,
}

/// A check of a path.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct PathCheck {
    /// The path.
    pub path: PathBuf,
    /// When to inspect the path besides the mount table; an inspection may start a process.
    pub inspect: Inspect,
    /// Empty directories to remove, in order, before the path is inspected, if it is not mounted. Non-empty directories
    /// stay.
    pub remove: Vec<PathBuf>,
}

/// When to inspect a path.
#[allow(clippy::exhaustive_enums, reason = "never, always, or where the table is not enough")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspect {
    /// Only read the mount table.
    Never,
    /// Inspect the path if the mount table has no mount there.
    Unmounted,
    /// Always inspect the path.
    Always,
}

/// The mount table and, if requested, the inspection of a path.
#[derive(Debug, Clone)]
#[allow(clippy::exhaustive_structs, reason = "the mount table and the path")]
pub struct Observation {
    /// The mount table.
    pub table: Arc<MountTable>,
    /// The inspection of the path, if requested.
    pub inspection: Option<Inspection>,
}

/// The result of a [`PathCheck`].
pub type CheckResult = Result<Observation, CheckError>;

/// The reason why a path could not be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The mount table could not be read.
    #[error(transparent)]
    Table(#[from] TableError),
    /// The path could not be inspected.
    #[error(transparent)]
    Path(#[from] mounts::ProbeError),
}
