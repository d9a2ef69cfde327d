//! A queue in which owners that may be hostile take turns.

use std::cmp::Ordering;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::hash::Hash;

use crate::fair_share::has_room;

/// What an item costs in addition to its bytes, so that items without bytes take turns too.
const ITEM_COST: u64 = 64;

/// The items of several owners. Those of one owner keep their order; owners take turns by bytes. An owner with many or
/// large items delays another by one item.
///
/// An owner may also reserve items, to be sure of their place later. Reserved items count as its own.
#[derive(Debug)]
pub(crate) struct FairQueue<K, T> {
    owners: HashMap<K, Owner<T>, foldhash::fast::RandomState>,
    /// One for each owner that has items, or had its last item before its turn.
    turns: BinaryHeap<Turn<K>>,
    /// The position of the turn that was taken last.
    position: u64,
    last_slot: u64,
    len: usize,
    bytes: usize,
    reserved: usize,
}

#[derive(Debug)]
struct Owner<T> {
    /// The items in the order of their slots. Places of removed items stay empty for a while.
    places: VecDeque<Place<T>>,
    len: usize,
    bytes: usize,
    reserved: usize,
    has_turn: bool,
}

#[derive(Debug)]
struct Place<T> {
    slot: u64,
    bytes: usize,
    item: Option<T>,
}

/// When an owner is next: after all turns at a lower position, which counts the bytes that it has sent.
#[derive(Debug)]
struct Turn<K> {
    position: u64,
    /// Unique; decides between equal positions.
    slot: u64,
    owner: K,
}

impl<K> Turn<K> {
    const fn rank(&self) -> (u64, u64) {
        (self.position, self.slot)
    }
}

impl<K> Ord for Turn<K> {
    /// The lowest position is the greatest turn, which the heap returns first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.rank().cmp(&self.rank())
    }
}

impl<K> PartialOrd for Turn<K> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K> PartialEq for Turn<K> {
    fn eq(&self, other: &Self) -> bool {
        self.rank() == other.rank()
    }
}

impl<K> Eq for Turn<K> {}

impl<T> Default for Owner<T> {
    fn default() -> Self {
        Self { places: VecDeque::new(), len: 0, bytes: 0, reserved: 0, has_turn: false }
    }
}

impl<T> Owner<T> {
    /// Places that an owner without items may keep allocated.
    const KEEP_PLACES: usize = 64;

    fn push(&mut self, slot: u64, bytes: usize, item: T) {
        self.places.push_back(Place { slot, bytes, item: Some(item) });
        self.len += 1;
        self.bytes += bytes;
    }

    fn pop(&mut self) -> Option<(usize, T)> {
        loop {
            let place = self.places.pop_front()?;
            if let Some(item) = place.item {
                self.on_removed(place.bytes);
                return Some((place.bytes, item));
            }
        }
    }

    fn find(&self, slot: u64) -> Option<usize> {
        let index = self.places.binary_search_by_key(&slot, |place| place.slot).ok()?;
        self.places[index].item.is_some().then_some(index)
    }

    fn remove(&mut self, slot: u64) -> Option<usize> {
        let index = self.find(slot)?;
        let place = &mut self.places[index];
        place.item = None;
        let bytes = place.bytes;
        self.on_removed(bytes);
        Some(bytes)
    }

    fn on_removed(&mut self, bytes: usize) {
        self.len -= 1;
        self.bytes -= bytes;
        if self.places.len() > 2 * self.len + Self::KEEP_PLACES {
            self.places.retain(|place| place.item.is_some());
        }
        if self.len == 0 && self.places.capacity() > Self::KEEP_PLACES {
            self.places = VecDeque::new();
        }
    }
}

impl<K, T> Default for FairQueue<K, T> {
    fn default() -> Self {
        Self {
            owners: HashMap::default(),
            turns: BinaryHeap::new(),
            position: 0,
            last_slot: 0,
            len: 0,
            bytes: 0,
            reserved: 0,
        }
    }
}

impl<K: Eq + Hash + Clone, T> FairQueue<K, T> {
    /// Number of items, without reserved ones.
    pub(crate) const fn len(&self) -> usize {
        self.len
    }

    /// Items of an owner, with reserved ones.
    pub(crate) fn items_of(&self, owner: &K) -> usize {
        self.owners.get(owner).map_or(0, |owner| owner.len + owner.reserved)
    }

    pub(crate) fn bytes_of(&self, owner: &K) -> usize {
        self.owners.get(owner).map_or(0, |owner| owner.bytes)
    }

