//! One volume among others.

use std::collections::{BTreeSet, VecDeque};
use std::path::Path;
use std::time::Duration;

use super::event::Query;
use super::reply::Reply;
use crate::driver::{CallOutcome, ConsumerSpec, MountPath};
use crate::lifecycle::{
    Attach, Base, Call, DriverCapabilities, Lost, Policy, Snapshot, Target, TargetState, Volume, VolumeState,
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
    /// The record, as it shall be on disk now.
    pub(super) record: Record,
    /// `None` as long as its driver has not said what it can do. It is the master of the record's snapshot.
    pub(super) machine: Option<Box<Volume>>,
    /// The state of the volume as a whole, and since when.
    pub(super) state: VolumeState,
    pub(super) since: Duration,
    /// Why its driver does not take it.
    pub(super) refused: Option<String>,
    /// What is under way. There is never more than one.
    pub(super) job: Option<Job>,
    /// What it is to be asked besides.
    pub(super) queries: VecDeque<(Query, Reply<Result<CallOutcome, InspectError>>)>,
    pub(super) waiters: Waiters,
    pub(super) saved: Saved,
    pub(super) health: Health,
    /// Consumers for which no call of this boot was sent that may have mounted anything.
    pub(super) fresh: BTreeSet<ConsumerId>,
}

/// How the record on disk compares with the one in memory.
#[derive(Debug, Default)]
pub(super) struct Saved {
    /// Counts what was asked of it and has to be on disk.
    pub(super) version: u64,
    /// Up to which version it is.
    pub(super) durable: u64,
    /// Whether the machine waits for its record to be on disk.
    pub(super) recording: bool,
    /// Consumers for which nothing was ever done, and whose release is not on disk yet.
    pub(super) leaving: BTreeSet<ConsumerId>,
    /// Whether nothing is left of it, so that its record may go.
    pub(super) forgotten: bool,
}

/// How its mounts fare.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// How often in a row they were lost, and from when on they are made again if they are lost once more.
    pub(super) losses: u8,
    pub(super) heal_at: Duration,
    /// How often one of them was looked at.
    pub(super) inspections: usize,
    /// When something of the volume was last seen to end, in steps.
    pub(super) checked: u64,
}

/// The one thing under way for a volume.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) what: What,
    pub(super) since: Duration,
}

#[derive(Debug)]
pub(super) enum What {
    /// A call with its verification.
    Call {
        call: Call,
        /// Not while it is looked whether it has to be sent, or may be.
        sent: bool,
    },
    Query(Reply<Result<CallOutcome, InspectError>>),
    /// Whether this mount, which was published or staged, is alive.
    Inspection(Lost),
}

impl What {
    /// Whether it counts among the calls to its driver.
    pub(super) fn takes_turn(&self) -> bool {
        !matches!(self, Self::Inspection(_))
    }
}

/// Who waits to be answered.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    pub(super) published: Waiting<ConsumerId, Result<Published, PublishError>>,
    pub(super) unpublished: Waiting<ConsumerId, Result<(), UnpublishError>>,
    /// For at least this size, in bytes.
    pub(super) expanded: Waiting<u64, Result<u64, ExpandError>>,
}

/// What is waited for, each with where the answer goes.
pub(super) type Waiting<K, T> = Vec<(K, Reply<T>)>;

/// Adds one, and drops those whose answers are not waited for any more, so that they cannot pile up.
pub(super) fn wait<K, T: Send + 'static>(waiting: &mut Waiting<K, T>, what: K, reply: Reply<T>) {
    waiting.retain(|(_, reply)| !reply.is_closed());
    waiting.push((what, reply));
}

/// The most queries that one volume keeps waiting.
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
            saved: Saved::default(),
            health: Health::default(),
            fresh: BTreeSet::new(),
        }
    }

    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.record.snapshot
    }

    /// The snapshot, as long as no machine is its master.
    pub(super) fn dormant(&mut self) -> Option<&mut Snapshot> {
        self.machine.is_none().then_some(&mut self.record.snapshot)
    }

    /// The call that its machine waits for, and that is not sent.
    pub(super) fn awaited_call(&self) -> Option<&Call> {
        let machine = self.machine.as_ref()?;
        machine
            .in_flight()
            .filter(|_| !matches!(self.job, Some(Job { what: What::Call { sent: true, .. }, .. })))
    }

    /// Whether nothing is under way that could change what is mounted, nor about to be.
    pub(super) fn is_quiet(&self) -> bool {
        self.job.is_none() && self.awaited_call().is_none()
    }

    pub(super) fn target(&self, consumer: &ConsumerId) -> Option<&Target> {
        self.snapshot().targets.get(consumer)
    }

    pub(super) fn is_wanted_by(&self, consumer: &ConsumerId) -> bool {
        self.target(consumer).is_some_and(|target| target.wanted)
    }

    /// The consumers that have it now.
    pub(super) fn published(&self) -> impl Iterator<Item = (&ConsumerId, &RecordedConsumer)> {
        let has = move |id| self.target(id).is_some_and(|target| target.state.is_published());
        self.record.consumers.iter().filter(move |(id, _)| has(id))
    }

    pub(super) fn is_staged(&self) -> bool {
        self.snapshot().base == Base::VolReady
    }

    /// A path through which the driver can be asked about the volume.
    pub(super) fn volume_path(&self) -> Option<MountPath> {
        let target = self.published().next().map(|(_, consumer)| consumer.spec.target_path().clone());
        target.or_else(|| self.is_staged().then(|| self.staging.clone()))
    }

    pub(super) fn holders(&self) -> impl Iterator<Item = &ConsumerSpec> {
        let stays = |(id, _): &(&ConsumerId, _)| !self.saved.leaving.contains(*id);
        self.record.consumers.iter().filter(stays).map(|(_, consumer)| &*consumer.spec)
    }

    /// Notes what is going to be made by a call of which the record has the intent.
    pub(super) fn touch(&mut self) {
        let Record { snapshot, consumers, touched, .. } = &mut self.record;
        *touched |= matches!(snapshot.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady);
        for (id, target) in &snapshot.targets {
            if let Some(consumer) = consumers.get_mut(id)
                && target.state != TargetState::Absent
                && !consumer.touched
            {
                consumer.touched = true;
                self.fresh.insert(id.clone());
            }
        }
    }

    /// The state of the volume as a whole.
    pub(super) fn current_state(&self) -> VolumeState {
        if let Some(machine) = &self.machine {
            return machine.state();
        }
        // As a driver with all capabilities would have it, so that nothing that is recorded is left out.
        let capabilities = DriverCapabilities {
            publish_unpublish: true,
            stage_unstage: true,
            controller_expand: true,
            node_expand: true,
        };
        Volume::restored(self.snapshot().clone(), Attach::Here, capabilities, Policy::default()).state()
    }

    /// Whether nothing is done, under way or left of it that its description was used for.
    pub(super) fn is_idle(&self) -> bool {
        let untouched = self.machine.is_none() && *self.snapshot() == Snapshot::default();
        self.holders().next().is_none() && !self.saved.recording && (self.saved.forgotten || untouched)
    }

    /// Whether anything was done to it, so that it has to be taken down.
    pub(super) fn is_begun(&self) -> bool {
        let Snapshot { base, calling, targets, attached_here, .. } = self.snapshot();
        *attached_here
            || *base != Base::Created
            || calling.is_some()
            || targets.values().any(|target| target.state != TargetState::Absent)
    }

    /// Whether a path is one of this volume's own.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        self.staging.as_path() == path
    }
}
