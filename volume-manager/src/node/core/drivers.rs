//! Registration, connection and replacement of drivers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use super::timers::Alarm;
use super::{CallQueue, DriverEntry, DriverPresence, Node, Slot};
use crate::driver::{DriverFacts, DriverPolicy, VolumeSpec};
use crate::lifecycle::{Attach, DriverCapabilities, Event as Lifecycle, Failure, Outcome, Policy, Volume};
use crate::node::error::{InspectError, PublishError, bounded};

impl Node {
    /// Returns the entry of a driver, and creates it if needed.
    pub(super) fn driver(&mut self, name: &DriverName) -> &mut DriverEntry {
        let limit = self.settings.calls_per_driver;
        self.drivers.entry(name.clone()).or_insert_with(|| DriverEntry {
            policy: Arc::new(DriverPolicy::default()),
            presence: DriverPresence::Unregistered,
            facts: None,
            queue: CallQueue::new(limit),
            volumes: BTreeSet::new(),
        })
    }

    pub(super) fn detach_from_driver(&mut self, name: &DriverName, slot: Slot) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        driver.volumes.remove(&slot);
        driver.queue.remove(slot);
        if driver.volumes.is_empty() && !driver.is_registered() && driver.queue.in_flight() == 0 {
            self.drivers.remove(name);
        }
    }

    pub(super) fn register(&mut self, name: DriverName, policy: DriverPolicy) {
        let driver = self.driver(&name);
        if !driver.is_registered() {
            driver.presence = DriverPresence::Connecting { last_error: None };
        }
        driver.policy = Arc::new(policy);
    }

    /// Keeps the cause, which explains why the driver's volumes wait.
    pub(super) fn unreachable(&mut self, name: &DriverName, error: &str) {
        if let Some(DriverEntry { presence: DriverPresence::Connecting { last_error }, .. }) =
            self.drivers.get_mut(name)
        {
            *last_error = Some(bounded(error));
        }
    }

    pub(super) fn connected(
        &mut self,
        facts: Box<DriverFacts>,
        earlier_processes_ended: bool,
        now: Duration,
    ) {
        let name = facts.name.clone();
        let driver = self.driver(&name);
        driver.presence = DriverPresence::Connected;
        driver.facts = Some(facts);
        let slots: Vec<_> = driver.volumes.iter().copied().collect();
        for slot in slots {
            let Some(entry) = self.volumes.get(&slot) else { continue };
            match entry.machine {
                None => self.activate(slot, now),
                Some(_) if earlier_processes_ended => self.driver_restarted(slot, now),
                Some(_) => {
                    if let Some(capabilities) = self.capabilities(slot) {
                        self.feed(slot, Lifecycle::Reconnected(capabilities), now);
                    }
                    self.enqueue(slot);
                }
            }
            self.arm_timers(slot, now);
        }
    }

    /// Handles a new process of the driver: no call of the old process is running.
    fn driver_restarted(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        // The old call waits for a call slot, or for the check before it is sent. It must end first; otherwise the
        // state machine would mistake the end of a call to the new process for the end of the old call.
        if let Some(call) = entry.awaited_call().cloned() {
            if let Some(driver) = self.drivers.get_mut(&entry.key.driver) {
                driver.queue.remove(slot);
            }
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Failed(Failure::Uncertain) }, now);
        }
        let Some(capabilities) = self.capabilities(slot) else { return };
        self.timers.clear(slot, |alarm| matches!(alarm, Alarm::Resume(_)));
        self.feed(slot, Lifecycle::DriverRestarted(capabilities), now);
        self.enqueue(slot);
    }

    /// Handles a lost connection. The driver is still registered.
    pub(super) fn disconnected(&mut self, name: &DriverName) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        if driver.is_connected() {
            driver.presence = DriverPresence::Connecting { last_error: None };
        }
        let slots: Vec<_> = driver.volumes.iter().copied().collect();
        for slot in slots {
            let Some(entry) = self.volumes.get_mut(&slot) else { continue };
            for (_, reply) in std::mem::take(&mut entry.queries) {
                self.answer(reply, Err(InspectError::NoDriver { driver: name.clone() }));
            }
        }
    }

    /// Handles a deregistration.
    pub(super) fn deregistered(&mut self, name: &DriverName) {
        self.disconnected(name);
        if let Some(driver) = self.drivers.get_mut(name) {
            driver.presence = DriverPresence::Unregistered;
        }
        if let Some(driver) = self.drivers.get(name)
            && driver.volumes.is_empty()
            && driver.queue.in_flight() == 0
        {
            self.drivers.remove(name);
        }
    }

    /// Returns the capabilities of the driver for this volume.
    fn capabilities(&self, slot: Slot) -> Option<DriverCapabilities> {
        let entry = self.volumes.get(&slot)?;
        let facts = self.drivers.get(&entry.key.driver)?.facts.as_ref()?;
        // An ephemeral volume is created and deleted by its publish and unpublish calls, with no calls around them.
        if entry.record.spec.is_ephemeral() {
            return Some(DriverCapabilities::default());
        }
        let mut capabilities = facts.capabilities.lifecycle();
        // The controller calls of a volume that this node does not attach are made elsewhere.
        capabilities.controller_expand &= entry.record.spec.attach() == Attach::Here;
        Some(capabilities)
    }

    /// Creates the state machine of a volume when its driver is known.
    pub(super) fn activate(&mut self, slot: Slot, now: Duration) {
        let Some(capabilities) = self.capabilities(slot) else { return };
        let Some(entry) = self.volumes.get(&slot) else { return };
        let Some(policy) = self.drivers.get(&entry.key.driver).map(|driver| Arc::clone(&driver.policy))
        else {
            return;
        };
        if !policy.admits(&entry.record.spec) {
            let needs_teardown = entry.needs_teardown();
            self.refuse(slot);
            // Earlier calls must still be undone.
            if !needs_teardown {
                return;
            }
        }
        let Some(entry) = self.volumes.get(&slot) else { return };
        let attach = policy.attach(&entry.record.spec);
        let boot = self.boot;
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(snapshot) = entry.inactive_snapshot().cloned() else { return };
        let volume = Volume::restored(snapshot, attach, capabilities, Policy::default());
        entry.record.snapshot = volume.snapshot().clone();
        entry.machine = Some(Box::new(volume));
        let recorded = std::mem::replace(&mut entry.record.boot, boot);
        entry.refused = None;
        if recorded != boot {
            entry.record.staged = None;
            for consumer in entry.record.consumers.values_mut() {
                (consumer.mounted, consumer.device) = (None, None);
            }
            entry.first_publish = entry.record.consumers.keys().cloned().collect();
            self.feed(slot, Lifecycle::Rebooted, now);
        }
        self.update_state(slot, now);
        self.attach_if_known(slot, now);
        if recorded == boot {
            self.report_lost_mounts(slot, now);
        }
        // Publish requests from before the activation are completed by the state machine, even if the volume is
        // published.
        let Some(entry) = self.volumes.get(&slot) else { return };
        let consumers: Vec<_> =
            entry.waiters.published.iter().map(|(consumer, _)| consumer.clone()).collect();
        for consumer in consumers {
            self.feed(slot, Lifecycle::Want(consumer), now);
        }
        self.feed(slot, Lifecycle::Proceed, now);
        self.arm_timers(slot, now);
        self.enqueue(slot);
    }

    /// Reports an external attach as complete if its context is part of the volume's spec.
    pub(super) fn attach_if_known(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let awaited = entry.record.spec.attach() == Attach::Awaited;
        if awaited && !entry.record.spec.publish_context().is_empty() && !entry.snapshot().attached {
            self.feed(slot, Lifecycle::Attached, now);
        }
    }

    fn refuse(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let error = lifecycle_mode_error(&entry.record.spec);
        entry.refused = Some(error.to_string());
        self.answer_all(slot, |waiters| &mut waiters.published, |_| true, Err(error));
    }
}

/// Returns the error for a driver that does not support the lifecycle mode of a volume.
pub(super) fn lifecycle_mode_error(spec: &VolumeSpec) -> PublishError {
    PublishError::LifecycleMode { driver: spec.key().driver.clone(), mode: spec.lifecycle_mode() }
}
