//! Lost mounts, and periodic republishing and inspection.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Job, JobKind};
use super::event::{Action, CheckResult, Inspect, PathCheck};
use super::timers::Alarm;
use super::{Epoch, Node, Slot, mount_checks};
use crate::lifecycle::{Base, Event as Lifecycle, LostMount, TargetState};
use crate::mounts::{MountIdentity, MountTable};
use crate::name::ConsumerId;
use crate::node::change::ChangeKind;

impl Node {
    pub(super) fn mounts_seen(&mut self, table: Arc<MountTable>, since: Epoch, now: Duration) {
        self.table = table;
        // The table may be older than the last job of a volume. Each job has its own verification.
        let settled = |entry: &Entry| {
            entry.health.last_activity < since.0 && entry.is_quiet() && entry.machine.is_some()
        };
        let table = &self.table;
        let lost: Vec<_> = self
            .volumes
            .iter()
            .filter(|(_, entry)| entry.machine.is_some() && entry.has_lost_mounts(table))
            .map(|(slot, entry)| (*slot, settled(entry), entry.health.remount_not_before))
            .collect();
        for (slot, settled, remount_not_before) in lost {
            if !settled {
                self.mounts_missing.insert(slot);
            } else if now < remount_not_before {
                self.timers.set(slot, Alarm::Remount, remount_not_before);
            } else {
                self.report_lost_mounts(slot, now);
            }
        }
    }

    /// Requests another read of the mount table for volumes with inconclusive losses, as soon as they have no job.
    pub(super) fn request_table_read(&mut self) {
        let volumes = &self.volumes;
        let waits = |slot: &Slot| volumes.get(slot).is_some_and(|entry| !entry.is_quiet());
        let before = self.mounts_missing.len();
        self.mounts_missing.retain(waits);
        if self.mounts_missing.len() < before {
            self.actions.push(Action::ReadTable);
        }
    }

    /// Reports every missing mount to the volume's state machine.
    pub(super) fn report_lost_mounts(&mut self, slot: Slot, now: Duration) {
        let (back_off, seed) = (self.settings.back_off, self.settings.jitter_seed ^ slot.0);
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let lost_mounts = entry.lost_mounts(&self.table);
        if !lost_mounts.is_empty() {
            // Remounts are delayed by a back-off, in case another program keeps removing the mount.
            let wait = back_off.wait(entry.health.remount_attempts.max(1), seed);
            if now > entry.health.remount_not_before.saturating_add(wait.saturating_mul(2)) {
                entry.health.remount_attempts = 0;
            }
            entry.health.remount_attempts = entry.health.remount_attempts.saturating_add(1);
            entry.health.remount_not_before =
                now.saturating_add(back_off.wait(entry.health.remount_attempts, seed));
        }
        for lost in lost_mounts {
            self.mount_lost(slot, lost, now);
        }
    }

    fn mount_lost(&mut self, slot: Slot, lost: LostMount, now: Duration) {
        let consumer = match &lost {
            LostMount::Staging => None,
            LostMount::Target(consumer) => Some(consumer.clone()),
        };
        self.notify(slot, ChangeKind::MountLost(consumer));
        self.feed(slot, Lifecycle::MountLost(lost), now);
    }

    /// Arms the timers of a published volume.
    pub(super) fn arm_timers(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let republishes =
            self.drivers.get(&entry.key.driver).is_some_and(|driver| driver.policy.requires_republish);
        let published = entry.published().next().is_some();
        // The mounts to inspect may become known only after the first observation.
        let inspects = published || entry.mount_to_inspect().is_some();
        if published && republishes && !self.timers.is_set(slot, Alarm::Republish) {
            let at = now.saturating_add(self.settings.republish_interval);
            self.timers.set(slot, Alarm::Republish, at);
        }
        if inspects && !self.timers.is_set(slot, Alarm::Inspect) {
            self.timers.set(slot, Alarm::Inspect, now.saturating_add(self.settings.inspect_interval));
        }
    }

    pub(super) fn republish(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let published: Vec<ConsumerId> = entry.published().map(|(consumer, _)| consumer.clone()).collect();
        // No intent is set while the store is unavailable.
        if self.commits.unavailable().is_none() {
            for consumer in published {
                self.feed(slot, Lifecycle::Republish(consumer), now);
            }
        }
        self.arm_timers(slot, now);
    }

    pub(super) fn inspect(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if entry.is_quiet()
            && let Some((lost, path)) = entry.mount_to_inspect()
        {
            entry.health.inspections = entry.health.inspections.wrapping_add(1);
            entry.job = Some(Job { kind: JobKind::Inspection(lost), since: now });
            let check = PathCheck { path, inspect: Inspect::Always, remove: Vec::new() };
            self.actions.push(Action::Check { slot, check });
        }
        self.arm_timers(slot, now);
    }

    pub(super) fn inspected(
        &mut self,
        slot: Slot,
        inspected_mount: LostMount,
        observed: &CheckResult,
        now: Duration,
    ) {
        let Ok(observation) = observed else { return };
        let is_dead = |entry: &Entry| {
            let mut mounts = entry.expected_mounts().filter(|(mount, _, _)| *mount == inspected_mount);
            mounts.any(|(_, path, mount)| mount_checks::is_dead(path, mount, observation))
        };
        if self.volumes.get(&slot).is_some_and(is_dead) {
            self.mount_lost(slot, inspected_mount, now);
        }
    }
}

impl Entry {
    /// Returns the expected mounts.
    fn expected_mounts(&self) -> impl Iterator<Item = (LostMount, &std::path::Path, &MountIdentity)> {
        let staged = self.record.staged.as_ref().filter(|_| self.snapshot().base == Base::VolReady);
        let staged = staged.map(|mount| (LostMount::Staging, self.staging.as_path(), mount));
        let targets = self.record.consumers.iter().filter_map(|(id, consumer)| {
            let mount = consumer.mounted.as_ref()?;
            (self.target(id)?.state == TargetState::Published)
                .then(|| (LostMount::Target(id.clone()), consumer.spec.target_path().as_path(), mount))
        });
        staged.into_iter().chain(targets)
    }

    fn has_lost_mounts(&self, table: &MountTable) -> bool {
        self.expected_mounts().any(|(_, path, mount)| mount_checks::is_lost(path, mount, table))
    }

    fn lost_mounts(&self, table: &MountTable) -> Vec<LostMount> {
        let lost =
            self.expected_mounts().filter(|(_, path, mount)| mount_checks::is_lost(path, mount, table));
        lost.map(|(lost, _, _)| lost).collect()
    }

    /// Returns the next mount whose server can die unnoticed by the mount table, in rotation.
    fn mount_to_inspect(&self) -> Option<(LostMount, std::path::PathBuf)> {
        let is_fuse =
            |mount: &MountIdentity| mount.fs_type.to_str().is_some_and(|kind| kind.starts_with("fuse"));
        let mounts: Vec<_> = self.expected_mounts().filter(|(_, _, mount)| is_fuse(mount)).collect();
        let next = self.health.inspections.checked_rem(mounts.len())?;
        mounts.into_iter().nth(next).map(|(lost, path, _)| (lost, path.to_owned()))
    }
}
