//! The memory for frames that are being received, shared by all links of a hub.
//!
//! A link may hold [`FREE_UNFINISHED`] bytes of unfinished frames; for more it takes bytes from the budget, and it
//! returns them as its frames become complete. A link that gets none waits: it is not read.
//!
//! The budget has two parts. The shared part is divided by what is unused, so that few identities do not use it up.
//! The reserve suffices for one largest frame and belongs to one link at a time, first to those whose identity holds
//! least: every link that waits can finish a frame, whatever the others do. A link that has all it needs and
//! receives no whole frame is ended by the session's liveness timeout, which returns its bytes.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use crate::fair_share::FairShare;
use crate::hub::identity::Identity;
use crate::link::{FREE_UNFINISHED, ReceiveLimits};

/// Bytes that a link takes from the budget at a time.
const STEP: usize = 256 << 10;

/// Bytes of the reserve: one largest frame, rounded up.
const fn reserve(max_frame: usize) -> usize {
    max_frame.saturating_add(STEP)
}

/// Lowest budget: the reserve, and as much to share.
pub(super) const fn min_budget(max_frame: usize) -> usize {
    reserve(max_frame).saturating_mul(2).saturating_add(2 * STEP)
}

/// Whose frames a link receives.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    /// Number of the link.
    link: u64,
    identity: Identity,
    /// Whether the peer may call others. The links of all other peers use at most half of the shared part.
    is_caller: bool,
}

/// The budget of a hub.
#[derive(Debug)]
pub(super) struct ReceiveBudget(Mutex<Table>);

#[derive(Debug)]
struct Table {
    /// The shared part, divided by identity.
    shared: FairShare<Identity>,
    used_by_nodes: usize,
    /// Bytes of the reserve.
    reserve: usize,
    /// The link that has the reserve, and the bytes that it has taken of it.
    turn: Option<(u64, usize)>,
    /// The links that wait and are not woken, first come first. Empty while no link has the reserve.
    waiting: BTreeMap<u64, (Owner, Waker)>,
    next_link: u64,
    waits: u64,
}

impl Table {
    fn has_turn(&self, owner: &Owner) -> bool {
        self.turn.is_some_and(|(link, _)| link == owner.link)
    }

    /// Whether the shared part has bytes for a link. A node's identity may hold a third of what the nodes' half has unused.
    fn has_room(&self, owner: &Owner, bytes: usize) -> bool {
        let unused_by_nodes = (self.shared.max() / 2).saturating_sub(self.used_by_nodes);
        let is_in_half = || self.shared.held_by(&owner.identity) + bytes <= unused_by_nodes / 3;
        self.shared.has_room(&owner.identity, bytes) && (owner.is_caller || is_in_half())
    }

    /// Takes bytes, of the reserve if the link has it. Gives the link the reserve if no link has it.
    fn take(&mut self, owner: &Owner, bytes: usize) -> bool {
        if !self.has_turn(owner) && self.has_room(owner, bytes) {
            self.take_shared(owner, bytes);
            return true;
        }
        let (link, taken) = *self.turn.get_or_insert((owner.link, 0));
        if link != owner.link {
            return false;
        }
        if taken + bytes <= self.reserve {
            self.turn = Some((link, taken + bytes));
            return true;
        }
        // Several frames at once may need more than the reserve.
        let has_room = self.has_room(owner, bytes);
        if has_room {
            self.take_shared(owner, bytes);
        }
        has_room
    }

    fn take_shared(&mut self, owner: &Owner, bytes: usize) {
        self.shared.take(&owner.identity, bytes);
        if !owner.is_caller {
            self.used_by_nodes += bytes;
        }
    }

    /// Returns bytes, first those of the reserve, which goes to the next link once it is whole. Returns the wakers of
    /// the links that may now take some.
    fn give_back(&mut self, owner: &Owner, bytes: usize) -> Vec<Waker> {
        let mut bytes = bytes;
        if let Some((link, taken)) = &mut self.turn
            && *link == owner.link
        {
            let returned = bytes.min(*taken);
            *taken -= returned;
            bytes -= returned;
            if *taken == 0 {
                self.turn = None;
            }
        }
        self.shared.give_back(&owner.identity, bytes);
        if !owner.is_caller {
            self.used_by_nodes = self.used_by_nodes.saturating_sub(bytes);
        }
        let next = self.next_turn();
        next.into_iter().chain(self.wake(bytes / STEP)).collect()
    }

