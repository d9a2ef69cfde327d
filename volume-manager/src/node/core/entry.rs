//! The state of one volume in the node.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use super::event::Query;
use super::reply::Reply;
use crate::driver::{CallOutcome, ConsumerSpec, MountPath};
use crate::lifecycle::{
    Attach, Base, Call, DriverCapabilities, LostMount, Policy, Snapshot, Target, TargetState, Volume,
    VolumeState,
};
use crate::name::{ConsumerId, VolumeKey};
use crate::node::desired::Published;
use crate::node::error::{ExpandError, InspectError, PublishError, UnpublishError};
use crate::node::record::{Record, RecordedConsumer};
use crate::store::RecordKey;

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: VolumeKey,
    pub(super) record_key: RecordKey,
    pub(super) staging: MountPath,
    /// The record that must be on disk.
    pub(super) record: Record,
    /// The state machine, which owns the record's snapshot; `None` until the driver's capabilities are known.
    pub(super) machine: Option<Box<Volume>>,
    /// The state of the volume as a whole, and when it was entered.
    pub(super) state: VolumeState,
    pub(super) since: Duration,
    /// The reason why the driver does not support the volume.
    pub(super) refused: Option<String>,
    /// The current job; at most one.
    pub(super) job: Option<Job>,
    /// Queued queries.
    pub(super) queries: VecDeque<(Query, Reply<Result<CallOutcome, InspectError>>)>,
    pub(super) waiters: Waiters,
    pub(super) progress: RecordProgress,
    pub(super) health: Health,
    /// Consumers for which no call that could mount something was sent in this boot.
    pub(super) first_publish: BTreeSet<ConsumerId>,
}

/// The progress of the writes of the record to disk.
#[derive(Debug, Default)]
pub(super) struct RecordProgress {
    /// The version in memory; each change that must be on disk increments it.
    pub(super) version: u64,
    /// The version on disk.
    pub(super) durable: u64,
    /// True if the state machine waits for the record to be on disk.
    pub(super) recording: bool,
    /// Released consumers for which no call was made, until their release is on disk.
    pub(super) unrecorded_releases: BTreeSet<ConsumerId>,
    /// True if nothing of the volume remains, so that its record may be removed.
    pub(super) removable: bool,
}

/// The health of the volume's mounts.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The number of consecutive losses.
    pub(super) remount_attempts: u8,
    /// The earliest time to mount again after the next loss.
    pub(super) remount_not_before: Duration,
    /// The number of inspections, which selects the next mount to inspect.
    pub(super) inspections: usize,
    /// The epoch in which the last job of the volume ended.
    pub(super) last_activity: u64,
}

/// The job in progress for a volume.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) kind: JobKind,
    pub(super) since: Duration,
}

#[derive(Debug)]
pub(super) enum JobKind {
    /// A call with its verification.
    Call {
        call: Call,
        /// `false` during the check whether the call is needed and permitted.
        sent: bool,
    },
    Query(Reply<Result<CallOutcome, InspectError>>),
    /// A check whether this staging or target mount is alive.
    Inspection(LostMount),
}

impl JobKind {
    /// Returns whether the job occupies a call slot of its driver.
    pub(super) fn uses_call_slot(&self) -> bool {
        !matches!(self, Self::Inspection(_))
    }
}

/// Requests that wait for a result.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) published: Waiting<ConsumerId, Result<Published, PublishError>>,
    pub(super) unpublished: Waiting<ConsumerId, Result<(), UnpublishError>>,
    /// Waiters for at least this size, in bytes.
    pub(super) expanded: Waiting<u64, Result<u64, ExpandError>>,
}

/// Waiters by key, each with its reply.
pub(super) type Waiting<K, T> = Vec<(K, Reply<T>)>;

/// Adds a waiter and drops abandoned ones, so that they cannot accumulate.
pub(super) fn add_waiter<K, T: Send + 'static>(waiting: &mut Waiting<K, T>, key: K, reply: Reply<T>) {
    waiting.retain(|(_, reply)| !reply.is_closed());
    waiting.push((key, reply));
}

/// The maximum number of queued queries of a volume.
pub(super) const MAX_QUERIES: usize = 16;