    /// Whether an owner may have this many items more, of at most `max` for all owners.
    pub(crate) fn has_item_room(&self, owner: &K, items: usize, max: usize) -> bool {
        has_room(self.items_of(owner), items, self.len + self.reserved, max)
    }

    /// Whether an owner may have an item of this many bytes, of at most `max` bytes for all owners. One item is always
    /// allowed.
    pub(crate) fn has_byte_room(&self, owner: &K, bytes: usize, max: usize) -> bool {
        let held = self.bytes_of(owner);
        held == 0 || has_room(held, bytes, self.bytes, max)
    }

    /// Reserves an item of this owner.
    pub(crate) fn reserve(&mut self, owner: &K) {
        self.owners.entry(owner.clone()).or_default().reserved += 1;
        self.reserved += 1;
    }

    /// Ends a reservation, also to append the item for which it was made.
    pub(crate) fn release(&mut self, owner: &K) {
        let Some(held) = self.owners.get_mut(owner).filter(|held| held.reserved > 0) else { return };
        held.reserved -= 1;
        self.reserved -= 1;
        if held.reserved == 0 && !held.has_turn {
            self.owners.remove(owner);
        }
    }

    /// Appends an item and returns its slot, which no other item ever has.
    pub(crate) fn push(&mut self, owner: &K, bytes: usize, item: T) -> u64 {
        self.last_slot += 1;
        let slot = self.last_slot;
        let held = self.owners.entry(owner.clone()).or_default();
        held.push(slot, bytes, item);
        if !std::mem::replace(&mut held.has_turn, true) {
            self.turns.push(Turn { position: self.position, slot, owner: owner.clone() });
        }
        self.len += 1;
        self.bytes += bytes;
        slot
    }

    /// Removes the next item.
    pub(crate) fn pop(&mut self) -> Option<T> {
        loop {
            let mut turn = self.turns.peek_mut()?;
            let owner = self.owners.get_mut(&turn.owner);
            let has_reserved = owner.as_ref().is_some_and(|owner| owner.reserved > 0);
            let Some((bytes, item)) = owner.and_then(|owner| {
                let next = owner.pop();
                owner.has_turn = next.is_some();
                next
            }) else {
                if !has_reserved {
                    self.owners.remove(&turn.owner);
                }
                PeekMut::pop(turn);
                continue;
            };
            self.position = turn.position;
            turn.position += bytes as u64 + ITEM_COST;
            drop(turn);
            self.on_removed(bytes);
            return Some(item);
        }
    }

    /// Whether the item in this slot was neither popped nor removed.
    pub(crate) fn contains(&self, owner: &K, slot: u64) -> bool {
        self.owners.get(owner).is_some_and(|owner| owner.find(slot).is_some())
    }

    /// Removes an item and returns its size in bytes.
    pub(crate) fn remove(&mut self, owner: &K, slot: u64) -> Option<usize> {
        let bytes = self.owners.get_mut(owner)?.remove(slot)?;
        self.on_removed(bytes);
        Some(bytes)
    }

    fn on_removed(&mut self, bytes: usize) {
        self.len -= 1;
        self.bytes -= bytes;
        // Without items no owner is before another. An only owner, which is usual, is kept: it soon has items again.
        if self.len == 0 && self.turns.len() > 1 {
            self.turns = BinaryHeap::new();
            self.owners.retain(|_, owner| {
                owner.has_turn = false;
                owner.reserved > 0
            });
        }
    }

