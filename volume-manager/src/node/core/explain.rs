//! What is known of the volumes, for people and for figures.

use std::collections::BTreeMap;
use std::time::Duration;

use csi_proto::DriverName;

use super::entry::{Entry, Job, What};
use super::{Node, Slot};
use crate::driver::{DriverFacts, OwnershipChange};
use crate::lifecycle::{Failure, VolumeState, Waits};
use crate::name::VolumeKey;
use crate::node::explanation::{Explanation, Holder, Waiting};

/// How many volumes are in which state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// By state; states without a volume are left out.
    pub states: BTreeMap<VolumeState, usize>,
    /// Volumes with a call whose end is not known.
    pub uncertain: usize,
    /// Records that cannot be read.
    pub quarantined: usize,
    /// Volumes whose driver has not been there since the volumes were opened.
    pub dormant: usize,
    /// Calls that run.
    pub calls: usize,
}

/// A driver that is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownDriver {
    /// Its name.
    pub name: DriverName,
    /// Whether it is connected to.
    pub connected: bool,
    /// What it said when it was last connected to; `None` if it has not been since the volumes were opened.
    pub facts: Option<DriverFacts>,
}

impl Node {
    /// The drivers that are registered, in order.
    #[must_use]
    pub fn known_drivers(&self) -> Vec<KnownDriver> {
        let registered = self.drivers.iter().filter(|(_, driver)| driver.registered);
        let known = registered.map(|(name, driver)| KnownDriver {
            name: name.clone(),
            connected: driver.connected,
            facts: driver.facts.as_deref().cloned(),
        });
        known.collect()
    }

    /// Every volume, in order.
    pub fn keys(&self) -> impl Iterator<Item = &VolumeKey> {
        self.by_key.keys()
    }

    /// The records that cannot be read: what they are called in the store, and why.
    #[must_use]
    pub fn quarantined(&self) -> &[(String, String)] {
        &self.quarantined
    }

    /// How many volumes there are, by state.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let mut counts = Counts { quarantined: self.quarantined.len(), ..Counts::default() };
        for entry in self.volumes.values() {
            *counts.states.entry(entry.state).or_default() += 1;
            match &entry.machine {
                Some(volume) => counts.uncertain += usize::from(volume.suspect().is_some()),
                None => counts.dormant += 1,
            }
        }
        counts.calls = self.drivers.values().map(|driver| driver.turns.in_flight()).sum();
        counts
    }

    /// Where a volume is and why it waits. `None` if nothing is known of it.
    #[must_use]
    pub fn explain(&self, key: &VolumeKey, now: Duration) -> Option<Explanation> {
        let Some(slot) = self.by_key.get(key).copied() else {
            let reason = self.quarantine_of(key)?;
            return Some(Explanation {
                key: key.clone(),
                state: None,
                dwell: Duration::ZERO,
                waiting: Waiting::Quarantine { reason },
                holders: Vec::new(),
                last_error: None,
                not_done: Vec::new(),
            });
        };
        let entry = self.volumes.get(&slot)?;
        let holder = |consumer: &crate::node::record::RecordedConsumer| {
            let target = entry.target(consumer.spec.id());
            Holder {
                consumer: consumer.spec.id().clone(),
                target: consumer.spec.target_path().as_path().to_owned(),
                wanted: target.is_some_and(|target| target.wanted),
                published: target.is_some_and(|target| target.state.is_published()),
            }
        };
        Some(Explanation {
            key: key.clone(),
            state: Some(entry.state),
            dwell: now.saturating_sub(entry.since),
            waiting: self.waiting(slot, entry, now),
            holders: entry.record.consumers.values().map(holder).collect(),
            last_error: entry.record.last_error.clone(),
            not_done: self.not_done(entry),
        })
    }

    fn waiting(&self, slot: Slot, entry: &Entry, now: Duration) -> Waiting {
        if let Some(reason) = &entry.refused {
            return Waiting::Refused { reason: reason.clone() };
        }
        let store = || {
            let reason = self.commits.trouble()?.reason;
            let next_try = self.commits.reopen_at().map_or(Duration::ZERO, |at| at.saturating_sub(now));
            Some(Waiting::Store { reason, next_try })
        };
        let Some(volume) = &entry.machine else {
            return store().unwrap_or(Waiting::Driver);
        };
        match volume.waits() {
            Waits::ForNothing => Waiting::Nothing,
            Waits::ForRecord | Waits::ForStore | Waits::ForStart => store().unwrap_or(Waiting::Record),
            Waits::ForCall(call) => match &entry.job {
                Some(Job { what: What::Call { sent: true, .. }, since }) => Waiting::Call {
                    rpc: call.rpc,
                    consumer: call.consumer,
                    elapsed: now.saturating_sub(*since),
                },
                Some(Job { what: What::Call { .. }, .. }) => Waiting::Check { rpc: call.rpc },
                _ => match self.drivers.get(&entry.key.driver).filter(|driver| driver.connected) {
                    Some(driver) => {
                        Waiting::Turn { in_flight: driver.turns.in_flight(), waiting: driver.turns.waiting() }
                    }
                    None => Waiting::Driver,
                },
            },
            Waits::ForBackOff(call) => {
                let trouble = volume.troubles().find(|trouble| trouble.call == call);
                let at = self.timers.resumes_at(slot, &call);
                let next_try = at.map_or(Duration::ZERO, |at| at.saturating_sub(now));
                match trouble {
                    Some(trouble) if trouble.failure == Failure::InUse => Waiting::Foreign { next_try },
                    trouble => {
                        Waiting::Retry { next_try, attempts: trouble.map_or(0, |trouble| trouble.attempts) }
                    }
                }
            }
            Waits::ForAttach => Waiting::Attach,
            Waits::ForDriver(rpc) => Waiting::OtherDriver { rpc },
            Waits::ForRequest(rpc) => Waiting::Request { rpc },
        }
    }

    fn not_done(&self, entry: &Entry) -> Vec<String> {
        if self.settings.groups_given_by_caller {
            return Vec::new();
        }
        let Some(driver) = self.drivers.get(&entry.key.driver) else { return Vec::new() };
        let Some(facts) = &driver.facts else { return Vec::new() };
        let groups = entry.published().filter_map(|(id, consumer)| {
            let node = &facts.capabilities.node;
            match driver.policy.ownership_change(&entry.record.spec, &consumer.spec, node) {
                OwnershipChange::Caller { group } => Some(format!(
                    "the files are not given to group {group} for {id}, which the driver cannot do"
                )),
                OwnershipChange::Nobody | OwnershipChange::Driver { .. } => None,
            }
        });
        groups.collect()
    }
}
