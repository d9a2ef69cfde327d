//! Applies a pod's fsGroup to the files of its volumes, where the driver does not.
//!
//! A job runs once for each pod volume and boot, after the volume is published and before it is reported as published. Done
//! jobs are on disk, so that a restart of the agent does not change the files of a running pod; a boot starts over, as kubelet
//! does. Drivers with requiresRepublish, such as one that renews a pod's certificates, may write new files each
//! time: then the job runs after each publish, and the volume stays published meanwhile, even if the job fails and is retried.

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
pub(super) use self::job::{FsGroupJob, Unsure, jobs};
use self::tree::{Applied, ApplyError};

/// The most volumes that are walked at the same time, and of one driver: what hangs in one driver's volumes holds up no other's.
const MAX_WALKS: usize = 8;
const MAX_WALKS_OF_DRIVER: usize = 2;

/// How long one that failed is left alone.
const AGAIN: Duration = Duration::from_secs(30);

/// The longest wait for a walk to let its volume go.
const LETTING_GO: Duration = Duration::from_secs(2);

/// How it is with the group of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum GroupState {
    /// It is done; what is to be said of it, if anything.
    Applied(String),
    /// It is not done yet, and why.
    Pending(String),
    /// It could not be done, and is tried again.
    Failed(String),
}

#[derive(Debug)]
struct Walk {
    job: FsGroupJob,
    state: State,
    /// What came of it before, until it is done again.
    before: Option<Done>,
}

/// The number of files that could not be changed, and the first error.
#[derive(Debug, Clone, Default)]
struct Done {
    failed: u64,
    first: String,
    /// Why it could not be done again, if that was tried.
    not_again: Option<String>,
}

#[derive(Debug)]
enum State {
    /// Waits for others to end.
    Waiting,
    Running {
        ends: Arc<AtomicBool>,
    },
    Failed {
        again: Instant,
        reason: String,
    },
    Done(Done),
}

/// The groups that are wanted, each for as long as its pod's volume is published.
#[derive(Debug)]
pub(super) struct Groups {
    on_disk: DoneGroups,
    walks: BTreeMap<ConsumerId, Walk>,
    /// Done in this boot.
    done: BTreeSet<FsGroupJob>,
    /// Whether the disk has another set of them.
    unsaved: bool,
    /// Consumers with unknown properties.
    unsure: BTreeMap<ConsumerId, Unsure>,
    running: JoinSet<(ConsumerId, VolumeKey, Result<Applied, ApplyError>)>,
    /// The volumes with a running walk, including walks for removed consumers.
    busy: BTreeMap<VolumeKey, ConsumerId>,
}

impl Groups {
    /// Starts with the jobs of this boot that the store has.
    pub(super) fn new(on_disk: DoneGroups) -> Self {
        let done = on_disk.load();
        Self {
            on_disk,
            walks: BTreeMap::new(),
            done,
            unsaved: false,
            unsure: BTreeMap::new(),
            running: JoinSet::new(),
            busy: BTreeMap::new(),
        }
    }

    /// Makes these wanted and no others, and begins what can be begun. Of those that are `unsure` nothing is changed.
    pub(super) fn want(&mut self, jobs: Vec<FsGroupJob>, unsure: BTreeMap<ConsumerId, Unsure>, now: Instant) {
        let all: BTreeSet<&FsGroupJob> = jobs.iter().collect();
        let stays = |job: &FsGroupJob| all.contains(job) || unsure.contains_key(&job.consumer);
        self.keep_walks(stays);
        self.keep_done(stays);
        self.unsure = unsure;
        for job in jobs {
            let done = self.done.contains(&job);
            let state = || if done { State::Done(Done::default()) } else { State::Waiting };
            let id = job.consumer.clone();
            self.walks.entry(id).or_insert_with(|| Walk { job, state: state(), before: None });
        }
        for walk in self.walks.values_mut() {
            if matches!(&walk.state, State::Failed { again, .. } if *again <= now) {
                walk.state = State::Waiting;
            }
        }
        self.begin();
    }

    /// Ends all walks but these.
    fn keep_walks(&mut self, stays: impl Fn(&FsGroupJob) -> bool) {
        self.walks.retain(|_, walk| {
            let stays = stays(&walk.job);
            if !stays {
                walk.end();
            }
            stays
        });
    }

    /// Forgets all that was done but this.
    fn keep_done(&mut self, stays: impl Fn(&FsGroupJob) -> bool) {
        let before = self.done.len();
        self.done.retain(stays);
        self.unsaved |= self.done.len() != before;
    }

