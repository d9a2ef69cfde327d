#![allow(clippy::unwrap_used, reason = "a failing test panics")]

use std::time::Duration;

use super::*;

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

#[test]
fn first_refusal_raises_the_term_later_one_replaces() {
    let mut current_term = CurrentTerm::Raised(term(3));
    let refused = TermStatus::Refused;
    assert_eq!(current_term.refused(term(3), term(8), refused), Refusal::Raise);
    current_term.raised(term(9));
    current_term.accepted(term(9));
    let earlier = current_term.refused(term(3), term(8), refused);
    assert_eq!(earlier, Refusal::Outdated, "a copy with the earlier term");
    assert_eq!(current_term.term(), Ok(term(9)));
    let replaced = Replaced { found: term(9), current: term(10) };
    assert_eq!(current_term.refused(term(9), term(10), TermStatus::Contested), Refusal::OneNode);
    assert_eq!(current_term.refused(term(9), term(10), TermStatus::Confirmed), Refusal::Raise);
    assert_eq!(current_term.refused(term(9), term(10), refused), Refusal::Replaced(replaced));
    current_term.raised(term(11));
    current_term.accepted(term(11));
    assert_eq!(current_term.term(), Err(replaced), "permanently");
}

#[test]
fn accepts_only_the_term_in_use() {
    let mut current_term = CurrentTerm::Raised(term(9));
    current_term.accepted(term(3));
    assert_eq!(current_term, CurrentTerm::Raised(term(9)));
}

#[test]
fn terms_increase_with_and_without_the_clock() {
    let at = |millis| UNIX_EPOCH + Duration::from_millis(millis);
    let next = |previous, above, millis| {
        next_term(Option::map(previous, term), Option::map(above, term), at(millis)).map(Term::get).unwrap()
    };
    assert_eq!(next(None, None, 0), 1);
    assert_eq!(next(None, None, 1000), 1000);
    assert_eq!(next(Some(1000), None, 900), 1001, "the clock was set back");
    assert_eq!(next(Some(1000), Some(5000), 2000), 5001, "a node has recorded a higher term");
    assert_eq!(next(Some(1000), Some(10), 2000), 2000);
    let before = UNIX_EPOCH - Duration::from_secs(1);
    assert_eq!(next_term(None, None, before).map(Term::get).unwrap(), 1);
}

/// A node that reports a false highest term cannot exhaust all terms: neither of this start, nor of later ones.
#[test]
fn rejects_terms_beyond_the_maximum() {
    let now = UNIX_EPOCH + Duration::from_secs(1_800_000_000);
    let latest = 1_800_000_000_000 + u64::try_from(MAX_AHEAD.as_millis()).unwrap();
    for above in [latest + 1, MAX_TERM - 1, MAX_TERM, u64::MAX] {
        let error = next_term(None, Some(term(above)), now).unwrap_err();
        assert!(error.to_string().contains(&above.to_string()), "{error}");
    }
    let raised = next_term(None, Some(term(latest)), now).unwrap();
    assert_eq!(raised.get(), latest + 1);
    assert_eq!(next_term(Some(raised), None, now).unwrap().get(), latest + 2);
    // The proxy loses its state: the clock has passed more than the starts since.
    assert!(next_term(None, Some(term(latest + 2)), now + Duration::from_secs(1)).is_ok());
    assert!(next_term(Some(term(MAX_TERM)), None, now).is_err());
}

#[tokio::test]
async fn terms_in_memory_increase_over_restarts() {
    let terms = ClockTerms::default();
    let first = terms.raise(None).await.unwrap();
    let second = terms.raise(None).await.unwrap();
    let third = terms.raise(Some(term(second.get() + 1000))).await.unwrap();
    assert!(first < second && second.get() + 1000 < third.get());
    assert!(first.get() > 1_600_000_000_000, "after the year 2020");
}
