//! Mounts that go behind everybody's back, and mounts that are called for again.

use std::sync::Arc;
use std::time::Duration;

use super::entry::{Entry, Job, What};
use super::event::{Action, Inspect, Look, LookError, Sight};
use super::timers::Alarm;
use super::{Epoch, Node, Slot, findings};
use crate::lifecycle::{Base, Event as Lifecycle, Lost, TargetState};
use crate::mounts::{MountIdentity, MountTable};
use crate::name::ConsumerId;
use crate::node::change::ChangeKind;

impl Node {
    pub(super) fn mounts_seen(&mut self, table: Arc<MountTable>, since: Epoch, now: Duration) {
        self.table = table;
        // What something happened to since may not be in the table yet; it was looked at, or will be.
        let settled =
            |entry: &Entry| entry.health.checked < since.0 && entry.is_quiet() && entry.machine.is_some();
        let table = &self.table;
        let lost: Vec<_> = self
            .volumes
            .iter()
            .filter(|(_, entry)| entry.machine.is_some() && entry.has_lost(table))
            .map(|(slot, entry)| (*slot, settled(entry), entry.health.heal_at))
            .collect();
        for (slot, settled, heal_at) in lost {
            if !settled {
                self.missed.insert(slot);
            } else if now < heal_at {
                self.timers.set(slot, Alarm::Heal, heal_at);
            } else {
                self.find_losses(slot, now);
            }
        }
    }

    /// Has the table read again for volumes that it said nothing certain of, as soon as nothing of them runs.
    pub(super) fn seek_missed(&mut self) {
        let volumes = &self.volumes;
        let waits = |slot: &Slot| volumes.get(slot).is_some_and(|entry| !entry.is_quiet());
        let before = self.missed.len();
        self.missed.retain(waits);
        if self.missed.len() < before {
            self.actions.push(Action::ReadTable);
        }
    }

    /// Tells a volume's machine of every mount that should be in the table and is not.
    pub(super) fn find_losses(&mut self, slot: Slot, now: Duration) {
        let (back_off, seed) = (self.settings.back_off, self.settings.jitter_seed ^ slot.0);
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let losses = entry.losses(&self.table);
        if !losses.is_empty() {
            // Something that takes every mount away at once is not to be fought without a pause.
            let wait = back_off.wait(entry.health.losses.max(1), seed);
            if now > entry.health.heal_at.saturating_add(wait.saturating_mul(2)) {
                entry.health.losses = 0;
            }
            entry.health.losses = entry.health.losses.saturating_add(1);
            entry.health.heal_at = now.saturating_add(back_off.wait(entry.health.losses, seed));
        }
        for lost in losses {
            self.lose(slot, lost, now);
        }
    }

    fn lose(&mut self, slot: Slot, lost: Lost, now: Duration) {
        let consumer = match &lost {
            Lost::Staging => None,
            Lost::Target(consumer) => Some(consumer.clone()),
        };
        self.tell(slot, ChangeKind::MountLost(consumer));
        self.feed(slot, Lifecycle::Lost(lost), now);
    }

    /// Sets the alarms of a volume that has something published.
    pub(super) fn keep_watch(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let republishes =
            self.drivers.get(&entry.key.driver).is_some_and(|driver| driver.policy.requires_republish);
        let published = entry.published().next().is_some();
        // Which mounts there are to look at is known when they were seen, which may be later.
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
        // While the store takes no intents, none is made.
        if self.commits.trouble().is_none() {
            for consumer in published {
                self.feed(slot, Lifecycle::Republish(consumer), now);
            }
        }
        self.keep_watch(slot, now);
    }

    pub(super) fn inspect(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        if entry.is_quiet()
            && let Some((lost, path)) = entry.mount_to_inspect()
        {
            entry.health.inspections = entry.health.inspections.wrapping_add(1);
            entry.job = Some(Job { what: What::Inspection(lost), since: now });
            let look = Look { path, inspect: Inspect::Always, remove: Vec::new() };
            self.actions.push(Action::Look { slot, look });
        }
        self.keep_watch(slot, now);
    }

    pub(super) fn inspected(
        &mut self,
        slot: Slot,
        looked_at: Lost,
        seen: &Result<Sight, LookError>,
        now: Duration,
    ) {
        let Ok(sight) = seen else { return };
        let is_dead = |entry: &Entry| {
            let mut mounts = entry.expected_mounts().filter(|(whose, _, _)| *whose == looked_at);
            mounts.any(|(_, path, mount)| findings::is_dead(path, mount, sight))
        };
        if self.volumes.get(&slot).is_some_and(is_dead) {
            self.lose(slot, looked_at, now);
        }
    }
}

impl Entry {
    /// The mounts that were seen and should be there, each with whose it is.
    fn expected_mounts(&self) -> impl Iterator<Item = (Lost, &std::path::Path, &MountIdentity)> {
        let staged = self.record.staged.as_ref().filter(|_| self.snapshot().base == Base::VolReady);
        let staged = staged.map(|mount| (Lost::Staging, self.staging.as_path(), mount));
        let targets = self.record.consumers.iter().filter_map(|(id, consumer)| {
            let mount = consumer.mounted.as_ref()?;
            (self.target(id)?.state == TargetState::Published)
                .then(|| (Lost::Target(id.clone()), consumer.spec.target_path().as_path(), mount))
        });
        staged.into_iter().chain(targets)
    }

    fn has_lost(&self, table: &MountTable) -> bool {
        self.expected_mounts().any(|(_, path, mount)| findings::is_lost(path, mount, table))
    }

    fn losses(&self, table: &MountTable) -> Vec<Lost> {
        let lost = self.expected_mounts().filter(|(_, path, mount)| findings::is_lost(path, mount, table));
        lost.map(|(lost, _, _)| lost).collect()
    }

    /// A mount whose server can die without the mount table showing it, each in turn.
    fn mount_to_inspect(&self) -> Option<(Lost, std::path::PathBuf)> {
        let is_served =
            |mount: &MountIdentity| mount.fs_type.to_str().is_some_and(|kind| kind.starts_with("fuse"));
        let served: Vec<_> = self.expected_mounts().filter(|(_, _, mount)| is_served(mount)).collect();
        let turn = self.health.inspections.checked_rem(served.len())?;
        served.into_iter().nth(turn).map(|(lost, path, _)| (lost, path.to_owned()))
    }
}