impl Entry {
    pub(super) fn new(key: VolumeKey, record_key: RecordKey, staging: MountPath, record: Record) -> Self {
        Self {
            key,
            record_key,
            staging,
            record,
            machine: None,
            state: VolumeState::Created,
            since: Duration::ZERO,
            refused: None,
            job: None,
            queries: VecDeque::new(),
            waiters: Waiters::default(),
            progress: RecordProgress::default(),
            health: Health::default(),
            first_publish: BTreeSet::new(),
        }
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.record.snapshot
    }

    /// Returns the snapshot, unless a state machine owns it.
    pub(super) fn inactive_snapshot(&mut self) -> Option<&mut Snapshot> {
        self.machine.is_none().then_some(&mut self.record.snapshot)
    }

    /// Returns the call that the state machine waits for and that was not sent.
    pub(super) fn awaited_call(&self) -> Option<&Call> {
        let machine = self.machine.as_ref()?;
        machine
            .in_flight()
            .filter(|_| !matches!(self.job, Some(Job { kind: JobKind::Call { sent: true, .. }, .. })))
    }

    /// Returns whether no job is running or due that could change the mounts.
    pub(super) fn is_quiet(&self) -> bool {
        self.job.is_none() && self.awaited_call().is_none()
    }

    pub(super) fn target(&self, consumer: &ConsumerId) -> Option<&Target> {
        self.snapshot().targets.get(consumer)
    }

    pub(super) fn is_wanted_by(&self, consumer: &ConsumerId) -> bool {
        self.target(consumer).is_some_and(|target| target.wanted)
    }

    /// Returns the consumers that the volume is published for.
    pub(super) fn published(&self) -> impl Iterator<Item = (&ConsumerId, &RecordedConsumer)> {
        let has = move |id| self.target(id).is_some_and(|target| target.state.is_published());
        self.record.consumers.iter().filter(move |(id, _)| has(id))
    }

    pub(super) fn is_staged(&self) -> bool {
        self.snapshot().base == Base::VolReady
    }

    /// Returns a path for queries to the driver.
    pub(super) fn volume_path(&self) -> Option<MountPath> {
        let target = self.published().next().map(|(_, consumer)| consumer.spec.target_path().clone());
        target.or_else(|| self.is_staged().then(|| self.staging.clone()))
    }

    pub(super) fn active_consumers(&self) -> impl Iterator<Item = &ConsumerSpec> {
        let stays = |(id, _): &(&ConsumerId, _)| !self.progress.unrecorded_releases.contains(*id);
        self.record.consumers.iter().filter(stays).map(|(_, consumer)| &*consumer.spec)
    }

    /// Marks the directories that the intended call may create.
    pub(super) fn touch(&mut self) {
        let Record { snapshot, consumers, touched, .. } = &mut self.record;
        *touched |= matches!(snapshot.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady);
        for (id, target) in &snapshot.targets {
            if let Some(consumer) = consumers.get_mut(id)
                && target.state != TargetState::Absent
                && !consumer.touched
            {
                consumer.touched = true;
                self.first_publish.insert(id.clone());
            }
        }
    }

    /// Returns the state of the volume as a whole.
    pub(super) fn current_state(&self) -> VolumeState {
        if let Some(machine) = &self.machine {
            return machine.state();
        }
        // The state is computed with all capabilities, so that no recorded state is skipped.
        let capabilities = DriverCapabilities {
            publish_unpublish: true,
            stage_unstage: true,
            controller_expand: true,
            node_expand: true,
        };
        Volume::restored(self.snapshot().clone(), Attach::Here, capabilities, Policy::default()).state()
    }

    /// Returns whether the volume is unused: no consumer, no call made and none in progress.
    pub(super) fn is_unused(&self) -> bool {
        let untouched = self.machine.is_none() && *self.snapshot() == Snapshot::default();
        self.active_consumers().next().is_none()
            && !self.progress.recording
            && (self.progress.removable || untouched)
    }

    /// Returns whether any call was made, so that the volume must be torn down.
    pub(super) fn needs_teardown(&self) -> bool {
        let Snapshot { base, calling, targets, attached_here, .. } = self.snapshot();
        *attached_here
            || *base != Base::Created
            || calling.is_some()
            || targets.values().any(|target| target.state != TargetState::Absent)
    }

    /// Returns whether a path is the volume's staging path.
    pub(super) fn is_staging_path(&self, path: &Path) -> bool {
        self.staging.as_path() == path
    }
}
