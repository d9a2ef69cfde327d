//! The memory for frames that are being received, shared by all links of a hub.
//!
//! A link may hold [`FREE_UNFINISHED`] bytes of unfinished frames; for more it takes bytes from the budget. A link
//! that gets none is not read. Waiting links cannot deadlock: each one holds part of a frame, and the session's
//! liveness timeout ends a link that receives no whole frame, which returns its bytes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::hub::identity::Identity;
use crate::link::{FREE_UNFINISHED, ReceiveLimits};

/// Bytes that a link takes from the budget at a time.
const STEP: usize = 256 << 10;

/// Lowest budget that suffices for one frame of this size: one identity may use half of it.
pub(super) const fn min_budget(max_frame: usize) -> usize {
    max_frame.saturating_mul(2).saturating_add(4 * STEP)
}

/// The budget of a hub.
#[derive(Debug)]
pub(super) struct ReceiveBudget(Mutex<Table>);

#[derive(Debug)]
struct Table {
    total: usize,
    used: usize,
    /// Bytes taken by the links of each identity that has taken any.
    by_identity: HashMap<Identity, usize>,
    /// The links that wait for bytes, by their number.
    waiting: HashMap<u64, Waker>,
    next_number: u64,
    waits: u64,
}

impl Table {
    /// Takes bytes, unless the identity would then have more than is unused: identities that do not finish their
    /// frames never use up the budget.
    fn take(&mut self, identity: &Identity, bytes: usize) -> bool {
        let own = self.by_identity.get(identity).copied().unwrap_or(0) + bytes;
        if own > self.total.saturating_sub(self.used) {
            return false;
        }
        self.used += bytes;
        self.by_identity.insert(identity.clone(), own);
        true
    }

    /// Returns bytes, and the wakers of the links that may now take some.
    fn give_back(&mut self, identity: &Identity, bytes: usize) -> HashMap<u64, Waker> {
        self.used = self.used.saturating_sub(bytes);
        if let Some(own) = self.by_identity.get_mut(identity) {
            *own = own.saturating_sub(bytes);
            if *own == 0 {
                self.by_identity.remove(identity);
            }
        }
        std::mem::take(&mut self.waiting)
    }
}

impl ReceiveBudget {
    pub(super) fn new(total: usize) -> Arc<Self> {
        let (by_identity, waiting) = (HashMap::new(), HashMap::new());
        Arc::new(Self(Mutex::new(Table { total, used: 0, by_identity, waiting, next_number: 0, waits: 0 })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes taken by all links, and how often a link had to wait.
    pub(super) fn stats(&self) -> (usize, u64) {
        let table = self.table();
        (table.used, table.waits)
    }

    /// Creates the share of a link, which has taken nothing.
    pub(super) fn share(self: &Arc<Self>, identity: Identity) -> ReceiveShare {
        let mut table = self.table();
        let number = table.next_number;
        table.next_number += 1;
        drop(table);
        ReceiveShare { budget: Arc::clone(self), identity, number, taken: 0 }
    }
}

/// The bytes that one link has taken; dropping the share returns them.
#[derive(Debug)]
pub(super) struct ReceiveShare {
    budget: Arc<ReceiveBudget>,
    identity: Identity,
    number: u64,
    taken: usize,
}

impl ReceiveShare {
    /// What the link may receive with this share.
    pub(super) const fn limits(&self) -> ReceiveLimits {
        ReceiveLimits { max_unfinished: FREE_UNFINISHED + self.taken, ..ReceiveLimits::UNLIMITED }
    }

    pub(super) const fn has_taken(&self) -> bool {
        self.taken > 0
    }

    /// Adapts the share to the unfinished bytes of the link, and returns new limits for it, if they change. If
    /// there are no bytes to take, wakes the task when another link returns some.
    pub(super) fn adapt(&mut self, unfinished: usize, cx: &Context<'_>) -> Option<ReceiveLimits> {
        if unfinished < FREE_UNFINISHED {
            return self.give_back().then(|| self.limits());
        }
        if unfinished < self.limits().max_unfinished {
            return None;
        }
        let mut table = self.budget.table();
        if table.take(&self.identity, STEP) {
            drop(table);
            self.taken += STEP;
            return Some(self.limits());
        }
        if table.waiting.insert(self.number, cx.waker().clone()).is_none() {
            table.waits += 1;
        }
        None
    }

    /// Returns all bytes. Returns `false` if there are none.
    fn give_back(&mut self) -> bool {
        let bytes = std::mem::take(&mut self.taken);
        if bytes == 0 {
            return false;
        }
        // The wakers are called without the lock.
        let waiting = self.budget.table().give_back(&self.identity, bytes);
        waiting.into_values().for_each(Waker::wake);
        true
    }
}

impl Drop for ReceiveShare {
    fn drop(&mut self) {
        self.budget.table().waiting.remove(&self.number);
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::PeerId;

    const MIB: usize = 1 << 20;

    fn identity(name: &str) -> Identity {
        Identity::Name(PeerId::new(name).unwrap())
    }

    /// Takes as much as a link of this share gets.
    fn fill(share: &mut ReceiveShare) -> usize {
        let cx = Context::from_waker(Waker::noop());
        while share.adapt(share.limits().max_unfinished, &cx).is_some() {}
        share.taken
    }

    /// The links of one identity get half of the budget together, the next identity half of the rest.
    #[test]
    fn identity_gets_at_most_what_is_unused() {
        let budget = ReceiveBudget::new(64 * MIB);
        let mut hostile: Vec<_> = (0..4).map(|_| budget.share(identity("hostile"))).collect();
        let taken: usize = hostile.iter_mut().map(fill).sum();
        assert_eq!(taken, 32 * MIB);
        let mut other = budget.share(identity("other"));
        assert_eq!(fill(&mut other), 16 * MIB);
        for number in 0..20 {
            let mut share = budget.share(identity(&format!("many-{number}")));
            fill(&mut share);
            hostile.push(share);
        }
        assert!(budget.stats().0 <= 64 * MIB);
        drop((hostile, other));
        assert_eq!(budget.stats().0, 0);
        let table = budget.table();
        assert!(table.by_identity.is_empty() && table.waiting.is_empty());
    }

    /// The lowest budget suffices for a largest frame.
    #[test]
    fn lowest_budget_holds_the_largest_frame() {
        for max_frame in [4 << 10, 8 * MIB, 100 * MIB + 1] {
            let mut share = ReceiveBudget::new(min_budget(max_frame)).share(identity("edge-1"));
            assert!(fill(&mut share) > max_frame, "{max_frame}");
        }
    }

    /// A finished frame returns the bytes and wakes the links that wait.
    #[test]
    fn finished_frame_wakes_waiting_links() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let budget = ReceiveBudget::new(STEP);
        let (mut one, mut other) = (budget.share(identity("one")), budget.share(identity("other")));
        assert_eq!(fill(&mut one), STEP);
        let flag = Arc::new(Flag(false.into()));
        let waker = Waker::from(Arc::clone(&flag));
        assert_eq!(other.adapt(FREE_UNFINISHED, &Context::from_waker(&waker)), None);
        assert_eq!(budget.stats().1, 2, "each had to wait once");
        let cx = Context::from_waker(Waker::noop());
        assert_eq!(one.adapt(FREE_UNFINISHED + 1, &cx), None, "the frame is not finished");
        assert_eq!(one.adapt(0, &cx).map(|limits| limits.max_unfinished), Some(FREE_UNFINISHED));
        assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
        assert_eq!(fill(&mut other), STEP);
    }
}
