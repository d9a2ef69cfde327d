//! Which events there are to write, from what nodes say of the volumes of their pods. Pure: what is said and the time go in.
//!
//! A failure that lasts, or comes again, is one event that counts. A pod has few events: what is told in ever other words
//! becomes the same one, as with the aggregation of Kubernetes' own components.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::super::node_name::NodeName;

/// The most events of a pod.
const EVENTS_OF_POD: usize = 8;

/// The most events that are written for what a node says at once. The rest comes with the next round.
const ORDERS_AT_ONCE: usize = 64;

/// The most events, but for those of one node, that are written in one round.
const ORDERS_IN_ROUND: usize = 1024;

/// How often a failure that lasts is counted.
const REPEAT: Duration = Duration::from_secs(120);

/// How long a wait lasts before it is a failure, as with kubelet.
const PATIENCE: Duration = Duration::from_secs(120);

/// The least time between two writes of an event.
const REST: Duration = Duration::from_secs(10);

/// How long an event is remembered after it was counted last: as long as the API server keeps it, by default.
const KEPT: Duration = Duration::from_secs(3600);

/// What stands before the words of an event that others are counted in.
pub(super) const COMBINED: &str = "(combined from similar events): ";

/// A pod, by its UID first.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct PodName {
    pub(in super::super) uid: String,
    pub(in super::super) namespace: String,
    pub(in super::super) name: String,
}

/// The reasons that kubelet gives, and no others.
pub(super) const REASONS: [&str; 3] = ["FailedMount", "FailedMapVolume", "VolumeResizeFailed"];

/// What is wrong with a volume of a pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Failure {
    pub(super) pod: PodName,
    pub(super) volume: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
    /// It may end by itself, and counts if it lasts.
    pub(super) waits: bool,
}

/// An event, as it is to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) node: NodeName,
    pub(super) pod: PodName,
    /// A number that no other event of this hub has.
    pub(super) number: u64,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) count: u32,
    /// When it was first and last so, since the beginning of the time of the core.
    pub(super) first: Duration,
    pub(super) last: Duration,
}

/// All that nodes say.
#[derive(Debug, Default)]
pub(super) struct Book {
    /// What is wrong at each node, as it was said last.
    said: BTreeMap<NodeName, Vec<Failure>>,
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
    /// Whether it was so when its node was heard last.
    lasts: bool,
}

impl Book {
    /// A node says all that is wrong.
    pub(super) fn hear(&mut self, node: &NodeName, failures: Vec<Failure>, now: Duration) -> Vec<Order> {
        if let Some(before) = self.said.remove(node) {
            let still: BTreeSet<&Failure> = failures.iter().collect();
            for gone in before.iter().filter(|before| !still.contains(before)) {
                let entries = self.pods.get_mut(&gone.pod).into_iter().flatten();
                for entry in entries.filter(|entry| entry.is_of(gone)) {
                    entry.lasts = false;
                }
            }
        }
        let orders = self.orders(node, &failures, now);
        if !failures.is_empty() {
            self.said.insert(node.clone(), failures);
        }
        orders
    }

    /// Time has gone by. What was wrong is so still at the nodes that are there.
    pub(super) fn tick(&mut self, is_there: impl Fn(&NodeName) -> bool, now: Duration) -> Vec<Order> {
        self.said.retain(|node, _| is_there(node));
        self.pods.retain(|_, entries| {
            entries.retain(|entry| entry.last + KEPT > now);
            !entries.is_empty()
        });
        let said = std::mem::take(&mut self.said);
        let mut orders = Vec::new();
        for (node, failures) in &said {
            // What there is no room for is due still in the next round.
            if orders.len() < ORDERS_IN_ROUND {
                orders.extend(self.orders(node, failures, now));
            }
        }
        self.said = said;
        orders
    }

    fn orders(&mut self, node: &NodeName, failures: &[Failure], now: Duration) -> Vec<Order> {
        let mut orders = Vec::new();
        for failure in failures {
            if orders.len() >= ORDERS_AT_ONCE {
                break;
            }
            let Some(entry) = self.entry(failure, now) else { continue };
            if entry.count == 0 && !entry.lasts {
                entry.first = now;
            }
            let is_due = entry.is_due(now);
            entry.lasts = true;
            if !is_due {
                continue;
            }
            entry.count = entry.count.saturating_add(1);
            entry.last = now;
            orders.push(Order {
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
        orders
    }

    /// The event that a failure belongs to. `None` if its pod has too many already.
    fn entry(&mut self, failure: &Failure, now: Duration) -> Option<&mut Entry> {
        let entries = self.pods.entry(failure.pod.clone()).or_default();
        let same = entries.iter().position(|entry| entry.is_of(failure));
        let at = match same {
            Some(at) => at,
            None if entries.len() < EVENTS_OF_POD => {
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
                    lasts: false,
                });
                entries.len() - 1
            }
            None => {
                let at = entries.iter().rposition(|entry| entry.reason == failure.reason)?;
                let entry = entries.get_mut(at)?;
                entry.volume.clone_from(&failure.volume);
                entry.message = format!("{COMBINED}{}", failure.message);
                entry.waits = failure.waits;
                at
            }
        };
        entries.get_mut(at)
    }
}

impl Entry {
    fn is_of(&self, failure: &Failure) -> bool {
        let message = self.message.strip_prefix(COMBINED).unwrap_or(&self.message);
        self.reason == failure.reason && self.volume == failure.volume && message == failure.message
    }

