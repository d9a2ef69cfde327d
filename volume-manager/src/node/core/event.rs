//! What goes into the core, and what comes out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use csi_proto::DriverName;

use super::super::change::Change;
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

/// What happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event {
    /// Something is asked for. One [`Action::Answer`] follows, now or later.
    Request(Request),
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
        /// The volume.
        slot: Slot,
        /// How.
        result: Result<CallOutcome, CallError>,
        /// What was seen of it after a result that may be good, if the order says where to look.
        seen: Option<Result<Sight, LookError>>,
    },
    /// The mount table was read that an [`Action::Look`] asked for.
    Looked {
        /// The volume.
        slot: Slot,
        /// What was seen.
        seen: Result<Sight, LookError>,
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

/// What can be asked for. What was asked for stays so if its answer is not waited for any more.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// A consumer wants a volume.
    Publish {
        /// The volume.
        spec: Arc<VolumeSpec>,
        /// The consumer.
        consumer: Arc<ConsumerSpec>,
        /// The consumer has it, as the mount table shows.
        reply: Reply<Result<Published, PublishError>>,
    },
    /// A consumer does not want a volume any more.
    Unpublish {
        /// The volume.
        key: VolumeKey,
        /// The consumer.
        consumer: ConsumerId,
        /// Nothing of it is at the target.
        reply: Reply<Result<(), UnpublishError>>,
    },
    /// A volume shall be at least so large.
    Expand {
        /// The volume.
        key: VolumeKey,
        /// In bytes.
        required_bytes: u64,
        /// Its size, in bytes.
        reply: Reply<Result<u64, ExpandError>>,
    },
    /// A volume was attached by others, or shall be detached by them: then what is above is taken down.
    Attach {
        /// The volume.
        key: VolumeKey,
        /// What its ControllerPublishVolume answered; `None` to detach.
        publish_context: Option<BTreeMap<String, String>>,
        /// Whether the volume is known. What was said is on disk then.
        reply: Reply<Result<bool, AttachError>>,
    },
    /// These volumes, and no others, are wanted.
    Reconcile {
        /// All of them.
        desired: Vec<DesiredVolume>,
        /// What that changed. It is on disk.
        reply: Reply<Result<Reconciled, ReconcileError>>,
    },
    /// A question to the driver that changes nothing.
    Inspect {
        /// The volume.
        key: VolumeKey,
        /// What is asked.
        query: Query,
        /// What the driver says.
        reply: Reply<Result<CallOutcome, InspectError>>,
    },
}

/// A question to the driver that changes nothing.
#[allow(clippy::exhaustive_enums, reason = "the two calls of the spec that ask")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Query {
    /// How full a volume is.
    Stats,
    /// What is wrong with a volume.
    Health,
}

/// What to do.
#[derive(Debug)]
#[non_exhaustive]
pub enum Action {
    /// Make these changes durable, all or none; then send [`Event::Committed`]. One at a time.
    Commit(Vec<store::Change>),
    /// Open the store again; then send [`Event::Reopened`].
    Reopen,
    /// Make a call, and look at what it did; then send [`Event::CallEnded`].
    Call(CallOrder),
    /// Look at a path and the mount table; then send [`Event::Looked`].
    Look {
        /// The volume.
        slot: Slot,
        /// Where and how.
        look: Look,
    },
    /// Remove these places, in this order, as far as they are empty and no mounts. Nothing is to be sent.
    Clear(Vec<PathBuf>),
    /// [Deliver](Answer::deliver) an answer.
    Answer(Answer),
    /// Read the mount table again; then send [`Event::MountsSeen`]. If it cannot be read, try again after a while.
    ReadTable,
    /// Tell those who watch.
    Tell(Change),
}

/// A call to make.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct CallOrder {
    /// Names the volume, for the end of the call.
    pub slot: Slot,
    /// The volume.
    pub spec: Arc<VolumeSpec>,
    /// The call. Directories that the spec wants from the caller are to be made before: that of a stage call, and the
    /// parent of a publish call's target.
    pub operation: Operation,
    /// Whether nothing of the volume can be at the target of a publish call yet. Then whatever is mounted or kept there is
    /// not the volume's, and the call is to be prevented.
    pub fresh: bool,
    /// Where to look after an OK, and after NOT_FOUND, which may be as good.
    pub verify: Option<Look>,
}

/// Something to look at.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Look {
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
#[allow(clippy::exhaustive_structs, reason = "the two places to look at")]
pub struct Sight {
    /// The mount table.
    pub table: Arc<MountTable>,
    /// What is at the path, if that was asked for.
    pub inspection: Option<Inspection>,
}

/// Why nothing was seen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    /// The mount table is not known.
    #[error(transparent)]
    Table(#[from] TableError),
    /// It is not known what is at the path.
    #[error(transparent)]
    Path(#[from] mounts::Trouble),
}