    /// Begins those that wait, as far as others let them.
    fn begin(&mut self) {
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
            let ends = Arc::new(AtomicBool::new(false));
            walk.state = State::Running { ends: Arc::clone(&ends) };
            self.running.spawn_blocking(move || {
                let done = tree::apply_at(target.as_path(), fs_group, || ends.load(Ordering::Relaxed));
                (consumer, key, done)
            });
        }
    }

    /// Ends the walks of removed consumers, and waits for them to release their volumes: an open file
    /// prevents an unmount.
    pub(super) async fn let_go(&mut self, keeps: impl Fn(&ConsumerId) -> bool) {
        self.keep_walks(|job| keeps(&job.consumer));
        let until = Instant::now() + LETTING_GO;
        while self.busy.values().any(|id| !keeps(id)) {
            if tokio::time::timeout_at(until, self.ended()).await.is_err() {
                return;
            }
        }
    }

    /// A volume was published anew: what failed before is tried at once. What was done is done again if the driver may have
    /// made files `anew`; one that is not done yet sees them anyway, or the next time.
    pub(super) fn published(&mut self, consumer: &ConsumerId, anew: bool) {
        let Some(walk) = self.walks.get_mut(consumer) else { return };
        match &walk.state {
            State::Failed { .. } => walk.state = State::Waiting,
            State::Done(done) if anew => {
                walk.before = Some(done.clone());
                walk.state = State::Waiting;
            }
            State::Waiting | State::Running { .. } | State::Done(_) => {}
        }
    }

    /// Mounts of a volume were lost, those of one consumer or all: their jobs run again.
    pub(super) fn lost(&mut self, key: &VolumeKey, consumer: Option<&ConsumerId>) {
        let stays = |job: &FsGroupJob| job.key != *key || consumer.is_some_and(|id| job.consumer != *id);
        self.keep_walks(stays);
        self.keep_done(stays);
    }

    /// When one that failed is due again.
    pub(super) fn due(&self) -> Option<Instant> {
        let failed = self.walks.values().filter_map(|walk| match walk.state {
            State::Failed { again, .. } => Some(again),
            _ => None,
        });
        failed.min()
    }

    /// Waits for the next one to end. If the future is dropped, nothing is lost.
    pub(super) async fn ended(&mut self) {
        let Some(ended) = self.running.join_next().await else { return std::future::pending().await };
        // A walk cannot panic, and is never aborted.
        let Ok((consumer, key, result)) = ended else { return };
        self.busy.remove(&key);
        let wanted = self.walks.get_mut(&consumer).filter(|walk| walk.job.key == key);
        if let Some(walk) = wanted.filter(|walk| matches!(walk.state, State::Running { .. })) {
            walk.ended(result);
            if matches!(walk.state, State::Done(_)) {
                self.unsaved |= self.done.insert(walk.job.clone());
            }
        }
        self.begin();
    }

    /// Writes what is not on the disk yet.
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

    /// How it is with each.
    pub(super) fn states(&self) -> BTreeMap<ConsumerId, GroupState> {
        // The state of a consumer with a missing claim does not change: its pod may use the volume without fsGroup.
        let unsure = self.unsure.iter().filter(|(_, what)| **what == Unsure::Driver).map(|(id, _)| id);
        let unsure = unsure.filter(|id| self.done.iter().all(|done| done.consumer != **id));
        let unsure = unsure.map(|id| {
            let reason = "the driver has not reported yet whether it applies fsGroup";
            (id.clone(), GroupState::Pending(reason.to_owned()))
        });
        let walks = self.walks.iter().map(|(id, walk)| (id.clone(), walk.shown()));
        unsure.chain(walks).collect()
    }
}

impl Walk {
    fn end(&self) {
        if let State::Running { ends } = &self.state {
            ends.store(true, Ordering::Relaxed);
        }
    }

    fn ended(&mut self, result: Result<Applied, ApplyError>) {
        let FsGroupJob { key, consumer, fs_group, .. } = &self.job;
        self.state = match result {
            Ok(Applied { seen, changed, failed, first_failure }) => {
                let group = fs_group.group;
                tracing::info!(volume = %key, %consumer, group, seen, changed, failed, "the files are the group's");
                let first = first_failure.map(|errno| errno.to_string()).unwrap_or_default();
                self.before = None;
                State::Done(Done { failed, first, not_again: None })
            }
            Err(error) => {
                tracing::warn!(volume = %key, %consumer, group = fs_group.group, "cannot apply fsGroup, retrying: {error}");
                let reason = error.to_string();
                if let Some(before) = &mut self.before {
                    before.not_again = Some(reason.clone());
                }
                State::Failed { again: Instant::now() + AGAIN, reason }
            }
        };
    }

    fn shown(&self) -> GroupState {
        let group = self.job.fs_group.group;
        match (&self.state, &self.before) {
            // The pod uses the volume, even if a repeated job fails.
            (State::Done(done), _) | (_, Some(done)) => done.shown(group),
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
    fn shown(&self, group: u32) -> GroupState {
        let Self { failed, first, not_again } = self;
        GroupState::Applied(match (not_again, failed) {
            (Some(reason), _) => {
                format!("cannot apply fsGroup {group} to new files, retrying: {reason}")
            }
            (None, 0) => String::new(),
            (None, _) => {
                format!("cannot apply fsGroup {group} to {failed} of its files; first error: {first}")
            }
        })
    }
}

#[cfg(test)]
mod tests;
