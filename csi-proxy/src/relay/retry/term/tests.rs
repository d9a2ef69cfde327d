#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use super::*;

/// The term of the start in these tests.
const FIRST: u64 = 1_000_000;
/// A term that no later proxy can have.
const BEYOND_CLOCKS: u64 = FIRST + 2 * 60 * 60 * 1000;

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

fn node(number: usize) -> NodeId {
    NodeId::new(format!("edge-{number}")).unwrap()
}

/// A proxy whose first `accepted` nodes have accepted a call.
fn proxy(accepted: usize, now: Instant) -> Terms {
    let mut terms = Terms::new(term(FIRST), now);
    for number in 0..accepted {
        terms.accepted(&node(number), term(FIRST));
    }
    terms
}

#[test]
fn lost_term_is_raised_above_each_node_that_refuses() {
    let now = Instant::now();
    let mut terms = proxy(0, now);
    for (number, recorded) in [(1, FIRST + 7), (2, FIRST), (3, BEYOND_CLOCKS)] {
        let node = node(number);
        let Refusal::Raised { term: raised, first: true } =
            terms.refused(&node, term(FIRST), term(recorded), now)
        else {
            panic!("not raised for {node}")
        };
        assert!(raised > term(recorded) && raised > term(FIRST));
        assert_eq!(terms.refused(&node, term(FIRST), term(recorded), now), Refusal::Outdated, "a copy");
        terms.accepted(&node, raised);
        assert_eq!(terms.term(&node), Ok(raised));
    }
    assert_eq!(terms.term(&node(4)), Ok(term(FIRST)), "other nodes are not concerned");
    assert_eq!(terms.refusing().count(), 0);
}

/// The later proxy has called some nodes, and this one calls them for the first time.
#[test]
fn term_is_not_raised_above_that_of_a_later_proxy() {
    let now = Instant::now();
    let mut terms = proxy(3, now);
    for (number, first) in [(0, true), (0, false)] {
        let refusal = terms.refused(&node(number), term(FIRST), term(FIRST + 5), now);
        assert_eq!(refusal, Refusal::Refused { first });
    }
    let later = now + Duration::from_secs(3 * 60 * 60);
    let refusal = terms.refused(&node(9), term(FIRST), term(BEYOND_CLOCKS), later);
    assert_eq!(refusal, Refusal::Refused { first: true }, "a proxy that started now can have it");
    assert_eq!(terms.refusing().count(), 2);
    terms.accepted(&node(0), term(FIRST));
    assert_eq!(
        terms.refusing().map(|(node, term)| (node.clone(), term)).collect::<Vec<_>>(),
        [(node(9), term(BEYOND_CLOCKS))]
    );
}

/// The clock was set back by less than the tolerance, and some nodes have no term yet.
#[test]
fn lost_term_is_raised_at_a_node_that_continues_to_refuse() {
    let start = Instant::now();
    let refused_at = |terms: &mut Terms, number, seconds| {
        let now = start + Duration::from_secs(seconds);
        let refusal = terms.refused(&node(number), term(FIRST), term(FIRST + 9), now);
        matches!(refusal, Refusal::Raised { .. })
    };
    let mut terms = proxy(4, start);
    assert!(!refused_at(&mut terms, 9, 2));
    assert!(!refused_at(&mut terms, 9, 31), "a later proxy may not have called the other nodes yet");
    assert!(refused_at(&mut terms, 9, 32));
    // A later proxy is at work.
    let mut terms = proxy(4, start);
    for seconds in [2, 32, 99] {
        assert!(!refused_at(&mut terms, 1, seconds), "a node that had accepted");
        assert!(!refused_at(&mut terms, 9, seconds));
    }
}

#[test]
fn one_node_of_several_never_ends_the_proxy() {
    let now = Instant::now();
    for accepted in 0..4 {
        let mut terms = proxy(accepted, now);
        let liar = node(99);
        terms.accepted(&liar, term(FIRST));
        for recorded in [FIRST, FIRST + 1, BEYOND_CLOCKS, Term::MAX.get(), BEYOND_CLOCKS, FIRST + 1] {
            let found = terms.term(&liar).unwrap();
            let refusal = terms.refused(&liar, found, term(recorded), now);
            assert!(!matches!(refusal, Refusal::Replaced(_)), "{refusal:?}");
            terms.accepted(&liar, found);
        }
        for number in 0..5 {
            assert_eq!(terms.term(&node(number)), Ok(term(FIRST)));
        }
    }
}

#[test]
fn proxy_that_most_nodes_refuse_is_replaced() {
    let now = Instant::now();
    let mut terms = proxy(5, now);
    for number in 0..2 {
        let refusal = terms.refused(&node(number), term(FIRST), term(FIRST + 1), now);
        assert_eq!(refusal, Refusal::Refused { first: true });
    }
    let replaced = Replaced { found: term(FIRST), current: term(FIRST + 1) };
    let refusal = terms.refused(&node(2), term(FIRST), term(FIRST + 1), now);
    assert_eq!((refusal, terms.replaced()), (Refusal::Replaced(replaced), Some(replaced)));
    terms.accepted(&node(2), term(FIRST));
    assert_eq!(terms.term(&node(4)), Err(replaced), "permanently");
}

