//! What goes into the core, and what comes out.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use csi_proto::DriverName;

use super::super::change::Change;
use super::super::desired::{DesiredVolume, Published, Reconciled};
use super::super::error::{
    AttachError, ExpandError, InspectError, PublishError, ReconcileError, UnpublishError,
};
use super::{Epoch, RequestId, Ticket};
use crate::driver::{CallError, CallOutcome, ConsumerSpec, DriverFacts, DriverPolicy, Operation, VolumeSpec};
use crate::mounts::{Inspection, MountTable};
use crate::name::{ConsumerId, VolumeKey};
use crate::store::{self, RecordKey, StoreError};

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Somebody asks for something. One [`Action::Answer`] follows, now or later.
    Ask {
        /// Names the question, for its answer.
        request: RequestId,
        /// The question.
        ask: Ask,
    },
    /// Nobody waits for these answers any more. What was asked for stays asked for.
    Abandoned(HashSet<RequestId>),
    /// A driver is registered, perhaps again. Nothing is called before it is [connected](Self::DriverConnected).
    ///
    /// Calls go by the newest policy. Whether an attach is made for a volume that has a machine stays as it was.
    DriverRegistered {
        /// Its name.
        driver: DriverName,
        /// What its CSIDriver object says.
        policy: DriverPolicy,
    },
    /// There is a live connection to a driver.
    DriverConnected {
        /// What it is and can do.
        facts: Box<DriverFacts>,
        /// Whether every process that served it before is certain to have ended, so that no call of it runs any more.
        predecessors_ended: bool,
    },
    /// There is no connection to a driver any more. It is registered still, with its policy. Its calls end by themselves.
    DriverDisconnected(DriverName),
    /// A driver is not registered any more. Its calls end by themselves.
    DriverGone(DriverName),
    /// A call ended that an [`Action::Call`] asked for.
    CallEnded {
        /// The call.
        ticket: Ticket,
        /// How.
        result: Result<CallOutcome, CallError>,
    },
    /// Nothing was sent, since what stands at a path forbids it.
    CallPrevented {
        /// The call.
        ticket: Ticket,
        /// What stands there.
        reason: String,
    },
    /// The mount table was read that an [`Action::Look`] asked for.
    Looked {
        /// The question.
        ticket: Ticket,
        /// What was seen.
        sight: Sight,
    },
    /// The commit ended that an [`Action::Commit`] asked for.
    Committed(Result<(), CommitFailure>),
    /// The reopening ended that an [`Action::Reopen`] asked for. An error says what the store said.
    Reopened(Result<(), String>),
    /// The mount table changed.
    MountsSeen {
        /// The table.
        table: Arc<MountTable>,
        /// [`Node::epoch`](super::Node::epoch) from before the table was read.
        since: Epoch,
    },
    /// The time has come that [`Node::next_deadline`](super::Node::next_deadline) gave.
    Tick,
}

/// Why nothing of a commit is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommitFailure {
    /// What the store said.
    pub reason: String,
    /// The record that was refused, if the store takes others still. They are committed without it.
    pub refused: Option<RecordKey>,
}

impl CommitFailure {
    /// What an error of the store means.
    #[must_use]
    pub fn of(error: &StoreError) -> Self {
        Self { reason: crate::excerpt::chain(error), refused: error.refused().cloned() }
    }
}

/// What can be asked for.
#[derive(Debug)]
#[non_exhaustive]
pub enum Ask {
    /// A consumer wants a volume.
    Publish {
        /// The volume.
        spec: Arc<VolumeSpec>,
        /// The consumer.
        consumer: Arc<ConsumerSpec>,
    },
    /// A consumer does not want a volume any more.
    Unpublish {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
    },
    /// A volume shall be at least so large.
    Expand {
        /// The volume.
        key: VolumeKey,
        /// In bytes.
        required_bytes: u64,
    },
    /// A volume was attached by others.
    Attached {
        /// The volume.
        key: VolumeKey,
        /// What its ControllerPublishVolume answered.
        publish_context: BTreeMap<String, String>,
    },
    /// A volume that others attach shall be detached by them: what is above is taken down.
    Detached {
        /// The volume.
        key: VolumeKey,
    },
    /// These volumes, and no others, are wanted.
    Reconcile(Vec<DesiredVolume>),
    /// How full a volume is.
    Stats(VolumeKey),
    /// What is wrong with a volume.
    Health(VolumeKey),
}

