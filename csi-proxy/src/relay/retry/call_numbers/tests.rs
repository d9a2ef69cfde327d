#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).unwrap()
}

fn ranges(fence: &Fence) -> Vec<(u64, u64)> {
    fence.given_up().ranges().map(|range| (range.start().get(), range.end().get())).collect()
}

#[test]
fn fence_lists_open_and_given_up_calls() {
    let (mut numbers, node) = (Numbers::default(), node("a"));
    let calls: Vec<_> = (0..7).map(|_| numbers.open(&node).unwrap()).collect();
    numbers.close(&node, calls[2], Closed::GivenUp);
    numbers.close(&node, calls[4], Closed::Answered);
    numbers.close(&node, calls[5], Closed::GivenUp);
    let fence = numbers.fence(&node, Term::FIRST, calls[6]).unwrap();
    assert_eq!(
        (fence.number().get(), fence.lowest_open().get(), ranges(&fence)),
        (7, 1, vec![(3, 3), (6, 6)])
    );
    // Once the fourth is closed, everything between the second and the last is closed.
    numbers.close(&node, calls[3], Closed::Answered);
    assert_eq!(ranges(&numbers.fence(&node, Term::FIRST, calls[6]).unwrap()), [(3, 6)]);
    numbers.close(&node, calls[0], Closed::GivenUp);
    let fence = numbers.fence(&node, Term::FIRST, calls[1]).unwrap();
    assert_eq!((fence.lowest_open().get(), ranges(&fence)), (2, vec![(3, 6)]));
}

#[test]
fn open_calls_per_node_are_limited() {
    let (mut numbers, busy) = (Numbers::default(), node("busy"));
    let calls: Vec<_> = (0..MAX_OPEN).map(|_| numbers.open(&busy).unwrap()).collect();
    assert_eq!(numbers.open(&busy), None);
    assert!(numbers.open(&node("other")).is_some());
    numbers.close(&busy, calls[7], Closed::GivenUp);
    assert!(numbers.open(&busy).is_some());
}

/// A node can store the begun numbers as few ranges.
#[test]
fn calls_are_numbered_from_1_per_node() {
    let mut numbers = Numbers::default();
    for expected in 1..5 {
        for name in ["a", "b"] {
            let number = numbers.open(&node(name)).unwrap();
            assert_eq!(number.get(), expected);
            numbers.close(&node(name), number, Closed::Answered);
        }
    }
}

#[derive(Debug, Clone)]
enum Act {
    Open(bool),
    Close(usize, bool),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        any::<bool>().prop_map(Act::Open),
        (any::<usize>(), any::<bool>()).prop_map(|(which, given_up)| Act::Close(which, given_up))
    ]
}

proptest! {
    /// Compares with a model of all numbers: open numbers are not fenced, given-up ones are, and the ranges do not exceed the
    /// number of open calls.
    #[test]
    fn fence_covers_exactly_the_given_up_calls(
        acts in proptest::collection::vec(act(), 1..200)
    ) {
        let nodes = [node("a"), node("b")];
        let mut numbers = Numbers::default();
        let mut open: [Vec<CallNumber>; 2] = Default::default();
        let mut given_up: [BTreeSet<CallNumber>; 2] = Default::default();
        let mut lowest = [CallNumber::FIRST; 2];
        for act in acts {
            match act {
                Act::Open(second) => {
                    let at = usize::from(second);
                    open[at].push(numbers.open(&nodes[at]).unwrap());
                }
                Act::Close(which, gives_up) => {
                    let at = which % 2;
                    if open[at].is_empty() {
                        continue;
                    }
                    let place = (which / 2) % open[at].len();
                    let number = open[at].remove(place);
                    if gives_up {
                        given_up[at].insert(number);
                    }
                    numbers.close(&nodes[at], number, if gives_up { Closed::GivenUp } else { Closed::Answered });
                }
            }
            for at in 0..2 {
                for number in &open[at] {
                    let fence = numbers.fence(&nodes[at], Term::FIRST, *number).unwrap();
                    prop_assert!(fence.lowest_open() >= lowest[at], "it never decreases");
                    lowest[at] = fence.lowest_open();
                    prop_assert!(fence.given_up().ranges().len() <= open[at].len());
                    let is_fenced = |number: &CallNumber| {
                        *number < fence.lowest_open() || fence.given_up().contains(*number)
                    };
                    prop_assert!(!open[at].iter().any(is_fenced));
                    prop_assert!(given_up[at].iter().all(is_fenced));
                }
            }
            let kept = numbers.0.values().map(|node| node.open.len()).sum::<usize>();
            prop_assert_eq!(kept, open.iter().map(Vec::len).sum::<usize>());
        }
    }
}
