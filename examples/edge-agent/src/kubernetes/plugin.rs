//! The task that keeps the volumes as the pods of the node want them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::NodeSegment;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use volume_manager::VolumeKey;
use volume_manager::driver::DriverFacts;
use volume_manager::message::DesiredSet;
use volume_manager::node::core::KnownDriver;
use volume_manager::node::{ChangeKind, Closed, WatchEvent};

use super::super::store::Document;
use super::super::volumes::NodeVolumes;
use super::expansions::Expansions;
use super::follow::Change;
use super::fs_group::{Groups, jobs};
use super::in_use::InUse;
use super::layout::KubeletDirectory;
use super::metadata::{ChangeError, Metadata};
use super::objects;
use super::plan::{Known, Plan, plan};
use super::removed_pods;
use super::retries::Retries;
use super::status::{Seen, node_status};
use super::status_reporter::StatusUpdate;
use super::view::PluginView;
use edge_csi_common::kubernetes::message::{Update, Watch};

/// How long changes are collected before the volumes are updated.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// How often drivers are checked for registration changes.
const DRIVER_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// How long the first status waits for drivers to answer: without one of them it would take the driver from its CSINode.
const DRIVERS_COME: Duration = Duration::from_secs(30);

/// What is on the disk.
pub(super) struct Kept {
    pub(super) objects: Document,
    pub(super) metadata: Metadata,
    pub(super) groups: Groups,
}

/// What the task has.
pub(super) struct Plugin {
    volumes: NodeVolumes,
    kept: Kept,
    directory: KubeletDirectory,
    segment: Option<NodeSegment>,
    status: watch::Sender<Option<StatusUpdate>>,
    view: PluginView,
    /// The watch that the latest change came with.
    watch: u64,
    plan: Option<Plan>,
    expansions: Expansions,
    in_use: InUse,
    /// Whether something was taken from a pod, or may have been before the start.
    pods_removed: bool,
    /// The drivers as they are, and what each said last, also before it was connected to anew.
    drivers: Vec<KnownDriver>,
    said: BTreeMap<DriverName, DriverFacts>,
    /// When the first status is sent at the latest; `None` once it was sent.
    hold_status: Option<Instant>,
    /// What was logged last of why nothing is planned.
    held: String,
    /// When a set is made again, since the last one was not taken.
    again: Option<Instant>,
    retries: Retries,
}

impl Plugin {
    pub(super) fn new(
        volumes: NodeVolumes,
        kept: Kept,
        directory: KubeletDirectory,
        segment: Option<NodeSegment>,
        status: watch::Sender<Option<StatusUpdate>>,
        view: PluginView,
        seed: u64,
    ) -> Self {
        Self {
            volumes,
            kept,
            directory,
            segment,
            status,
            view,
            watch: 0,
            plan: None,
            expansions: Expansions::default(),
            in_use: InUse::default(),
            pods_removed: true,
            drivers: Vec::new(),
            said: BTreeMap::new(),
            hold_status: Some(Instant::now() + DRIVERS_COME),
            held: String::new(),
            again: None,
            retries: Retries::new("the volumes of the pods cannot be wanted", seed),
        }
    }

