//! Drivers that come, are replaced and go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::DriverName;

use super::entry::{Entry, Life, Wish};
use super::event::Answer;
use super::timers::Alarm;
use super::{DriverSlot, Node, Slot, Turns};
use crate::driver::{DriverFacts, DriverPolicy};
use crate::lifecycle::{Attach, DriverCapabilities, Event as Lifecycle, Outcome, Policy, Volume};
use crate::node::error::{InspectError, PublishError};
use crate::store::BootId;

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
            match entry.life {
                Life::Dormant { .. } => self.wake(slot, now),
                Life::Awake(_) if predecessors_ended => self.replace_driver(slot, now),
                Life::Awake(_) => {
                    if let Some(capabilities) = self.capabilities(slot) {
                        self.feed(slot, Lifecycle::Reconnected(capabilities), now);
                    }
                    self.wait_for_turn(slot, now);
                }
            }
            self.keep_watch(slot, now);
        }
    }

    /// A new process of the driver: no call of the old one runs any more.
    fn replace_driver(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        // It waits for a turn with the old process. Its machine has to hear of its end, or it would take the end of the
        // one that is made with the new process for that of the old.
        if let Some(call) = entry.wanted_call.take() {
            if let Some(driver) = self.drivers.get_mut(&entry.key.driver) {
                driver.turns.leave(slot);
            }
            self.feed(slot, Lifecycle::Finished { call, outcome: Outcome::Uncertain }, now);
        }
        let Some(capabilities) = self.capabilities(slot) else { return };
        self.timers.clear(slot, |alarm| matches!(alarm, Alarm::Resume(_)));
        self.feed(slot, Lifecycle::NewGeneration(capabilities), now);
        self.wait_for_turn(slot, now);
    }

    /// The connection is gone, and the driver is registered still.
    pub(super) fn disconnected(&mut self, name: &DriverName) {
        let Some(driver) = self.drivers.get_mut(name) else { return };
        driver.connected = false;
        let slots: Vec<_> = driver.volumes.iter().copied().collect();
        for slot in slots {
            let Some(entry) = self.volumes.get_mut(&slot) else { continue };
            for (request, _) in std::mem::take(&mut entry.queries) {
                let error = InspectError::NoDriver { driver: name.clone() };
                self.answer(request, Answer::Inspected(Err(error)));
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
        if entry.spec.is_ephemeral() {
            return Some(DriverCapabilities::default());
        }
        let mut capabilities = facts.capabilities.lifecycle();
        // A volume that is not attached from here has somebody else for all its controller calls.
        capabilities.controller_expand &= entry.spec.attach() == Attach::Here;
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
        if policy.admits(&entry.spec).is_err() {
            let begun = entry.is_begun();
            self.refuse(slot);
            // What was done before has to be undone all the same.
            if !begun {
                return;
            }
        }
        let Some(entry) = self.volumes.get(&slot) else { return };
        let (attach, boot) = (policy.attach(&entry.spec), self.boot);
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let Some(recorded) = entry.awake(attach, capabilities) else { return };
        entry.refused = None;
        if recorded != boot {
            entry.staged = None;
            for consumer in entry.consumers.values_mut() {
                (consumer.mounted, consumer.device) = (None, None);
            }
            entry.fresh = entry.consumers.keys().cloned().collect();
            self.feed(slot, Lifecycle::Rebooted, now);
        }
        self.note_state(slot, now);
        self.attach_if_told(slot, now);
        if recorded == boot {
            self.find_losses(slot, now);
        }
        // Whoever asked before there was a machine is told by it, even if what was asked for is there.
        let Some(entry) = self.volumes.get(&slot) else { return };
        let asked: Vec<_> = entry
            .waiters
            .iter()
            .filter_map(|(_, wish)| match wish {
                Wish::Publish(consumer) => Some(consumer.clone()),
                Wish::Unpublish(_) | Wish::Expand(_) => None,
            })
            .collect();
        for consumer in asked {
            self.feed(slot, Lifecycle::Want(consumer), now);
        }
        self.feed(slot, Lifecycle::Proceed, now);
        self.keep_watch(slot, now);
        self.wait_for_turn(slot, now);
    }

    /// An attach that is made elsewhere stands if its context was handed in with the volume.
    pub(super) fn attach_if_told(&mut self, slot: Slot, now: Duration) {
        let Some(entry) = self.volumes.get(&slot) else { return };
        let awaited = entry.spec.attach() == Attach::Awaited;
        if awaited && !entry.spec.publish_context().is_empty() && !entry.snapshot().attached {
            self.feed(slot, Lifecycle::Attached, now);
        }
    }

    fn refuse(&mut self, slot: Slot) {
        let Some(entry) = self.volumes.get_mut(&slot) else { return };
        let error = lifecycle_mode(entry);
        entry.refused = Some(error.to_string());
        let waiting: Vec<_> = entry
            .waiters
            .extract_if(.., |(_, wish)| matches!(wish, Wish::Publish(_)))
            .map(|(request, _)| request)
            .collect();
        for request in waiting {
            self.answer(request, Answer::Published(Err(error.clone())));
        }
    }
}

/// That a driver does not take a volume of this kind of life.
pub(super) fn lifecycle_mode(entry: &Entry) -> PublishError {
    let mode = if entry.spec.is_ephemeral() { "Ephemeral" } else { "Persistent" };
    PublishError::LifecycleMode { driver: entry.key.driver.clone(), mode }
}

impl Entry {
    /// Makes the machine of what is on disk, and answers of which boot that was.
    fn awake(&mut self, attach: Attach, capabilities: DriverCapabilities) -> Option<BootId> {
        let Life::Dormant { snapshot, boot } = &self.life else { return None };
        let volume = Volume::restored(snapshot.clone(), attach, capabilities, Policy::default());
        let boot = *boot;
        self.life = Life::Awake(Box::new(volume));
        Some(boot)
    }
}
