//! Status of the volumes, for explanations and metrics.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_proto::DriverName;

use super::entry::{Entry, Job, JobKind};
use super::{DriverPresence, Node, Slot};
use crate::driver::{DriverFacts, OwnershipChange};
use crate::lifecycle::{Failure, VolumeState, WaitReason};
use crate::name::VolumeKey;
use crate::node::explanation::{ConsumerStatus, Explanation, Waiting};

/// The number of volumes by state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The number of volumes by state; states without volumes are omitted.
    pub states: BTreeMap<VolumeState, usize>,
    /// The number of volumes with a call of unknown outcome.
    pub uncertain: usize,
    /// The number of records that cannot be read.
    pub quarantined: usize,
    /// The number of volumes whose driver has not connected since the volumes were opened.
    pub dormant: usize,
    /// The number of running calls to drivers.
    pub calls: usize,
}

/// A registered driver.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownDriver {
    /// The name of the driver.
    pub name: DriverName,
    /// True if the driver is connected.
    pub connected: bool,
    /// The driver's identity and capabilities at the last connection; `None` if it has not connected since the
    /// volumes were opened.
    pub facts: Option<DriverFacts>,
}

impl Node {
    /// Returns the registered drivers, sorted by name.
    #[must_use]
    pub fn known_drivers(&self) -> Vec<KnownDriver> {
        let registered = self.drivers.iter().filter(|(_, driver)| driver.is_registered());
        let known = registered.map(|(name, driver)| KnownDriver {
            name: name.clone(),
            connected: driver.is_connected(),
            facts: driver.facts.as_deref().cloned(),
        });
        known.collect()
    }

    /// Returns the keys of all volumes, in ascending order.
    pub fn keys(&self) -> impl Iterator<Item = &VolumeKey> {
        self.by_key.keys()
    }

    /// Returns the unreadable records: the name in the store, and the reason.
    #[must_use]
    pub fn quarantined(&self) -> &[(String, String)] {
        &self.quarantined
    }

    /// Returns the number of volumes by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { quarantined: self.quarantined.len(), ..Counts::default() };
        for entry in self.volumes.values() {
            *counts.states.entry(entry.state).or_default() += 1;
            match &entry.machine {
                Some(volume) => counts.uncertain += usize::from(volume.uncertain_call().is_some()),
                None => counts.dormant += 1,
            }
        }
        counts.calls = self.drivers.values().map(|driver| driver.queue.in_flight()).sum();
        counts
    }

    /// Returns the state of a volume and why it waits, or `None` if the volume is unknown.
    #[must_use]
    pub fn explain(&self, key: &VolumeKey, now: Duration) -> Option<Explanation> {
        let Some(slot) = self.by_key.get(key).copied() else {
            let reason = self.quarantine_of(key)?;
            return Some(Explanation {
                key: key.clone(),
                state: None,
                time_in_state: Duration::ZERO,
                waiting: Waiting::Quarantine { reason },
                consumers: Vec::new(),
                last_error: None,
                unapplied: Vec::new(),
            });
        };
        let entry = self.volumes.get(&slot)?;
        let status = |consumer: &crate::node::record::RecordedConsumer| {
            let target = entry.target(consumer.spec.id());
            ConsumerStatus {
                consumer: consumer.spec.id().clone(),
                target: consumer.spec.target_path().as_path().to_owned(),
                wanted: target.is_some_and(|target| target.wanted),
                // A reboot has unmounted what an earlier boot recorded.
                published: entry.record.boot == self.boot
                    && target.is_some_and(|target| target.state.is_published()),
            }
        };
        Some(Explanation {
            key: key.clone(),
            state: Some(entry.state),
            time_in_state: now.saturating_sub(entry.since),
            waiting: self.waiting(slot, entry, now),
            consumers: entry.record.consumers.values().map(status).collect(),
            last_error: entry.record.last_error.clone(),
            unapplied: self.unapplied(entry),
        })
    }

    fn waiting(&self, slot: Slot, entry: &Entry, now: Duration) -> Waiting {
        if let Some(reason) = &entry.refused {
            return Waiting::Refused { reason: reason.clone() };
        }
        let store = || {
            let reason = self.commits.unavailable()?.reason;
            let next_try = self.commits.reopen_at().map_or(Duration::ZERO, |at| at.saturating_sub(now));
            Some(Waiting::Store { reason, next_try })
        };
        let Some(volume) = &entry.machine else {
            return store().unwrap_or_else(|| self.waiting_for_driver(&entry.key.driver));
        };
        match volume.wait_reason() {
            WaitReason::Nothing => Waiting::Nothing,
            WaitReason::Record | WaitReason::Store | WaitReason::Proceed => {
                store().unwrap_or(Waiting::Record)
            }
            WaitReason::Call(call) => match &entry.job {
                Some(Job { kind: JobKind::Call { sent: true, .. }, since }) => Waiting::Call {
                    rpc: call.rpc,
                    consumer: call.consumer,
                    elapsed: now.saturating_sub(*since),
                },
                Some(Job { kind: JobKind::Call { .. }, .. }) => Waiting::Check { rpc: call.rpc },
                _ => match self.drivers.get(&entry.key.driver).filter(|driver| driver.is_connected()) {
                    Some(driver) => Waiting::CallSlot {
                        in_flight: driver.queue.in_flight(),
                        waiting: driver.queue.waiting(),
                    },
                    None => self.waiting_for_driver(&entry.key.driver),
                },
            },
            WaitReason::BackOff(call) => {
                let error = volume.failed_calls().find(|error| error.call == call);
                let at = self.timers.resumes_at(slot, &call);
                let next_try = at.map_or(Duration::ZERO, |at| at.saturating_sub(now));
                match error {
                    Some(error) if error.failure == Failure::InUse => Waiting::ForeignMount { next_try },
                    error => Waiting::Retry { next_try, attempts: error.map_or(0, |error| error.attempts) },
                }
            }
            WaitReason::Attach => Waiting::Attach,
            WaitReason::OtherDriver(rpc) => Waiting::OtherDriver { rpc },
            WaitReason::Request(rpc) => Waiting::Request { rpc },
        }
    }

    fn waiting_for_driver(&self, name: &DriverName) -> Waiting {
        match self.drivers.get(name).map(|driver| &driver.presence) {
            None | Some(DriverPresence::Unregistered) => Waiting::Registration,
            Some(DriverPresence::Connecting { last_error }) => {
                Waiting::Driver { last_error: last_error.clone() }
            }
            // Connected since: the volume continues in this step.
            Some(DriverPresence::Connected) => Waiting::Driver { last_error: None },
        }
    }

    fn unapplied(&self, entry: &Entry) -> Vec<String> {
        if self.settings.caller_applies_fs_group {
            return Vec::new();
        }
        let Some(driver) = self.drivers.get(&entry.key.driver) else { return Vec::new() };
        let Some(facts) = &driver.facts else { return Vec::new() };
        let groups = entry.published().filter_map(|(id, consumer)| {
            let node = &facts.capabilities.node;
            match driver.policy.ownership_change(&entry.record.spec, &consumer.spec, node) {
                OwnershipChange::Caller { group } => {
                    Some(format!("fsGroup {group} is not applied for {id}; the driver does not support it"))
                }
                OwnershipChange::None | OwnershipChange::Driver { .. } => None,
            }
        });
        groups.collect()
    }
}