    /// Gives the reserve to the waiting link whose identity holds least, unless a link has it.
    fn next_turn(&mut self) -> Option<Waker> {
        if self.turn.is_some() {
            return None;
        }
        let least =
            |(number, (owner, _)): &(&u64, &(Owner, Waker))| (self.shared.held_by(&owner.identity), **number);
        let number = self.waiting.iter().min_by_key(least).map(|(number, _)| *number)?;
        let (owner, waker) = self.waiting.remove(&number)?;
        self.turn = Some((owner.link, 0));
        Some(waker)
    }

    /// Removes the first waiting links that may take bytes of the shared part, at most this many.
    fn wake(&mut self, links: usize) -> Vec<Waker> {
        let may_take =
            |(number, (owner, _)): (&u64, &(Owner, Waker))| self.has_room(owner, STEP).then_some(*number);
        let numbers: Vec<u64> = self.waiting.iter().filter_map(may_take).take(links).collect();
        numbers.iter().filter_map(|number| self.waiting.remove(number)).map(|(_, waker)| waker).collect()
    }
}

impl ReceiveBudget {
    /// Creates a budget of at least [`min_budget`] bytes.
    pub(super) fn new(total: usize, max_frame: usize) -> Arc<Self> {
        let reserve = reserve(max_frame);
        Arc::new(Self(Mutex::new(Table {
            shared: FairShare::new(total.saturating_sub(reserve)),
            used_by_nodes: 0,
            reserve,
            turn: None,
            waiting: BTreeMap::new(),
            next_link: 0,
            waits: 0,
        })))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The bytes taken by all links, and how often a link had to wait.
    pub(super) fn stats(&self) -> (usize, u64) {
        let table = self.table();
        (table.shared.used() + table.turn.map_or(0, |(_, taken)| taken), table.waits)
    }

    /// Creates the share of a link, which has taken nothing.
    pub(super) fn share(self: &Arc<Self>, identity: Identity, is_caller: bool) -> ReceiveShare {
        let mut table = self.table();
        let link = table.next_link;
        table.next_link += 1;
        drop(table);
        let owner = Owner { link, identity, is_caller };
        ReceiveShare { budget: Arc::clone(self), owner, taken: 0, place: None }
    }
}

/// The bytes that one link has taken; dropping the share returns them.
#[derive(Debug)]
pub(super) struct ReceiveShare {
    budget: Arc<ReceiveBudget>,
    owner: Owner,
    taken: usize,
    /// The link's place among those that wait, while it waits.
    place: Option<u64>,
}

impl ReceiveShare {
    /// What the link may receive with this share.
    pub(super) const fn limits(&self) -> ReceiveLimits {
        ReceiveLimits { max_unfinished: FREE_UNFINISHED + self.taken, ..ReceiveLimits::UNLIMITED }
    }

    pub(super) const fn has_taken(&self) -> bool {
        self.taken > 0
    }

    /// Whether a frame is arriving that needs bytes of the budget.
    pub(super) const fn is_in_use(&self) -> bool {
        self.taken > 0 || self.place.is_some()
    }

    /// Whether the link is not read because others hold the bytes that it needs. A link that has the reserve and
    /// needs still more does not wait for others: it must finish a frame.
    pub(super) fn is_waiting(&self) -> bool {
        self.place.is_some() && !self.budget.table().has_turn(&self.owner)
    }

    /// Adapts the share to the unfinished bytes of the link, and returns new limits for it, if they change. If
    /// there are no bytes to take, wakes the task when another link returns some.
    pub(super) fn adapt(&mut self, unfinished: usize, cx: &Context<'_>) -> Option<ReceiveLimits> {
        if unfinished < self.limits().max_unfinished {
            // One step more than needed, so that a growing frame does not take and return in turns.
            let needed = unfinished.checked_sub(FREE_UNFINISHED).map_or(0, |over| (over / STEP + 2) * STEP);
            let excess = self.taken.saturating_sub(needed);
            if excess > 0 || self.place.is_some() {
                self.give_back(excess);
            }
            return (excess > 0).then(|| self.limits());
        }
        let mut table = self.budget.table();
        if table.take(&self.owner, STEP) {
            if let Some(place) = self.place.take() {
                table.waiting.remove(&place);
            }
            drop(table);
            self.taken += STEP;
            return Some(self.limits());
        }
        let place = *self.place.get_or_insert(table.waits);
        table.waits = table.waits.max(place + 1);
        table.waiting.insert(place, (self.owner.clone(), cx.waker().clone()));
        None
    }

