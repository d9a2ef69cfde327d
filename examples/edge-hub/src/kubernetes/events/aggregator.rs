//! Aggregates the failures that nodes report for the volumes of their pods into events. Pure: reports and the time
//! in, events out.
//!
//! A failure that lasts, or returns, is one event with a count. A pod has few events: failures with changing
//! messages are combined into one event, as by the aggregation of Kubernetes' own components.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::node_name::NodeName;

/// The maximum number of events of a pod.
const MAX_EVENTS_PER_POD: usize = 8;

/// The maximum number of events written for one report of a node. The rest is written at the next tick.
const MAX_WRITES_PER_REPORT: usize = 64;

/// The number of events in a tick after which the remaining nodes wait for the next tick.
const MAX_WRITES_PER_TICK: usize = 1024;

/// How often an ongoing failure is counted.
const REPEAT_INTERVAL: Duration = Duration::from_secs(120);

/// How long a wait lasts before it counts as a failure, as with kubelet.
const WAIT_THRESHOLD: Duration = Duration::from_secs(120);

/// The minimum time between two writes of an event.
const MIN_WRITE_INTERVAL: Duration = Duration::from_secs(10);

/// How long an event is remembered after its last count: the API server's default retention.
const RETENTION: Duration = Duration::from_secs(3600);

/// The prefix of the message of a combined event.
pub(super) const COMBINED_PREFIX: &str = "(combined from similar events): ";

/// The identity of a pod, ordered by its UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct PodName {
    pub(in super::super) uid: String,
    pub(in super::super) namespace: String,
    pub(in super::super) name: String,
}

/// The accepted reasons, all of them kubelet's.
pub(super) const REASONS: [&str; 3] = ["FailedMount", "FailedMapVolume", "VolumeResizeFailed"];

/// A failure of a pod's volume.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    pub(super) pod: PodName,
    pub(super) volume: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// Whether this is a wait, which counts as a failure after [`WAIT_THRESHOLD`].
    pub(super) waits: bool,
}

/// An event to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventWrite {
    pub(super) node: NodeName,
    pub(super) pod: PodName,
    /// A number that no other event of this hub has.
    pub(super) number: u64,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) count: u32,
    /// The time of the first occurrence, since 1970.
    pub(super) first: Duration,
    /// The time of the last occurrence, since 1970.
    pub(super) last: Duration,
}

/// The reported failures of all nodes, and their events.
#[derive(Debug, Default)]
pub(super) struct Aggregator {
    /// The failures of each node in its last report.
    reported: BTreeMap<NodeName, Vec<Failure>>,
    pods: BTreeMap<PodName, Vec<Entry>>,
    last_number: u64,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    volume: String,
    reason: &'static str,
    message: String,
    waits: bool,
    count: u32,
    first: Duration,
    last: Duration,
    /// Whether the last report of the node contained the failure.
    ongoing: bool,
}

impl Aggregator {
    /// Replaces the failures of a node, and returns the events to write.
    pub(super) fn report(&mut self, node: &NodeName, failed: Vec<Failure>, now: Duration) -> Vec<EventWrite> {
        if let Some(before) = self.reported.remove(node) {
            let still: BTreeSet<&Failure> = failed.iter().collect();
            for ended in before.iter().filter(|before| !still.contains(before)) {
                let entries = self.pods.get_mut(&ended.pod).into_iter().flatten();
                for entry in entries.filter(|entry| entry.is_of(ended)) {
                    entry.ongoing = false;
                }
            }
        }
        let writes = self.due_writes(node, &failed, now);
        if !failed.is_empty() {
            self.reported.insert(node.clone(), failed);
        }
        writes
    }

    /// Advances the time, and returns the events to write. Failures of connected nodes are still ongoing.
    pub(super) fn tick(&mut self, connected: impl Fn(&NodeName) -> bool, now: Duration) -> Vec<EventWrite> {
        self.reported.retain(|node, _| connected(node));
        self.pods.retain(|_, entries| {
            entries.retain(|entry| entry.last + RETENTION > now);
            !entries.is_empty()
        });
        let reported = std::mem::take(&mut self.reported);
        let mut writes = Vec::new();
        for (node, failures) in &reported {
            // Failures beyond the bound stay due for the next tick.
            if writes.len() < MAX_WRITES_PER_TICK {
                writes.extend(self.due_writes(node, failures, now));
            }
        }
        self.reported = reported;
        writes
    }

    fn due_writes(&mut self, node: &NodeName, failures: &[Failure], now: Duration) -> Vec<EventWrite> {
        let mut writes = Vec::new();
        for failure in failures {
            if writes.len() >= MAX_WRITES_PER_REPORT {
                break;
            }
            let Some(entry) = self.entry(failure, now) else { continue };
            if entry.count == 0 && !entry.ongoing {
                entry.first = now;
            }
            let is_due = entry.is_due(now);
            entry.ongoing = true;
            if !is_due {
                continue;
            }
            entry.count = entry.count.saturating_add(1);
            entry.last = now;
            writes.push(EventWrite {
                node: node.clone(),
                pod: failure.pod.clone(),
                number: entry.number,
                reason: entry.reason,
                message: entry.message.clone(),
                count: entry.count,
                first: entry.first,
                last: now,
            });
        }
        writes
    }

