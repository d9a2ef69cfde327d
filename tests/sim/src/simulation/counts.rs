//! Checks of the sizes that the parts report of their tables.

use super::{Process, ProcessKind, Simulation};
use crate::attacker::MOST_NAMES;
use crate::network::MAX_FRAME;
use crate::oracle::Leftovers;

/// Bounds of the results that a dispatcher keeps.
const MOST_KEPT: usize = 4096;
const MOST_KEPT_BYTES: usize = 4 << 20;

impl Simulation {
    /// Checks the sizes of all tables against their bounds.
    pub(super) fn measure(&mut self) {
        let now = self.context.now();
        let peers = self.plan.places() + 2 + MOST_NAMES * self.plan.attackers.len();
        let processes = self.current.iter().flatten().chain(&self.older);
        for Process { instance, kind, .. } in processes {
            if let ProcessKind::Agent { dispatcher } = kind {
                let counts = dispatcher.operation_counts();
                let label = self.context.label(*instance);
                self.context.with(|inner| {
                    let bounds = &mut inner.oracle.bounds;
                    bounds.within(now, &label, "results kept", counts.kept, MOST_KEPT);
                    bounds.within(now, &label, "bytes of results", counts.bytes, MOST_KEPT_BYTES);
                    bounds.within(
                        now,
                        &label,
                        "calls that wait",
                        counts.waiters,
                        self.bounds.session.max_inbound_calls,
                    );
                });
            }
        }
        for hub in self.hubs.iter().flatten() {
            let stats = hub.stats();
            self.context.with(|inner| {
                let bounds = &mut inner.oracle.bounds;
                let most = (self.bounds.hub.max_calls + self.bounds.hub.max_local_calls) * peers;
                bounds.within(now, "the hub", "open calls", stats.open_calls, most);
                let most = self.bounds.hub.total_queue_bytes
                    + peers * (MAX_FRAME + 4 * 256 * self.bounds.hub.max_calls);
                bounds.within(now, "the hub", "bytes that wait", stats.queued_bytes, most);
            });
        }
        self.context.with(|inner| {
            for (_, vendor) in inner.vendors() {
                vendor.hang_up(|_| false);
            }
        });
    }

    pub(super) fn leftovers(&self) -> Leftovers {
        let mut left = Leftovers::default();
        for Process { instance, kind, .. } in self.current.iter().flatten() {
            if let ProcessKind::Agent { dispatcher } = kind {
                let counts = dispatcher.operation_counts();
                if counts.running + counts.waiters > 0 {
                    let label = self.context.label(*instance);
                    left.found.push(format!("{label} has operations without end: {counts:?}"));
                }
            }
        }
        for hub in self.hubs.iter().flatten() {
            let stats = hub.stats();
            // Each proxy has one open call, which watches the presence of nodes.
            if stats.open_calls > self.plan.proxies {
                left.found.push(format!("a hub keeps {} calls of {} peers", stats.open_calls, stats.peers));
            }
        }
        left
    }
}
