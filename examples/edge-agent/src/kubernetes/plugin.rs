//! The task that reconciles the volumes with the pods of the node.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;
use csi_proxy::NodeSegment;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use volume_manager::VolumeKey;
use volume_manager::advanced::message::DesiredSet;
use volume_manager::driver::DriverFacts;
use volume_manager::node::{ChangeKind, Closed, KnownDriver, WatchEvent};

use super::super::store::Document;
use super::super::volumes::NodeVolumes;
use super::expansions::Expansions;
use super::follow::Change;
use super::fs_group::{Groups, jobs};
use super::in_use::InUse;
use super::layout::KubeletDirectory;
use super::metadata::{ChangeError, Metadata};
use super::objects;
use super::plan::{Plan, PlanInput, plan};
use super::removed_pods;
use super::retries::Retries;
use super::status::{Observation, node_status};
use super::status_reporter::StatusUpdate;
use super::view::PluginView;
use edge_csi_common::kubernetes::message::{Update, Watch};

/// How long changes are collected before the volumes are updated.
const DEBOUNCE: Duration = Duration::from_millis(200);

/// How often drivers are checked for registration changes.
const DRIVER_CHECK_INTERVAL: Duration = Duration::from_secs(2);

/// The maximum wait of the first status for the drivers. A status without a driver removes it from the CSINode.
const FIRST_STATUS_WAIT: Duration = Duration::from_secs(30);

/// The saved state of the plugin.
pub(super) struct SavedState {
    pub(super) objects: Document,
    pub(super) metadata: Metadata,
    pub(super) groups: Groups,
}

/// The state of the task.
pub(super) struct Plugin {
    volumes: NodeVolumes,
    saved: SavedState,
    directory: KubeletDirectory,
    segment: Option<NodeSegment>,
    status: watch::Sender<Option<StatusUpdate>>,
    view: PluginView,
    /// The number of the watch that received the latest change.
    watch: u64,
    plan: Option<Plan>,
    expansions: Expansions,
    in_use: InUse,
    /// Whether a volume was unpublished since the last cleanup, or may have been before the start.
    pods_removed: bool,
    /// The drivers at the last observation.
    drivers: Vec<KnownDriver>,
    /// The last facts of each driver, also while it reconnects.
    last_facts: BTreeMap<DriverName, DriverFacts>,
    /// When the first status is sent at the latest; `None` once it was sent.
    hold_status: Option<Instant>,
    /// The consumer that was last logged as blocking the plan; empty if there is none.
    blocked_by: String,
    /// When a refused set is retried.
    retry_at: Option<Instant>,
    retries: Retries,
}

impl Plugin {
    pub(super) fn new(
        volumes: NodeVolumes,
        saved: SavedState,
        directory: KubeletDirectory,
        segment: Option<NodeSegment>,
        status: watch::Sender<Option<StatusUpdate>>,
        view: PluginView,
        seed: u64,
    ) -> Self {
        Self {
            volumes,
            saved,
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
            last_facts: BTreeMap::new(),
            hold_status: Some(Instant::now() + FIRST_STATUS_WAIT),
            blocked_by: String::new(),
            retry_at: None,
            retries: Retries::new("cannot update the desired set of the pods' volumes", seed),
        }
    }

