//! Drivers that come, are replaced and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use super::timers::Alarm;
use super::{DriverSlot, Node, Slot, Turns};
use crate::driver::{DriverFacts, DriverPolicy, VolumeSpec};
use crate::lifecycle::{Attach, DriverCapabilities, Event as Lifecycle, Failure, Outcome, Policy, Volume};
use crate::node::error::{InspectError, PublishError};

impl Node {
    /// The slot of a driver, made if there is none.
    pub(super) fn driver(&mut self, name: &DriverName) -> &mut DriverSlot {
        let cap = self.settings.calls_per_driver;
        self.drivers.entry(name.clone()).or_insert_with(|| DriverSlot {
            policy: Arc::new(DriverPolicy::default()),
            registered: false,
            connected: false,
            facts: None,
            turns: Turns::new(cap),
            volumes: BTreeSet::new(),
        })
    }

    pub(super) fn leave_driver(&mut self, name: &DriverName, slot: Slot) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        driver.volumes.remove(&slot);
        driver.turns.leave(slot);
        if driver.volumes.is_empty() && !driver.registered && driver.turns.in_flight() == 0 {
            self.drivers.remove(name);
        }
    }

    pub(super) fn register(&mut self, name: DriverName, policy: DriverPolicy) {
        let driver = self.driver(&name);
        driver.registered = true;
        driver.policy = Arc::new(policy);
    }

    pub(super) fn connected(&mut self, facts: Box<DriverFacts>, predecessors_ended: bool, now: Duration) {
        let name = facts.name.clone();
        let driver = self.driver(&name);
        driver.connected = true;
        driver.registered = true;
        driver.facts = Some(facts);
        let slots: Vec<_> = driver.volumes.iter().copied().collect();
        for slot in slots {
            let Some(entry) = self.volumes.get(&slot) else { continue };
            match entry.machine {
                None => self.wake(slot, now),
                Some(_) if predecessors_ended => self.replace_driver(slot, now),
                Some(_) => {
                    if let Some(capabilities) = self.capabilities(slot) {
                        self.feed(slot, Lifecycle::Reconnected(capabilities), now);
                    }
                    self.wait_for_turn(slot);
                }
            }
            self.keep_watch(slot, now);
        }
    }

    /// A new process of the driver: no call of the old one runs any more.
    fn replace_driver(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        // It waits for a turn, or for a look before it is sent, with the old process. Its machine has to hear of its end, or it would take the end of the
        // one that is made with the new process for that of the old.
        if let Some(call) = entry.awaited_call().cloned() {
            if let Some(driver) = self.drivers.get_mut(&entry.key.driver) {
                driver.turns.leave(slot);
            }
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Failed(Failure::Uncertain) }, now);
        }
        let Some(capabilities) = self.capabilities(slot) else { return };
        self.timers.clear(slot, |alarm| matches!(alarm, Alarm::Resume(_)));
        self.feed(slot, Lifecycle::NewGeneration(capabilities), now);
        self.wait_for_turn(slot);
    }

    /// The connection is gone, and the driver is registered still.
    pub(super) fn disconnected(&mut self, name: &DriverName) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        driver.connected = false;
        let slots: Vec<_> = driver.volumes.iter().copied().collect();
        for slot in slots {
            let Some(entry) = self.volumes.get_mut(&slot) else { continue };
            for (_, reply) in std::mem::take(&mut entry.queries) {
                self.answer(reply, Err(InspectError::NoDriver { driver: name.clone() }));
            }
        }
    }

    /// The driver is not registered any more.
    pub(super) fn gone(&mut self, name: &DriverName) {
        self.disconnected(name);
        if let Some(driver) = self.drivers.get_mut(name) {
            driver.registered = false;
        }
        if let Some(driver) = self.drivers.get(name)
            && driver.volumes.is_empty()
            && driver.turns.in_flight() == 0
        {
            self.drivers.remove(name);
        }
    }

    /// What a volume's driver can do for it.
    fn capabilities(&self, slot: Slot) -> Option<DriverCapabilities> {
        let entry = self.volumes.get(&slot)?;
        let facts = self.drivers.get(&entry.key.driver)?.facts.as_ref()?;
        // An ephemeral volume is made and deleted by its publish and unpublish, and has nothing around them.
        if entry.record.spec.is_ephemeral() {
            return Some(DriverCapabilities::default());
        }
        let mut capabilities = facts.capabilities.lifecycle();
        // A volume that is not attached from here has somebody else for all its controller calls.
        capabilities.controller_expand &= entry.record.spec.attach() == Attach::Here;
        Some(capabilities)
    }

    /// Gives a volume its machine, now that its driver is known.
    pub(super) fn wake(&mut self, slot: Slot, now: Duration) {
        let Some(capabilities) = self.capabilities(slot) else { return };
        let Some(entry) = self.volumes.get(&slot) else { return };
        let Some(policy) = self.drivers.get(&entry.key.driver).map(|driver| Arc::clone(&driver.policy))
        else {
            return;
        };
        if !policy.admits(&entry.record.spec) {
            let begun = entry.is_begun();
            self.refuse(slot);
            // What was done before has to be undone all the same.
            if !begun {
                return;
            }
        }
        let Some(entry) = self.volumes.get(&slot) else { return };
        let attach = policy.attach(&entry.record.spec);
        let boot = self.boot;
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(snapshot) = entry.dormant().cloned() else { return };
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
            entry.fresh = entry.record.consumers.keys().cloned().collect();
            self.feed(slot, Lifecycle::Rebooted, now);
        }
        self.note_state(slot, now);
        self.attach_if_told(slot, now);
        if recorded == boot {
            self.find_losses(slot, now);
        }
        // Whoever asked before there was a machine is told by it, even if what was asked for is there.
        let Some(entry) = self.volumes.get(&slot) else { return };
        let asked: Vec<_> = entry.waiters.published.iter().map(|(consumer, _)| consumer.clone()).collect();
        for consumer in asked {
            self.feed(slot, Lifecycle::Want(consumer), now);
        }
        self.feed(slot, Lifecycle::Proceed, now);
        self.keep_watch(slot, now);
        self.wait_for_turn(slot);
    }

    /// An attach that is made elsewhere stands if its context was handed in with the volume.
    pub(super) fn attach_if_told(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let awaited = entry.record.spec.attach() == Attach::Awaited;
        if awaited && !entry.record.spec.publish_context().is_empty() && !entry.snapshot().attached {
            self.feed(slot, Lifecycle::Attached, now);
        }
    }

    fn refuse(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let error = lifecycle_mode(&entry.record.spec);
        entry.refused = Some(error.to_string());
        self.answer_all(slot, |waiters| &mut waiters.published, |_| true, Err(error));
    }
}

/// That a driver does not take a volume of this kind of life.
pub(super) fn lifecycle_mode(spec: &VolumeSpec) -> PublishError {
    PublishError::LifecycleMode { driver: spec.key().driver.clone(), mode: spec.lifecycle_mode() }
}