#[test]
fn proxy_of_one_node_is_replaced_if_that_refuses() {
    let now = Instant::now();
    let mut terms = proxy(1, now);
    terms.set_one_node();
    let replaced = Replaced { found: term(FIRST), current: term(FIRST + 1) };
    assert_eq!(terms.refused(&node(0), term(FIRST), term(FIRST + 1), now), Refusal::Replaced(replaced));
}

/// An older proxy has raised its term above that of this one at a node. If no other node answers, a start with a higher term
/// ends that. Otherwise this one raises its own, once the others would refuse it if a later proxy ran.
#[test]
fn node_that_an_older_proxy_took_comes_back() {
    let now = Instant::now();
    for others in [0, 1] {
        let mut terms = proxy(1 + others, now);
        let mut refuse = |at| terms.refused(&node(0), term(FIRST), term(FIRST + 5), at);
        assert_eq!(refuse(now), Refusal::Refused { first: true });
        assert_eq!(refuse(now + LONE_REFUSAL / 2), Refusal::Refused { first: false });
        let is_replaced = matches!(refuse(now + LONE_REFUSAL), Refusal::Replaced(_));
        assert_eq!(is_replaced, others == 0);
        let refusal = terms.refused(&node(0), term(FIRST), term(FIRST + 5), now + ALL_ASKED);
        let is_raised = matches!(refusal, Refusal::Raised { term: raised, .. } if raised > term(FIRST + 5));
        assert_eq!(is_raised, others == 1, "{refusal:?}");
    }
}

/// Another caller with the certificate of the driver has raised the term at the node.
#[test]
fn accepted_proxy_raises_its_term_once_beyond_all_clocks() {
    let now = Instant::now();
    let mut terms = proxy(1, now);
    terms.set_one_node();
    let refusal = terms.refused(&node(0), term(FIRST), Term::CLOCK_MAX, now);
    let Refusal::Raised { term: raised, .. } = refusal else { panic!("{refusal:?}") };
    assert!(raised > Term::CLOCK_MAX && raised.may_follow(Some(Term::CLOCK_MAX)));
    terms.accepted(&node(0), raised);
    // The next one may be that of a later proxy, which has also raised its term.
    let refusal = terms.refused(&node(0), raised, raised.next(), now);
    assert!(matches!(refusal, Refusal::Replaced(_)), "{refusal:?}");
}

#[test]
fn term_is_raised_at_a_node_whose_numbers_were_closed() {
    let now = Instant::now();
    let mut terms = proxy(2, now);
    let refusal = terms.number_refused(&node(0), term(FIRST));
    let Refusal::Raised { term: raised, first: true } = refusal else { panic!("{refusal:?}") };
    assert_eq!((terms.term(&node(0)), terms.term(&node(1))), (Ok(raised), Ok(term(FIRST))));
    assert_eq!(terms.number_refused(&node(0), term(FIRST)), Refusal::Outdated);
    // A later proxy has called meanwhile.
    assert_eq!(terms.refused(&node(0), raised, raised.next(), now), Refusal::Refused { first: true });
    assert_eq!(terms.number_refused(&node(0), raised), Refusal::Refused { first: false });
}

#[test]
fn accepts_only_the_term_in_use() {
    let now = Instant::now();
    let mut terms = proxy(0, now);
    let refusal = terms.refused(&node(0), term(FIRST), term(FIRST + 1), now);
    assert!(matches!(refusal, Refusal::Raised { .. }));
    terms.accepted(&node(0), term(FIRST));
    assert!(!terms.is_accepted(&node(0), terms.term(&node(0)).unwrap()));
}

#[test]
fn terms_increase_with_and_without_the_clock() {
    let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
    let next =
        |previous: Option<u64>, millis| next_term(previous.map(term), at(millis)).map(Term::get).unwrap();
    assert_eq!(next(None, 0), 1);
    assert_eq!(next(None, 1000), 1000);
    assert_eq!(next(Some(1000), 900), 1001, "the clock was set back");
    assert_eq!(next(Some(1000), 2000), 2000);
    assert_eq!(next(None, 1 << 43), Term::CLOCK_MAX.get(), "a wrong clock");
    assert_eq!(next(Some(Term::CLOCK_MAX.get()), 1 << 43), Term::CLOCK_MAX.get() + 1);
    let before = UNIX_EPOCH - Duration::from_secs(1);
    assert_eq!(next_term(None, before).map(Term::get).unwrap(), 1);
    assert!(matches!(next_term(Some(Term::MAX), at(0)), Err(TermError::Exhausted { .. })));
}

#[tokio::test]
async fn terms_in_memory_increase_over_restarts() {
    let terms = ClockTerms::default();
    let first = terms.raise().await.unwrap();
    let second = terms.raise().await.unwrap();
    assert!(first < second);
    assert!(first.get() > 1_600_000_000_000, "after the year 2020");
}