    /// Removes the items that are not to be kept.
    #[cfg(feature = "runtime")]
    pub(crate) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
        let removed: Vec<(K, u64)> = self
            .owners
            .iter()
            .flat_map(|(key, owner)| owner.places.iter().map(move |place| (key, place)))
            .filter(|(_, place)| place.item.as_ref().is_some_and(|item| !keep(item)))
            .map(|(key, place)| (key.clone(), place.slot))
            .collect();
        for (owner, slot) in removed {
            self.remove(&owner, slot);
        }
    }

    /// Removes everything, and returns the items in no order.
    pub(crate) fn clear(&mut self) -> impl Iterator<Item = T> {
        let removed = std::mem::replace(self, Self { last_slot: self.last_slot, ..Self::default() });
        removed.owners.into_values().flat_map(|held| held.places).filter_map(|place| place.item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Queue = FairQueue<&'static str, u32>;

    fn pop_all(queue: &mut Queue) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn owners_take_turns_by_bytes() {
        let mut queue = Queue::default();
        for item in 0..4 {
            queue.push(&"large", 100_000, item);
        }
        for item in 10..14 {
            queue.push(&"small", 40_000, item);
        }
        queue.push(&"one", 100_000, 20);
        assert_eq!((queue.len(), queue.bytes, queue.bytes_of(&"small")), (9, 660_000, 160_000));
        assert_eq!(pop_all(&mut queue), [0, 10, 20, 11, 12, 1, 13, 2, 3]);
        assert_eq!((queue.len(), queue.bytes, queue.owners.len()), (0, 0, 0));
    }

    /// An owner that has one item at a time, and appends the next when it is sent, is not preferred to one that waits.
    #[test]
    fn owner_that_returns_keeps_its_place() {
        let mut queue = Queue::default();
        queue.push(&"eager", 1000, 0);
        queue.push(&"waiting", 1000, 100);
        queue.push(&"waiting", 1000, 101);
        let mut sent = Vec::new();
        for item in 1..4 {
            sent.push(queue.pop().unwrap());
            queue.push(&"eager", 1000, item);
        }
        assert_eq!(sent, [0, 100, 1]);
        // A newcomer is before those that have sent more.
        queue.push(&"new", 1000, 200);
        assert_eq!(pop_all(&mut queue)[..2], [101, 200]);
    }

    #[test]
    fn items_without_bytes_take_turns() {
        let mut queue = Queue::default();
        for item in 0..3 {
            queue.push(&"a", 0, item);
            queue.push(&"b", 0, 10 + item);
        }
        assert_eq!(pop_all(&mut queue), [0, 10, 1, 11, 2, 12]);
    }

    #[test]
    fn removes_an_item_once_and_keeps_the_order() {
        let mut queue = Queue::default();
        let slots: Vec<u64> = (0..5).map(|item| queue.push(&"a", 10, item)).collect();
        assert_eq!(queue.pop(), Some(0));
        assert!(!queue.contains(&"a", slots[0]) && queue.remove(&"a", slots[0]).is_none(), "already popped");
        assert_eq!(queue.remove(&"b", slots[2]), None, "another owner's");
        assert_eq!((queue.remove(&"a", slots[2]), queue.remove(&"a", slots[2])), (Some(10), None));
        assert_eq!((queue.len(), queue.bytes, queue.items_of(&"a")), (3, 30, 3));
        assert_eq!(pop_all(&mut queue), [1, 3, 4]);
        let next = queue.push(&"a", 6, 7);
        assert!(queue.contains(&"a", next) && !slots.contains(&next));
        assert_eq!(queue.clear().collect::<Vec<_>>(), [7]);
        assert_eq!((queue.len(), queue.bytes), (0, 0));
        assert!(!queue.contains(&"a", next));
    }

    /// An item that stays keeps no memory for those that were removed behind it.
    #[test]
    fn removed_items_leave_no_places() {
        let mut queue = Queue::default();
        queue.push(&"a", 1, 0);
        for item in 1..1000 {
            let slots = [queue.push(&"a", 1, item), queue.push(&"a", 1, item)];
            assert_eq!(slots.map(|slot| queue.remove(&"a", slot)), [Some(1); 2]);
        }
        assert!(queue.owners["a"].places.len() < 100);
        assert_eq!(pop_all(&mut queue), [0]);
    }

    #[test]
    fn reserved_items_count_and_keep_no_turn() {
        let mut queue = Queue::default();
        for _ in 0..4 {
            queue.reserve(&"a");
        }
        queue.push(&"a", 0, 1);
        assert_eq!((queue.items_of(&"a"), queue.len()), (5, 1));
        assert!(queue.has_item_room(&"a", 1, 11) && !queue.has_item_room(&"a", 1, 10));
        assert!(queue.has_item_room(&"b", 5, 10) && !queue.has_item_room(&"b", 6, 10));
        queue.push(&"b", 100, 2);
        assert_eq!(pop_all(&mut queue), [1, 2]);
        assert_eq!((queue.items_of(&"a"), queue.owners.len()), (4, 1));
        for _ in 0..5 {
            queue.release(&"a");
        }
        assert_eq!((queue.reserved, queue.owners.len()), (0, 0));
    }

    #[test]
    fn one_item_of_any_size_is_allowed() {
        let mut queue = Queue::default();
        queue.push(&"a", 90, 1);
        assert!(!queue.has_byte_room(&"a", 1, 100) && queue.has_byte_room(&"b", 90, 100));
        queue.push(&"b", 90, 2);
        assert!(!queue.has_byte_room(&"b", 1, 100));
    }
}
