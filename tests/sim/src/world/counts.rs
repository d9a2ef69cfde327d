//! What the parts say of their own tables.

use super::{Process, ProcessKind, World};
use crate::network::MAX_FRAME;
use crate::oracle::Leftovers;

/// Bounds of what a dispatcher keeps.
const MOST_KEPT: usize = 4096;
const MOST_KEPT_BYTES: usize = 4 << 20;

impl World {
    /// Are the bounds kept?
    pub(super) fn measure(&mut self) {
        let (now, places) = (self.context.now(), self.plan.places());
        let processes = self.current.iter().flatten().chain(&self.older);
        for Process { life, kind, .. } in processes {
            if let ProcessKind::Agent { dispatcher } = kind {
                let counts = dispatcher.operation_counts();
                let who = self.context.label(*life);
                self.context.with(|inner| {
                    let bounds = &mut inner.oracle.bounds;
                    bounds.within(now, &who, "results kept", counts.kept, MOST_KEPT);
                    bounds.within(now, &who, "bytes of results", counts.bytes, MOST_KEPT_BYTES);
                    bounds.within(
                        now,
                        &who,
                        "calls that wait",
                        counts.waiters,
                        self.bounds.session.max_serving,
                    );
                });
            }
        }
        for hub in self.hubs.iter().flatten() {
            let stats = hub.stats();
            self.context.with(|inner| {
                let bounds = &mut inner.oracle.bounds;
                let most = (self.bounds.hub.max_calls + self.bounds.hub.max_own_calls) * (places + 2);
                bounds.within(now, "the hub", "open calls", stats.open_calls, most);
                let most = self.bounds.hub.total_queue_bytes
                    + (places + 2) * (MAX_FRAME + 4 * 256 * self.bounds.hub.max_calls);
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
        for Process { life, kind, .. } in self.current.iter().flatten() {
            if let ProcessKind::Agent { dispatcher } = kind {
                let counts = dispatcher.operation_counts();
                if counts.running + counts.waiters > 0 {
                    let who = self.context.label(*life);
                    left.found.push(format!("{who} has operations without end: {counts:?}"));
                }
            }
        }
        for hub in self.hubs.iter().flatten() {
            let stats = hub.stats();
            // Each proxy watches which nodes are there.
            if stats.open_calls > self.plan.proxies {
                left.found.push(format!("a hub keeps {} calls of {} peers", stats.open_calls, stats.peers));
            }
        }
        left
    }
}
