//! Applies a pod's fsGroup to the files of its volumes, where the driver does not.
//!
//! A job runs once for each pod volume and boot, after the volume is published and before it is reported as published. Done
//! jobs are on disk, so that a restart of the agent does not change the files of a running pod; after a boot they
//! run again, as with kubelet. Drivers with requiresRepublish, such as one that renews a pod's certificates, may
//! write new files each time: then the job runs after each publish, and the volume stays published meanwhile, even
//! if the job fails and is retried.

mod bits;
mod done;
mod job;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use csi_proto::DriverName;
use tokio::task::JoinSet;
use tokio::time::Instant;
use volume_manager::{ConsumerId, VolumeKey};

pub(super) use self::done::DoneGroups;
pub(super) use self::job::{FsGroupJob, UnknownProperty, jobs};
use self::tree::{Applied, ApplyError};

/// The maximum number of concurrent walks.
const MAX_WALKS: usize = 8;

/// The maximum number of concurrent walks of one driver's volumes, so that a hanging driver does not block the
/// others.
const MAX_WALKS_OF_DRIVER: usize = 2;

/// The wait before a failed walk is retried.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The maximum wait for cancelled walks to close their files.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of the fsGroup of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GroupState {
    /// The group was applied. The text is a remark, or empty.
    Applied(String),
    /// The group is not applied yet. The text is the reason.
    Pending(String),
    /// Applying the group failed and is retried. The text is the error.
    Failed(String),
}

#[derive(Debug)]
struct Walk {
    job: FsGroupJob,
    state: State,
    /// The result of the previous walk, while the job runs again.
    previous: Option<Done>,
}

/// The result of a walk.
#[derive(Debug, Clone, Default)]
struct Done {
    /// The number of files that could not be changed.
    failed: u64,
    /// The error of the first of these files.
    first_error: String,
    /// The error of a repeated walk, if it failed.
    repeat_error: Option<String>,
}

#[derive(Debug)]
enum State {
    /// The walk waits for a free slot, or for another walk of the volume.
    Waiting,
    Running {
        cancelled: Arc<AtomicBool>,
        /// Whether the driver may have written new files since the start.
        new_files: bool,
    },
    Failed {
        retry_at: Instant,
        reason: String,
    },
    Done(Done),
}

/// The fsGroup jobs of the pods' volumes. A job stays while its volume is published.
#[derive(Debug)]
pub(super) struct Groups {
    on_disk: DoneGroups,
    walks: BTreeMap<ConsumerId, Walk>,
    /// The jobs that were done in this boot.
    done: BTreeSet<FsGroupJob>,
    /// Whether `done` differs from the record on the disk.
    unsaved: bool,
    /// Consumers with unknown properties.
    unknown: BTreeMap<ConsumerId, UnknownProperty>,
    running: JoinSet<(ConsumerId, VolumeKey, Result<Applied, ApplyError>)>,
    /// The volumes with a running walk, including walks for removed consumers.
    busy: BTreeMap<VolumeKey, ConsumerId>,
}

