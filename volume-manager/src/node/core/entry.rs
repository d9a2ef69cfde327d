//! One volume among others.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{RequestId, Ticket};
use crate::driver::{ConsumerSpec, MountPath, VolumeSpec};
use crate::lifecycle::{
    Attach, Base, Call, Check, DriverCapabilities, Policy, Snapshot, Target, TargetState, Volume, VolumeState,
};
use crate::mounts::MountIdentity;
use crate::name::{ConsumerId, VolumeKey};
use crate::node::explanation::LastError;
use crate::node::record::{Record, RecordedConsumer};
use crate::store::{BootId, RecordKey};

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) key: VolumeKey,
    pub(super) spec: Arc<VolumeSpec>,
    pub(super) directory: String,
    pub(super) record_key: RecordKey,
    pub(super) staging: MountPath,
    pub(super) consumers: BTreeMap<ConsumerId, RecordedConsumer>,
    pub(super) life: Life,
    pub(super) staged: Option<MountIdentity>,
    /// Whether the staging directory may be there.
    pub(super) touched: bool,
    pub(super) node_id: Option<String>,
    pub(super) last_error: Option<LastError>,
    /// Why its driver does not take it.
    pub(super) refused: Option<String>,
    /// A call, query or look that is under way. There is never more than one.
    pub(super) running: Option<Running>,
    /// The call that it waits to make.
    pub(super) wanted_call: Option<Call>,
    /// The look that it waits for until nothing of it runs.
    pub(super) wanted_look: Option<Check>,
    /// What it is to be asked besides.
    pub(super) queries: VecDeque<(RequestId, Query)>,
    pub(super) waiters: Vec<(RequestId, Wish)>,
    pub(super) state: VolumeState,
    pub(super) since: Duration,
    /// Counts what was asked of it and has to be on disk.
    pub(super) version: u64,
    /// Up to which version it is.
    pub(super) durable: u64,
    /// Whether the machine waits for its record to be on disk.
    pub(super) recording: bool,
    /// Consumers for which nothing was ever done, and whose release is not on disk yet.
    pub(super) leaving: BTreeSet<ConsumerId>,
    /// Consumers for which no call of this boot was sent that may have mounted anything.
    pub(super) fresh: BTreeSet<ConsumerId>,
    /// When nobody else was last seen to use what is staged.
    pub(super) unused_at: Option<Duration>,
    /// Whether its record is too large for the store, or refused by it alone.
    pub(super) left_out: bool,
    /// How often in a row its mounts were lost, and from when on they are made again if they are lost once more.
    pub(super) losses: u8,
    /// How often one of its mounts was looked at.
    pub(super) inspections: usize,
    pub(super) heal_at: Duration,
    /// Whether nothing is left of it, so that its record may go.
    pub(super) forgotten: bool,
    /// When something of it was last seen to end, in steps.
    pub(super) checked: u64,
}

/// How much is known of a volume.
#[derive(Debug)]
pub(super) enum Life {
    /// What is on disk, or will be. Its driver has not said yet what it can do.
    Dormant {
        snapshot: Snapshot,
        /// The boot that the snapshot is of.
        boot: BootId,
    },
    /// It has a machine.
    Awake(Box<Volume>),
}

#[derive(Debug)]
pub(super) struct Running {
    pub(super) ticket: Ticket,
    pub(super) what: What,
    pub(super) since: Duration,
}

#[derive(Debug)]
pub(super) enum What {
    Call(Call),
    Query(RequestId),
    Look(Check),
    /// Whether somebody else uses what is staged, asked again when the turn of an unstage has come.
    Recheck(Call),
    /// Whether the mount at the staging path, or at a target, is alive.
    Inspection(Option<ConsumerId>),
}

/// A question to the driver that changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Query {
    Stats,
    Health,
}

/// What somebody waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Wish {
    Publish(ConsumerId),
    Unpublish(ConsumerId),
    /// To this size, in bytes.
    Expand(u64),
}

/// The most queries that one volume keeps waiting.
pub(super) const MAX_QUERIES: usize = 16;

impl Entry {
    pub(super) fn snapshot(&self) -> &Snapshot {
        match &self.life {
            Life::Dormant { snapshot, .. } => snapshot,
            Life::Awake(volume) => volume.snapshot(),
        }
    }

    pub(super) fn target(&self, consumer: &ConsumerId) -> Option<&Target> {
        self.snapshot().targets.get(consumer)
    }

    pub(super) fn is_wanted_by(&self, consumer: &ConsumerId) -> bool {
        self.target(consumer).is_some_and(|target| target.wanted)
    }

    /// The consumers that have it now.
    pub(super) fn published(&self) -> impl Iterator<Item = (&ConsumerId, &RecordedConsumer)> {
        let targets = &self.snapshot().targets;
        self.consumers.iter().filter(|(id, _)| {
            let state = targets.get(*id).map(|target| target.state);
            matches!(state, Some(TargetState::Published | TargetState::Republish))
        })
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
        let stays = |(id, _): &(&ConsumerId, _)| !self.leaving.contains(*id);
        self.consumers.iter().filter(stays).map(|(_, consumer)| &*consumer.spec)
    }

    /// Notes what is going to be made by a call of which the record has the intent.
    pub(super) fn touch(&mut self) {
        let snapshot = match &self.life {
            Life::Dormant { snapshot, .. } => snapshot,
            Life::Awake(volume) => volume.snapshot(),
        };
        self.touched |= matches!(snapshot.base, Base::NodeStage | Base::NodeUnstage | Base::VolReady);
        for (id, target) in &snapshot.targets {
            if let Some(consumer) = self.consumers.get_mut(id)
                && target.state != TargetState::Absent
                && !consumer.touched
            {
                consumer.touched = true;
                self.fresh.insert(id.clone());
            }
        }
    }

    /// The record, as it shall be on disk now.
    pub(super) fn record(&self, boot: BootId) -> Record {
        let boot = match &self.life {
            Life::Dormant { boot, .. } => *boot,
            Life::Awake(_) => boot,
        };
        Record {
            spec: Arc::clone(&self.spec),
            directory: self.directory.clone(),
            consumers: self.consumers.clone(),
            snapshot: self.snapshot().clone(),
            boot,
            staged: self.staged.clone(),
            touched: self.touched,
            node_id: self.node_id.clone(),
            last_error: self.last_error.clone(),
        }
    }

    /// The state of the volume as a whole.
    pub(super) fn current_state(&self) -> VolumeState {
        match &self.life {
            Life::Awake(volume) => volume.state(),
            Life::Dormant { snapshot, .. } => {
                // As a driver with all capabilities would have it, so that nothing that is recorded is left out.
                let capabilities = DriverCapabilities {
                    publish_unpublish: true,
                    stage_unstage: true,
                    controller_expand: true,
                    node_expand: true,
                };
                Volume::restored(snapshot.clone(), Attach::Here, capabilities, Policy::default()).state()
            }
        }
    }

    /// Whether nothing is done, under way or left of it that its description was used for.
    pub(super) fn is_idle(&self) -> bool {
        let untouched = match &self.life {
            Life::Dormant { snapshot, .. } => *snapshot == untouched(),
            Life::Awake(_) => false,
        };
        self.holders().next().is_none() && !self.recording && (self.forgotten || untouched)
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

/// What is on disk of a volume to which nothing was done yet.
pub(super) fn untouched() -> Snapshot {
    Snapshot {
        base: Base::Created,
        attached: false,
        attached_here: false,
        calling: None,
        targets: BTreeMap::new(),
        granted_bytes: 0,
        capacity_bytes: 0,
        expansion: None,
    }
}