    /// Returns the event of a failure; `None` if its pod has too many events already.
    fn entry(&mut self, failure: &Failure, now: Duration) -> Option<&mut Entry> {
        let entries = self.pods.entry(failure.pod.clone()).or_default();
        let same = entries.iter().position(|entry| entry.is_of(failure));
        let at = match same {
            Some(at) => at,
            None if entries.len() < MAX_EVENTS_PER_POD => {
                self.last_number += 1;
                entries.push(Entry {
                    number: self.last_number,
                    volume: failure.volume.clone(),
                    reason: failure.reason,
                    message: failure.message.clone(),
                    waits: failure.waits,
                    count: 0,
                    first: now,
                    last: now,
                    ongoing: false,
                });
                entries.len() - 1
            }
            None => {
                let at = entries.iter().rposition(|entry| entry.reason == failure.reason)?;
                let entry = entries.get_mut(at)?;
                entry.volume.clone_from(&failure.volume);
                entry.message = format!("{COMBINED_PREFIX}{}", failure.message);
                entry.waits = failure.waits;
                at
            }
        };
        entries.get_mut(at)
    }
}

impl Entry {
    fn is_of(&self, failure: &Failure) -> bool {
        let message = self.message.strip_prefix(COMBINED_PREFIX).unwrap_or(&self.message);
        self.reason == failure.reason && self.volume == failure.volume && message == failure.message
    }

    fn is_due(&self, now: Duration) -> bool {
        let since = now.saturating_sub(self.last);
        match (self.count, self.waits, self.ongoing) {
            (0, false, _) => true,
            (0, true, _) => now.saturating_sub(self.first) >= WAIT_THRESHOLD,
            (_, _, true) => since >= REPEAT_INTERVAL,
            (_, true, false) => since >= WAIT_THRESHOLD,
            (_, false, false) => since >= MIN_WRITE_INTERVAL,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeName {
        NodeName::new("edge-1").unwrap()
    }

    fn failure(message: &str) -> Failure {
        let pod = PodName { uid: "u".into(), namespace: "ns".into(), name: "web-0".into() };
        let (volume, message) = ("data".to_owned(), message.to_owned());
        Failure { pod, volume, reason: "FailedMount", message, waits: false }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn counts(writes: &[EventWrite]) -> Vec<(u64, u32)> {
        writes.iter().map(|write| (write.number, write.count)).collect()
    }

    #[test]
    fn failure_is_written_at_once_and_counted_while_it_lasts() {
        let mut aggregator = Aggregator::default();
        let report = |aggregator: &mut Aggregator, failures: Vec<Failure>, now| {
            aggregator.report(&node(), failures, at(now))
        };
        let first = report(&mut aggregator, vec![failure("no such device")], 5);
        assert_eq!(counts(&first), [(1, 1)]);
        assert_eq!((first[0].first, first[0].last, &first[0].message[..]), (at(5), at(5), "no such device"));
        assert_eq!(report(&mut aggregator, vec![failure("no such device")], 50), [], "it is written already");
        assert_eq!(aggregator.tick(|_| true, at(60)), []);
        let later = aggregator.tick(|_| true, at(130));
        assert_eq!((counts(&later), later[0].first), (vec![(1, 2)], at(5)));
        // The failure ends; then it returns, with another one.
        assert_eq!(report(&mut aggregator, vec![], 140), []);
        assert_eq!(aggregator.tick(|_| true, at(600)), []);
        let both = report(&mut aggregator, vec![failure("no such device"), failure("busy")], 700);
        assert_eq!(counts(&both), [(1, 3), (2, 1)]);
        // A node that is away says nothing, and an hour later nothing is left.
        assert_eq!(aggregator.tick(|_| false, at(900)), []);
        assert_eq!(aggregator.tick(|_| true, at(700 + 3600)), []);
        assert!(aggregator.pods.is_empty() && aggregator.reported.is_empty());
    }

    #[test]
    fn wait_is_written_after_its_threshold() {
        let mut aggregator = Aggregator::default();
        let waits = || vec![Failure { waits: true, ..failure("it waits for its VolumeAttachment") }];
        assert_eq!(aggregator.report(&node(), waits(), at(0)), []);
        assert_eq!(aggregator.tick(|_| true, at(119)), []);
        assert_eq!(counts(&aggregator.tick(|_| true, at(120))), [(1, 1)]);
        let mut short = Aggregator::default();
        assert_eq!(short.report(&node(), waits(), at(0)), []);
        assert_eq!(short.report(&node(), vec![], at(100)), []);
        assert_eq!(short.report(&node(), waits(), at(130)), [], "it is another wait");
        assert_eq!(short.tick(|_| true, at(140)), []);
    }

    #[test]
    fn ever_other_words_fill_no_cluster() {
        let mut aggregator = Aggregator::default();
        let mut writes = Vec::new();
        for number in 0..1000 {
            writes.extend(aggregator.report(&node(), vec![failure(&format!("try {number}"))], at(number)));
        }
        let events: BTreeSet<_> = writes.iter().map(|write| write.number).collect();
        assert_eq!(events.len(), MAX_EVENTS_PER_POD);
        assert!(writes.len() < MAX_EVENTS_PER_POD + 1000 / 10 + 1, "{} writes", writes.len());
        assert_eq!(writes.last().map(|write| write.message.starts_with(COMBINED_PREFIX)), Some(true));
        let pods = |pods: u64| {
            (0..pods).map(|pod| {
                let mut failure = failure("bad");
                failure.pod.uid = format!("u{pod}");
                failure
            })
        };
        let mut aggregator = Aggregator::default();
        assert_eq!(aggregator.report(&node(), pods(1000).collect(), at(0)).len(), MAX_WRITES_PER_REPORT);
        assert_eq!(aggregator.tick(|_| true, at(1)).len(), MAX_WRITES_PER_REPORT, "the rest follows");
    }
}