    fn is_due(&self, now: Duration) -> bool {
        let since = now.saturating_sub(self.last);
        match (self.count, self.waits, self.lasts) {
            (0, false, _) => true,
            (0, true, _) => now.saturating_sub(self.first) >= PATIENCE,
            (_, _, true) => since >= REPEAT,
            (_, true, false) => since >= PATIENCE,
            (_, false, false) => since >= REST,
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

    fn counts(orders: &[Order]) -> Vec<(u64, u32)> {
        orders.iter().map(|order| (order.number, order.count)).collect()
    }

    #[test]
    fn a_failure_is_told_at_once_and_counts_while_it_lasts_and_when_it_comes_again() {
        let mut book = Book::default();
        let hear = |book: &mut Book, failures: Vec<Failure>, now| book.hear(&node(), failures, at(now));
        let first = hear(&mut book, vec![failure("no such device")], 5);
        assert_eq!(counts(&first), [(1, 1)]);
        assert_eq!((first[0].first, first[0].last, &first[0].message[..]), (at(5), at(5), "no such device"));
        assert_eq!(hear(&mut book, vec![failure("no such device")], 50), [], "it is told already");
        assert_eq!(book.tick(|_| true, at(60)), []);
        let later = book.tick(|_| true, at(130));
        assert_eq!((counts(&later), later[0].first), (vec![(1, 2)], at(5)));
        // It ends; then it comes back, and another one with it.
        assert_eq!(hear(&mut book, vec![], 140), []);
        assert_eq!(book.tick(|_| true, at(600)), []);
        let both = hear(&mut book, vec![failure("no such device"), failure("busy")], 700);
        assert_eq!(counts(&both), [(1, 3), (2, 1)]);
        // A node that is away says nothing, and an hour later nothing is left.
        assert_eq!(book.tick(|_| false, at(900)), []);
        assert_eq!(book.tick(|_| true, at(700 + 3600)), []);
        assert!(book.pods.is_empty() && book.said.is_empty());
    }

    #[test]
    fn a_wait_is_told_when_it_has_lasted_and_only_then() {
        let mut book = Book::default();
        let waits = || vec![Failure { waits: true, ..failure("it waits for its VolumeAttachment") }];
        assert_eq!(book.hear(&node(), waits(), at(0)), []);
        assert_eq!(book.tick(|_| true, at(119)), []);
        assert_eq!(counts(&book.tick(|_| true, at(120))), [(1, 1)]);
        let mut short = Book::default();
        assert_eq!(short.hear(&node(), waits(), at(0)), []);
        assert_eq!(short.hear(&node(), vec![], at(100)), []);
        assert_eq!(short.hear(&node(), waits(), at(130)), [], "it is another wait");
        assert_eq!(short.tick(|_| true, at(140)), []);
    }

    #[test]
    fn ever_other_words_fill_no_cluster() {
        let mut book = Book::default();
        let mut orders = Vec::new();
        for number in 0..1000 {
            orders.extend(book.hear(&node(), vec![failure(&format!("try {number}"))], at(number)));
        }
        let events: BTreeSet<_> = orders.iter().map(|order| order.number).collect();
        assert_eq!(events.len(), EVENTS_OF_POD);
        assert!(orders.len() < EVENTS_OF_POD + 1000 / 10 + 1, "{} writes", orders.len());
        assert_eq!(orders.last().map(|order| order.message.starts_with(COMBINED)), Some(true));
        let pods = |pods: u64| {
            (0..pods).map(|pod| {
                let mut failure = failure("bad");
                failure.pod.uid = format!("u{pod}");
                failure
            })
        };
        let mut book = Book::default();
        assert_eq!(book.hear(&node(), pods(1000).collect(), at(0)).len(), ORDERS_AT_ONCE);
        assert_eq!(book.tick(|_| true, at(1)).len(), ORDERS_AT_ONCE, "the rest follows");
    }
}