    /// Runs until the volumes do not run any more.
    pub(super) async fn run(
        mut self,
        mut changes: mpsc::Receiver<Change>,
        mut written: watch::Receiver<u64>,
    ) {
        let mut happened = self.volumes.volumes().watch();
        let mut check = interval(DRIVER_CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Some(Instant::now());
        loop {
            let soon = || Some(due.unwrap_or_else(|| Instant::now() + DEBOUNCE));
            tokio::select! {
                Some(change) = changes.recv() => {
                    due = soon();
                    self.watch = change.watch;
                    let taken = self.take(change.update).await;
                    // The task that sent the change may have ended.
                    let _ = change.taken.send(taken);
                }
                what = happened.next() => match what {
                    Some(WatchEvent::Change(change)) => {
                        due = soon();
                        self.happened(&change.key, &change.kind);
                    }
                    Some(_) => due = soon(),
                    None => return,
                },
                Ok(()) = written.changed() => {
                    if self.in_use.is_written(*written.borrow_and_update()) {
                        due = soon();
                    }
                }
                () = self.expansions.ended() => due = soon(),
                () = self.kept.groups.ended() => due = soon(),
                _ = check.tick() => match self.is_outdated().await {
                    Ok(true) => due = soon(),
                    Ok(false) => {}
                    Err(_) => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if self.settle().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes what happened to a volume.
    fn happened(&mut self, key: &VolumeKey, kind: &ChangeKind) {
        match kind {
            ChangeKind::Unpublished(_) => self.pods_removed = true,
            ChangeKind::Published(consumer) => {
                let policy = self.plan.as_ref().map(|plan| plan.set.policy(&key.driver));
                let anew = policy.is_some_and(|policy| policy.requires_republish);
                self.kept.groups.published(consumer, anew);
            }
            ChangeKind::MountLost(consumer) => self.kept.groups.lost(key, consumer.as_ref()),
            _ => {}
        }
    }

    /// Takes a change: from when this returns it is on the disk.
    async fn take(&mut self, update: Update) -> Result<Watch, ChangeError> {
        let after = self.kept.metadata.after(update).inspect_err(|error| tracing::error!("{error}"))?;
        if after == self.kept.metadata {
            return Ok(after.watch());
        }
        let saved = objects::save(&self.kept.objects, &after).await;
        saved.map_err(|error| ChangeError::NotKept { reason: error.to_string() })?;
        self.kept.metadata = after;
        let Watch { source, revision } = self.kept.metadata.watch();
        tracing::debug!(source, revision, objects = self.kept.metadata.len(), "objects taken");
        Ok(self.kept.metadata.watch())
    }

    /// Whether something has changed without a message.
    async fn is_outdated(&mut self) -> Result<bool, Closed> {
        let drivers = self.volumes.volumes().drivers().await?;
        let due = [self.expansions.due(), self.kept.groups.due(), self.again];
        let is_due = due.into_iter().flatten().any(|due| due <= Instant::now());
        Ok(drivers != self.drivers || is_due || self.hold_status.is_some())
    }

    /// Updates the volumes to the pods, and publishes the status.
    async fn settle(&mut self) -> Result<(), Closed> {
        if self.pods_removed && !self.volumes.shown().refused.is_empty() {
            self.volumes.settle_again().await;
        }
        let mut seen = self.observe().await?;
        self.again = None;
        if self.kept.metadata.watch() != Watch::default() {
            let before = self.volumes.desired().await;
            // Where the set was lost, volumes may be recorded that no pod wants any more.
            let lost = before.is_none();
            let before = before.unwrap_or_else(|| Arc::new(DesiredSet::new(0, Vec::new())));
            let mounted = seen.mounted();
            let known = Known {
                metadata: &self.kept.metadata,
                before: &before,
                mounted: &mounted,
                in_use: &self.in_use,
            };
            let planned = plan(known, &self.directory);
            let changed = lost || planned.set != *before;
            if self.may_plan(&planned, &seen) {
                if changed {
                    let wanted = planned.consumers();
                    self.kept.groups.let_go(|id| wanted.contains(id)).await;
                    self.want(planned.set.clone()).await;
                    seen = self.observe().await?;
                }
                self.expansions.want(self.volumes.volumes(), &planned.expansions, Instant::now());
                let (jobs, unsure) = jobs(&planned, &seen);
                self.kept.groups.want(jobs, unsure, Instant::now());
                self.kept.groups.save().await;
                seen.groups = self.kept.groups.states();
                self.clear(&planned, &seen).await;
                self.plan = Some(planned);
            }
        }
        self.publish(&seen);
        Ok(())
    }

    async fn observe(&mut self) -> Result<Seen, Closed> {
        let volumes = self.volumes.volumes();
        let mut seen = Seen { drivers: volumes.drivers().await?, ..Seen::default() };
        for key in volumes.list().await? {
            if let Some(explanation) = volumes.explain(&key).await? {
                seen.volumes.insert(key, explanation);
            }
        }
        seen.refused = self.volumes.shown().refused.to_vec();
        seen.expanded = self.expansions.done();
        seen.groups = self.kept.groups.states();
        self.drivers.clone_from(&seen.drivers);
        self.said.retain(|name, _| seen.drivers.iter().any(|driver| driver.name == *name));
        for driver in &mut seen.drivers {
            match &driver.facts {
                Some(facts) => drop(self.said.insert(driver.name.clone(), facts.clone())),
                None => driver.facts = self.said.get(&driver.name).cloned(),
            }
        }
        Ok(seen)
    }

    /// Whether a plan removes nothing from a pod with missing objects. It could only if the previous set was lost.
    fn may_plan(&mut self, planned: &Plan, seen: &Seen) -> bool {
        let unknown: BTreeSet<_> = planned.unknown.iter().collect();
        let mut holders = seen.volumes.values().flat_map(|explanation| &explanation.consumers);
        match holders.find(|holder| holder.wanted && unknown.contains(&holder.consumer)) {
            None => {
                self.held.clear();
                true
            }
            Some(holder) => {
                let held = holder.consumer.to_string();
                if held != self.held {
                    tracing::warn!(
                        consumer = held,
                        "a volume is mounted for a pod with an unknown claim; volumes stay unchanged until it is known"
                    );
                    self.held = held;
                }
                false
            }
        }
    }

    async fn want(&mut self, set: DesiredSet) {
        let volumes = set.volumes.len();
        match self.volumes.take_own(set).await {
            Ok(taken) => {
                self.retries.succeeded();
                tracing::info!(
                    revision = taken.revision,
                    volumes,
                    wanted = taken.wanted,
                    released = taken.released,
                    refused = taken.refused.len(),
                    "the volumes of the pods are wanted"
                );
            }
            Err(error) => {
                self.again =
                    Some(Instant::now() + self.retries.failed(&edge_csi_common::process::chain(&error)));
            }
        }
    }

    /// Removes the directories of pods that have nothing here any more.
    async fn clear(&mut self, planned: &Plan, seen: &Seen) {
        if !std::mem::take(&mut self.pods_removed) {
            return;
        }
        let wanted = planned.set.volumes.iter().flat_map(|volume| &volume.consumers);
        let held = seen.volumes.values().flat_map(|explanation| &explanation.consumers);
        let ids = wanted.map(|consumer| consumer.id()).chain(held.map(|holder| &holder.consumer));
        let in_use: BTreeSet<_> = ids.map(|id| pod_of(id.as_str()).to_owned()).collect();
        let pods = self.directory.pods();
        let cleared = tokio::task::spawn_blocking(move || {
            removed_pods::pods(&pods).iter().filter(|(uid, _)| !in_use.contains(uid)).for_each(|(_, pod)| {
                removed_pods::remove_empty(pod);
            });
        });
        // An empty directory that stays does no harm.
        let _ = cleared.await;
    }

    fn publish(&mut self, seen: &Seen) {
        let pod_volumes = self.plan.as_ref().map_or(0, |plan| plan.pod_volumes.len());
        self.view.knows(self.kept.metadata.len(), pod_volumes);
        if let Some(until) = self.hold_status {
            let all = seen.drivers.iter().all(|driver| driver.facts.is_some());
            if Instant::now() < until && (seen.drivers.is_empty() || !all) {
                return;
            }
            self.hold_status = None;
        }
        let status = node_status(self.plan.as_ref(), seen, self.segment.as_ref());
        let (source, watch, in_use) = (self.kept.metadata.watch().source, self.watch, &mut self.in_use);
        self.status.send_if_modified(|before| {
            let is_new = before.as_ref().is_none_or(|before| {
                (before.source, before.watch) != (source, watch) || before.status != status
            });
            if is_new {
                *before = Some(StatusUpdate { number: in_use.report(&status), source, watch, status });
            }
            is_new
        });
    }
}

/// The UID of the pod that a consumer is.
fn pod_of(consumer: &str) -> &str {
    consumer.split_once('/').map_or(consumer, |(uid, _)| uid)
}