    /// Runs until the volume manager has stopped.
    pub(super) async fn run(
        mut self,
        mut changes: mpsc::Receiver<Change>,
        mut written: watch::Receiver<u64>,
    ) {
        let mut events = self.volumes.volumes().watch();
        let mut check = interval(DRIVER_CHECK_INTERVAL);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut due = Some(Instant::now());
        loop {
            let soon = || Some(due.unwrap_or_else(|| Instant::now() + DEBOUNCE));
            tokio::select! {
                Some(change) = changes.recv() => {
                    due = soon();
                    self.watch = change.watch;
                    let result = self.apply(change.update).await;
                    // The task that sent the change may have ended.
                    let _ = change.applied.send(result);
                }
                event = events.next() => match event {
                    Some(WatchEvent::Change(change)) => {
                        due = soon();
                        self.handle_change(&change.key, &change.kind);
                    }
                    Some(_) => due = soon(),
                    None => return,
                },
                Ok(()) = written.changed() => {
                    if self.in_use.confirm_written(*written.borrow_and_update()) {
                        due = soon();
                    }
                }
                () = self.expansions.ended() => due = soon(),
                () = self.saved.groups.ended() => due = soon(),
                _ = check.tick() => match self.is_outdated().await {
                    Ok(true) => due = soon(),
                    Ok(false) => {}
                    Err(_) => return,
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    due = None;
                    if self.reconcile().await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Handles a change of a volume.
    fn handle_change(&mut self, key: &VolumeKey, kind: &ChangeKind) {
        match kind {
            ChangeKind::Unpublished(_) => self.pods_removed = true,
            ChangeKind::Published(consumer) => {
                let policy = self.plan.as_ref().map(|plan| plan.set.policy(&key.driver));
                let new_files = policy.is_some_and(|policy| policy.requires_republish);
                self.saved.groups.published(consumer, new_files);
            }
            ChangeKind::MountLost(consumer) => self.saved.groups.mount_lost(key, consumer.as_ref()),
            _ => {}
        }
    }

    /// Applies a change of the objects. The change is on the disk when this returns.
    async fn apply(&mut self, update: Update) -> Result<Watch, ChangeError> {
        let after = self.saved.metadata.after(update).inspect_err(|error| tracing::error!("{error}"))?;
        if after == self.saved.metadata {
            return Ok(after.position());
        }
        let result = objects::save(&self.saved.objects, &after).await;
        result.map_err(|error| ChangeError::NotSaved { reason: error.to_string() })?;
        self.saved.metadata = after;
        let Watch { source, revision, .. } = self.saved.metadata.position();
        tracing::debug!(source, revision, objects = self.saved.metadata.len(), "objects updated");
        Ok(self.saved.metadata.position())
    }

    /// Whether a driver has changed, a retry is due, or the first status waits.
    async fn is_outdated(&mut self) -> Result<bool, Closed> {
        let drivers = self.volumes.volumes().drivers().await?;
        let due = [self.expansions.next_retry(), self.saved.groups.next_retry(), self.retry_at];
        let is_due = due.into_iter().flatten().any(|due| due <= Instant::now());
        Ok(drivers != self.drivers || is_due || self.hold_status.is_some())
    }

    /// Updates the volumes for the pods, and publishes the status.
    async fn reconcile(&mut self) -> Result<(), Closed> {
        if self.pods_removed && !self.volumes.summary().refused.is_empty() {
            self.volumes.retry_refused().await;
        }
        let mut seen = self.observe().await?;
        self.retry_at = None;
        if self.saved.metadata.source() != 0 {
            let before = self.volumes.desired().await;
            // After the loss of the set, volumes may be recorded that no pod wants any more.
            let lost = before.is_none();
            let before = before.unwrap_or_else(|| Arc::new(DesiredSet::new(0, Vec::new())));
            let mounted = seen.mounted();
            let input = PlanInput {
                metadata: &self.saved.metadata,
                before: &before,
                mounted: &mounted,
                in_use: &self.in_use,
            };
            let planned = plan(input, &self.directory);
            let changed = lost || planned.set != *before;
            if self.may_plan(&planned, &seen) {
                if changed {
                    let wanted = planned.consumers();
                    self.saved.groups.release(|id| wanted.contains(id)).await;
                    self.update_desired(planned.set.clone()).await;
                    seen = self.observe().await?;
                }
                self.expansions.set_wanted(self.volumes.volumes(), &planned.expansions, Instant::now());
                let (jobs, unknown) = jobs(&planned, &seen);
                self.saved.groups.set_wanted(jobs, unknown, Instant::now());
                self.saved.groups.save().await;
                seen.groups = self.saved.groups.states();
                self.remove_pod_directories(&planned, &seen).await;
                self.plan = Some(planned);
            }
        }
        self.publish(&seen);
        Ok(())
    }

    async fn observe(&mut self) -> Result<Observation, Closed> {
        let volumes = self.volumes.volumes();
        let mut seen = Observation { drivers: volumes.drivers().await?, ..Observation::default() };
        for key in volumes.list().await? {
            if let Some(explanation) = volumes.explain(&key).await? {
                seen.volumes.insert(key, explanation);
            }
        }
        seen.refused = self.volumes.summary().refused.to_vec();
        seen.expanded = self.expansions.done();
        seen.groups = self.saved.groups.states();
        self.drivers.clone_from(&seen.drivers);
        self.last_facts.retain(|name, _| seen.drivers.iter().any(|driver| driver.name == *name));
        for driver in &mut seen.drivers {
            match &driver.facts {
                Some(facts) => drop(self.last_facts.insert(driver.name.clone(), facts.clone())),
                None => driver.facts = self.last_facts.get(&driver.name).cloned(),
            }
        }
        Ok(seen)
    }

    /// Whether a plan removes no volume of a pod with missing objects. It may do so only after the loss of the
    /// previous set.
    fn may_plan(&mut self, planned: &Plan, seen: &Observation) -> bool {
        let unknown: BTreeSet<_> = planned.unknown.iter().collect();
        let mut holders = seen.volumes.values().flat_map(|explanation| &explanation.consumers);
        match holders.find(|holder| holder.wanted && unknown.contains(&holder.consumer)) {
            None => {
                self.blocked_by.clear();
                true
            }
            Some(holder) => {
                let consumer = holder.consumer.to_string();
                if consumer != self.blocked_by {
                    tracing::warn!(
                        consumer,
                        "a volume is mounted for a pod with an unknown claim; volumes stay unchanged until the claim is known"
                    );
                    self.blocked_by = consumer;
                }
                false
            }
        }
    }

    async fn update_desired(&mut self, set: DesiredSet) {
        let volumes = set.volumes.len();
        match self.volumes.apply_own(set).await {
            Ok(reconciled) => {
                self.retries.succeeded();
                tracing::info!(
                    revision = reconciled.revision,
                    volumes,
                    wanted = reconciled.wanted,
                    released = reconciled.released,
                    refused = reconciled.refused.len(),
                    "the desired set of the pods' volumes is updated"
                );
            }
            Err(error) => {
                self.retry_at =
                    Some(Instant::now() + self.retries.failed(&edge_csi_common::process::chain(&error)));
            }
        }
    }

    /// Removes the empty directories of pods without volumes.
    async fn remove_pod_directories(&mut self, planned: &Plan, seen: &Observation) {
        if !std::mem::take(&mut self.pods_removed) {
            return;
        }
        let wanted = planned.set.volumes.iter().flat_map(|volume| &volume.consumers);
        let held = seen.volumes.values().flat_map(|explanation| &explanation.consumers);
        let ids = wanted.map(|consumer| consumer.id()).chain(held.map(|holder| &holder.consumer));
        let in_use: BTreeSet<_> = ids.map(|id| pod_uid(id.as_str()).to_owned()).collect();
        let pods = self.directory.pods();
        let removed = tokio::task::spawn_blocking(move || {
            removed_pods::pods(&pods).iter().filter(|(uid, _)| !in_use.contains(uid)).for_each(|(_, pod)| {
                removed_pods::remove_empty(pod);
            });
        });
        // An empty directory that stays does no harm.
        let _ = removed.await;
    }

    fn publish(&mut self, seen: &Observation) {
        let pod_volumes = self.plan.as_ref().map_or(0, |plan| plan.pod_volumes.len());
        self.view.set_counts(self.saved.metadata.len(), pod_volumes);
        if let Some(until) = self.hold_status {
            let all = seen.drivers.iter().all(|driver| driver.facts.is_some());
            if Instant::now() < until && (seen.drivers.is_empty() || !all) {
                return;
            }
            self.hold_status = None;
        }
        let status = node_status(self.plan.as_ref(), seen, self.segment.as_ref());
        let (source, watch, in_use) = (self.saved.metadata.source(), self.watch, &mut self.in_use);
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

/// Returns the UID of the pod in a consumer's id.
fn pod_uid(consumer: &str) -> &str {
    consumer.split_once('/').map_or(consumer, |(uid, _)| uid)
}