impl Groups {
    /// Loads the jobs that were done in this boot.
    pub(super) fn new(on_disk: DoneGroups) -> Self {
        let done = on_disk.load();
        Self {
            on_disk,
            walks: BTreeMap::new(),
            done,
            unsaved: false,
            unknown: BTreeMap::new(),
            running: JoinSet::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Replaces the jobs, and starts those that can start. Jobs of consumers with `unknown` properties stay
    /// unchanged.
    pub(super) fn set_wanted(
        &mut self,
        jobs: Vec<FsGroupJob>,
        unknown: BTreeMap<ConsumerId, UnknownProperty>,
        now: Instant,
    ) {
        let all: BTreeSet<&FsGroupJob> = jobs.iter().collect();
        let stays = |job: &FsGroupJob| all.contains(job) || unknown.contains_key(&job.consumer);
        self.keep_walks(stays);
        self.keep_done(stays);
        self.unknown = unknown;
        for job in jobs {
            let done = self.done.contains(&job);
            let state = || if done { State::Done(Done::default()) } else { State::Waiting };
            let id = job.consumer.clone();
            self.walks.entry(id).or_insert_with(|| Walk { job, state: state(), previous: None });
        }
        for walk in self.walks.values_mut() {
            if matches!(&walk.state, State::Failed { retry_at, .. } if *retry_at <= now) {
                walk.state = State::Waiting;
            }
        }
        self.start_waiting();
    }

    /// Cancels the walks whose job does not stay.
    fn keep_walks(&mut self, stays: impl Fn(&FsGroupJob) -> bool) {
        self.walks.retain(|_, walk| {
            let stays = stays(&walk.job);
            if !stays {
                walk.cancel();
            }
            stays
        });
    }

    /// Removes the done jobs that do not stay.
    fn keep_done(&mut self, stays: impl Fn(&FsGroupJob) -> bool) {
        let before = self.done.len();
        self.done.retain(stays);
        self.unsaved |= self.done.len() != before;
    }

    /// Starts the waiting walks, within the limits.
    fn start_waiting(&mut self) {
        for walk in self.walks.values_mut() {
            if !matches!(walk.state, State::Waiting) {
                continue;
            }
            let FsGroupJob { key, consumer, target, fs_group } = walk.job.clone();
            let of_driver =
                |driver: &DriverName| self.busy.keys().filter(|key| key.driver == *driver).count();
            if self.busy.len() >= MAX_WALKS
                || of_driver(&key.driver) >= MAX_WALKS_OF_DRIVER
                || self.busy.contains_key(&key)
            {
                continue;
            }
            self.busy.insert(key.clone(), consumer.clone());
            let cancelled = Arc::new(AtomicBool::new(false));
            walk.state = State::Running { cancelled: Arc::clone(&cancelled), new_files: false };
            self.running.spawn_blocking(move || {
                let done = tree::apply_at(target.as_path(), fs_group, || cancelled.load(Ordering::Relaxed));
                (consumer, key, done)
            });
        }
    }

    /// Cancels the walks of removed consumers, and waits for them to close their files: an open file
    /// prevents an unmount.
    pub(super) async fn release(&mut self, keeps: impl Fn(&ConsumerId) -> bool) {
        self.keep_walks(|job| keeps(&job.consumer));
        let until = Instant::now() + RELEASE_TIMEOUT;
        while self.busy.values().any(|id| !keeps(id)) {
            if tokio::time::timeout_at(until, self.ended()).await.is_err() {
                return;
            }
        }
    }

    /// Handles a publish of a volume: a failed job is retried at once. A done job runs again if the driver may
    /// have written `new_files`, and after a running walk, which may miss them.
    pub(super) fn published(&mut self, consumer: &ConsumerId, new_files: bool) {
        if let Some(walk) = self.walks.get_mut(consumer) {
            walk.published(new_files);
        }
    }

    /// Handles lost mounts of a volume, of one consumer or of all: their jobs run again.
    pub(super) fn mount_lost(&mut self, key: &VolumeKey, consumer: Option<&ConsumerId>) {
        let stays = |job: &FsGroupJob| job.key != *key || consumer.is_some_and(|id| job.consumer != *id);
        self.keep_walks(stays);
        self.keep_done(stays);
    }

    /// Returns when the next failed job is to be retried.
    pub(super) fn next_retry(&self) -> Option<Instant> {
        let failed = self.walks.values().filter_map(|walk| match walk.state {
            State::Failed { retry_at, .. } => Some(retry_at),
            _ => None,
        });
        failed.min()
    }

    /// Waits for the next walk to end. This method is cancel safe.
    pub(super) async fn ended(&mut self) {
        let Some(ended) = self.running.join_next().await else { return std::future::pending().await };
        // A walk cannot panic, and is never aborted.
        let Ok((consumer, key, result)) = ended else { return };
        self.busy.remove(&key);
        let wanted = self.walks.get_mut(&consumer).filter(|walk| walk.job.key == key);
        if let Some(walk) = wanted
            && let State::Running { new_files, .. } = walk.state
        {
            walk.finish(result);
            if matches!(walk.state, State::Done(_)) {
                self.unsaved |= self.done.insert(walk.job.clone());
            }
            if new_files {
                walk.published(true);
            }
        }
        self.start_waiting();
    }

    /// Writes the done jobs if they differ from the record on the disk.
    pub(super) async fn save(&mut self) {
        if !std::mem::take(&mut self.unsaved) {
            return;
        }
        if let Err(error) = self.on_disk.save(&self.done).await {
            tracing::warn!(
                "--state-dir: cannot record the done fsGroup jobs, so they run again after a restart: {error}"
            );
        }
    }

    /// Returns the state of each consumer's job.
    pub(super) fn states(&self) -> BTreeMap<ConsumerId, GroupState> {
        // The state of a consumer with a missing claim does not change: its pod may use the volume without fsGroup.
        let unknown = self.unknown.iter().filter(|(_, property)| **property == UnknownProperty::Driver);
        let unknown =
            unknown.map(|(id, _)| id).filter(|id| self.done.iter().all(|done| done.consumer != **id));
        let unknown = unknown.map(|id| {
            let reason = "the driver has not reported yet whether it applies fsGroup";
            (id.clone(), GroupState::Pending(reason.to_owned()))
        });
        let walks = self.walks.iter().map(|(id, walk)| (id.clone(), walk.group_state()));
        unknown.chain(walks).collect()
    }
}

impl Walk {
    fn cancel(&self) {
        if let State::Running { cancelled, .. } = &self.state {
            cancelled.store(true, Ordering::Relaxed);
        }
    }

    fn published(&mut self, has_new_files: bool) {
        match &mut self.state {
            State::Failed { .. } => self.state = State::Waiting,
            State::Done(done) if has_new_files => {
                self.previous = Some(done.clone());
                self.state = State::Waiting;
            }
            State::Running { new_files, .. } => *new_files |= has_new_files,
            State::Waiting | State::Done(_) => {}
        }
    }

    fn finish(&mut self, result: Result<Applied, ApplyError>) {
        let FsGroupJob { key, consumer, fs_group, .. } = &self.job;
        self.state = match result {
            Ok(Applied { seen, changed, failed, first_failure }) => {
                let group = fs_group.group;
                tracing::info!(volume = %key, %consumer, group, seen, changed, failed, "fsGroup applied");
                let first_error = first_failure.map(|errno| errno.to_string()).unwrap_or_default();
                self.previous = None;
                State::Done(Done { failed, first_error, repeat_error: None })
            }
            Err(error) => {
                tracing::warn!(volume = %key, %consumer, group = fs_group.group, "cannot apply fsGroup, retrying: {error}");
                let reason = error.to_string();
                if let Some(previous) = &mut self.previous {
                    previous.repeat_error = Some(reason.clone());
                }
                State::Failed { retry_at: Instant::now() + RETRY_DELAY, reason }
            }
        };
    }

    fn group_state(&self) -> GroupState {
        let group = self.job.fs_group.group;
        match (&self.state, &self.previous) {
            // The pod uses the volume, even if a repeated job fails.
            (State::Done(done), _) | (_, Some(done)) => done.group_state(group),
            (State::Waiting | State::Running { .. }, None) => {
                GroupState::Pending(format!("applying fsGroup {group} to its files"))
            }
            (State::Failed { reason, .. }, None) => {
                GroupState::Failed(format!("cannot apply fsGroup {group}, retrying: {reason}"))
            }
        }
    }
}

impl Done {
    fn group_state(&self, group: u32) -> GroupState {
        let Self { failed, first_error, repeat_error } = self;
        GroupState::Applied(match (repeat_error, failed) {
            (Some(reason), _) => {
                format!("cannot apply fsGroup {group} to new files, retrying: {reason}")
            }
            (None, 0) => String::new(),
            (None, _) => {
                format!("cannot apply fsGroup {group} to {failed} of its files; first error: {first_error}")
            }
        })
    }
}

#[cfg(test)]
mod tests;