    /// Returns bytes, and the reserve if the link needed none of it, and wakes the links that may now take some.
    fn give_back(&mut self, bytes: usize) {
        self.taken -= bytes;
        let mut table = self.budget.table();
        if let Some(place) = self.place.take() {
            table.waiting.remove(&place);
        }
        let wakers = table.give_back(&self.owner, bytes);
        // The wakers are called without the lock.
        drop(table);
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Drop for ReceiveShare {
    fn drop(&mut self) {
        self.give_back(self.taken);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::PeerId;

    const MIB: usize = 1 << 20;
    const MAX_FRAME: usize = 8 * MIB;

    fn identity(name: &str) -> Identity {
        Identity::Name(PeerId::new(name).unwrap())
    }

    fn budget() -> Arc<ReceiveBudget> {
        ReceiveBudget::new(64 * MIB + reserve(MAX_FRAME), MAX_FRAME)
    }

    fn context() -> Context<'static> {
        Context::from_waker(Waker::noop())
    }

    /// Takes as much as a link of this share gets, at most `max` bytes.
    fn fill_to(share: &mut ReceiveShare, max: usize) -> usize {
        while share.taken < max && share.adapt(share.limits().max_unfinished, &context()).is_some() {}
        share.taken
    }

    fn fill(share: &mut ReceiveShare) -> usize {
        fill_to(share, usize::MAX)
    }

    fn is_unused(budget: &ReceiveBudget) -> bool {
        let table = budget.table();
        let is_empty = table.waiting.is_empty() && table.turn.is_none();
        is_empty && table.shared.used() + table.used_by_nodes == 0
    }

    /// The links of one identity get half of the shared part together, the next identity half of the rest, and
    /// one of them the reserve.
    #[test]
    fn identity_gets_at_most_what_is_unused() {
        let budget = budget();
        let mut hostile: Vec<_> = (0..4).map(|_| budget.share(identity("hostile"), true)).collect();
        let taken: usize = hostile.iter_mut().map(fill).sum();
        assert_eq!(taken, 32 * MIB + reserve(MAX_FRAME));
        let mut other = budget.share(identity("other"), true);
        assert_eq!(fill(&mut other), 16 * MIB);
        for number in 0..20 {
            let mut share = budget.share(identity(&format!("many-{number}")), true);
            fill(&mut share);
            hostile.push(share);
        }
        assert!(budget.stats().0 <= 64 * MIB + reserve(MAX_FRAME));
        drop((hostile, other));
        assert!(is_unused(&budget));
    }

    /// All links of one node get a quarter of the nodes' half together, and one of them the reserve.
    #[test]
    fn node_gets_a_quarter_of_the_nodes_half() {
        let budget = budget();
        let mut links: Vec<_> = (0..3).map(|_| budget.share(identity("edge-1"), false)).collect();
        let taken: usize = links.iter_mut().map(fill).sum();
        assert_eq!(taken, 8 * MIB + reserve(MAX_FRAME));
    }

    /// However many nodes there are, they leave half of the shared part to the callers.
    #[test]
    fn nodes_leave_half_to_callers() {
        let budget = budget();
        let mut nodes: Vec<_> =
            (0..100).map(|number| budget.share(identity(&format!("edge-{number}")), false)).collect();
        let taken: usize = nodes.iter_mut().map(fill).sum();
        assert!(taken <= 32 * MIB + reserve(MAX_FRAME), "{taken}");
        let mut caller = budget.share(identity("proxy"), true);
        assert!(fill(&mut caller) >= 16 * MIB);
    }

    /// The lowest budget suffices for a largest frame of each kind of peer.
    #[test]
    fn lowest_budget_holds_the_largest_frame() {
        for (max_frame, is_caller) in
            [4 << 10, 8 * MIB, 100 * MIB + 1].map(|max| [(max, true), (max, false)]).concat()
        {
            let budget = ReceiveBudget::new(min_budget(max_frame), max_frame);
            let mut share = budget.share(identity("edge-1"), is_caller);
            assert!(fill(&mut share) > max_frame, "{max_frame}");
        }
    }

    /// A share shrinks with the unfinished bytes, not only when none are left: small traffic cannot hold what a large
    /// frame took.
    #[test]
    fn excess_is_returned_while_frames_are_unfinished() {
        let budget = budget();
        let mut share = budget.share(identity("edge-1"), false);
        assert_eq!(fill_to(&mut share, 8 * MIB), 8 * MIB);
        let limits = share.adapt(FREE_UNFINISHED + 1, &context()).unwrap();
        assert_eq!(limits.max_unfinished, FREE_UNFINISHED + 2 * STEP);
        assert_eq!(budget.stats().0, 2 * STEP);
        assert_eq!(share.adapt(FREE_UNFINISHED + 1, &context()), None);
        assert_eq!(share.adapt(0, &context()).map(|limits| limits.max_unfinished), Some(FREE_UNFINISHED));
        assert!(is_unused(&budget));
    }

    #[derive(Default)]
    struct Flag(std::sync::atomic::AtomicBool);

    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }

    impl Flag {
        fn is_set(&self) -> bool {
            self.0.load(std::sync::atomic::Ordering::SeqCst)
        }
    }

    /// Of the waiting links the one whose identity holds least gets the reserve, as soon as its owner has finished
    /// a frame or has ended; an identity that holds much waits longer.
    #[test]
    fn reserve_goes_to_the_identity_that_holds_least() {
        let budget = budget();
        let mut holders: Vec<_> =
            (0..6).map(|number| budget.share(identity(&format!("hostile-{number}")), false)).collect();
        assert!(holders.iter_mut().all(|share| fill(share) > 0));
        assert!(!holders[0].is_waiting(), "the first has the reserve, and waits for no other");
        assert!(holders[1].is_waiting());
        let flag = Arc::new(Flag::default());
        let waker = Waker::from(Arc::clone(&flag));
        let mut genuine = budget.share(identity("edge-1"), false);
        let cx = Context::from_waker(&waker);
        while genuine.adapt(genuine.limits().max_unfinished, &cx).is_some() {}
        assert!(genuine.is_waiting() && !flag.is_set());
        // The first finishes its frame in the reserve, and holds what it has of the shared part.
        let shared = holders[0].taken - reserve(MAX_FRAME);
        assert!(holders[0].adapt(FREE_UNFINISHED + shared - 2 * STEP, &context()).is_some());
        assert!(flag.is_set());
        assert!(fill(&mut genuine) > MAX_FRAME);
        assert!(!genuine.is_waiting(), "what is missing now is missing by its own fault");
        drop((genuine, holders));
        assert!(is_unused(&budget));
    }

    /// A finished frame returns the bytes and wakes a link that waits; a link that has ended passes the reserve on.
    #[test]
    fn finished_frame_wakes_waiting_links() {
        let budget = ReceiveBudget::new(STEP, 0);
        let mut one = budget.share(identity("one"), true);
        assert_eq!(fill(&mut one), STEP);
        let waiting = ["two", "three"].map(|name| {
            let (flag, mut share) = (Arc::new(Flag::default()), budget.share(identity(name), true));
            let waker = Waker::from(Arc::clone(&flag));
            assert_eq!(share.adapt(FREE_UNFINISHED, &Context::from_waker(&waker)), None);
            (share, flag)
        });
        let [(two, two_woken), (mut three, three_woken)] = waiting;
        assert_eq!(budget.stats().1, 3, "each had to wait once");
        assert_eq!(one.adapt(FREE_UNFINISHED + 1, &context()), None, "the frame is not finished");
        assert_eq!(one.adapt(0, &context()).map(|limits| limits.max_unfinished), Some(FREE_UNFINISHED));
        assert!(two_woken.is_set() && !three_woken.is_set());
        drop(two);
        assert!(three_woken.is_set());
        assert_eq!(fill(&mut three), STEP);
    }
}