/// What is answered.
#[derive(Debug)]
#[non_exhaustive]
pub enum Answer {
    /// To [`Ask::Publish`].
    Published(Result<Published, PublishError>),
    /// To [`Ask::Unpublish`].
    Unpublished(Result<(), UnpublishError>),
    /// To [`Ask::Expand`]: the size, in bytes.
    Expanded(Result<u64, ExpandError>),
    /// To [`Ask::Attached`] and [`Ask::Detached`]: whether the volume is known. What was said is on disk then.
    Noted(Result<bool, AttachError>),
    /// To [`Ask::Reconcile`].
    Reconciled(Result<Reconciled, ReconcileError>),
    /// To [`Ask::Stats`] and [`Ask::Health`].
    Inspected(Result<CallOutcome, InspectError>),
}

/// What to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Make these changes durable, all or none; then send [`Event::Committed`]. One at a time.
    Commit(Vec<store::Change>),
    /// Open the store again; then send [`Event::Reopened`].
    Reopen,
    /// Make a call; then send [`Event::CallEnded`] or [`Event::CallPrevented`].
    Call(CallOrder),
    /// Look at a path and the mount table; then send [`Event::Looked`].
    Look(LookOrder),
    /// Remove these places, in this order, as far as they are empty and no mounts. Nothing is to be sent.
    Clear(Vec<PathBuf>),
    /// Hand over an answer.
    Answer {
        /// The question.
        request: RequestId,
        /// The answer.
        answer: Answer,
    },
    /// Read the mount table again; then send [`Event::MountsSeen`]. If it cannot be read, try again after a while.
    ReadTable,
    /// Tell those who watch.
    Tell(Change),
}

/// A call to make.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallOrder {
    /// Names the call, for its end.
    pub ticket: Ticket,
    /// The volume.
    pub spec: Arc<VolumeSpec>,
    /// The call. Directories that the spec wants from the caller are to be made before: that of a stage call, and the
    /// parent of a publish call's target.
    pub operation: Operation,
    /// What its driver's CSIDriver object says.
    pub policy: Arc<DriverPolicy>,
    /// Whether nothing of the volume can be at the target of a publish call yet. Then whatever is mounted or kept there is
    /// not the volume's, and the call is to be prevented.
    pub fresh: bool,
}

/// Something to look at.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LookOrder {
    /// Names the question, for its answer.
    pub ticket: Ticket,
    /// The path.
    pub path: PathBuf,
    /// Whether to look at the path itself besides the mount table, which may cost a process.
    pub inspect: Inspect,
    /// Empty places to remove if no mount is at the path, in this order, before the path is looked at. What is not
    /// empty stays.
    pub remove: Vec<PathBuf>,
}

/// When to look at a path itself.
#[allow(clippy::exhaustive_enums, reason = "never, always, or where the table says too little")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inspect {
    /// The table is enough.
    Never,
    /// If the table has no mount at the path.
    Unmounted,
    /// Whatever the table has.
    Always,
}

/// What was seen.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Sight {
    /// The mount table, or why it could not be read.
    pub table: Result<Arc<MountTable>, String>,
    /// What is at the path, if that was asked for, or why it could not be seen.
    pub inspection: Option<Result<Inspection, String>>,
}

impl Sight {
    /// A sight of the table alone, to begin from.
    #[must_use]
    pub fn new(
        table: Result<Arc<MountTable>, String>,
        inspection: Option<Result<Inspection, String>>,
    ) -> Self {
        Self { table, inspection }
    }
}
