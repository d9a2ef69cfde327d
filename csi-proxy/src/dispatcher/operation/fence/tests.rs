use super::*;
use crate::call::{CallNumber, GivenUp};

fn driver() -> DriverName {
    DriverName::new("csi-hostpath").unwrap()
}

fn n(number: u64) -> CallNumber {
    CallNumber::new(number).unwrap()
}

fn fence(term: u64, number: u64, lowest_open: u64, given_up: &[(u64, u64)]) -> Fence {
    let given_up = GivenUp::new(given_up.iter().map(|(first, last)| n(*first)..=n(*last))).unwrap();
    Fence::new(Term::new(term).unwrap(), n(number), n(lowest_open), given_up).unwrap()
}

fn fences(term: u64) -> DriverFence {
    let mut fences = DriverFence::default();
    fences.raise(Term::new(term).unwrap());
    fences
}

/// The options of an arriving call.
#[derive(Debug, PartialEq)]
enum Passage {
    Begin,
    Join,
}

fn arrive(fences: &mut DriverFence, fence: &Fence) -> Result<Passage, &'static str> {
    fences.arrive(&driver(), fence).map_err(|fault| fault.kind())?;
    Ok(if fences.may_begin(&driver(), fence).is_ok() { Passage::Begin } else { Passage::Join })
}

#[test]
fn refuses_lower_term_and_names_the_current_one() {
    let mut fences = fences(7);
    let fault = fences.arrive(&driver(), &fence(6, 1, 1, &[])).unwrap_err();
    let (found, current) = (Term::new(6).unwrap(), Term::new(7).unwrap());
    assert_eq!(fault, Fault::StaleTerm { driver: driver(), found, current });
}

#[test]
fn refuses_higher_term_until_it_is_recorded() {
    let mut fences = fences(7);
    assert_eq!(arrive(&mut fences, &fence(8, 1, 1, &[])), Err("term_not_recorded"));
    assert_eq!(arrive(&mut fences, &fence(7, 1, 1, &[])), Ok(Passage::Begin));
    fences.raise(Term::new(8).unwrap());
    fences.raise(Term::new(7).unwrap());
    assert_eq!(fences.term(), Term::new(8), "it never falls");
    assert_eq!(arrive(&mut fences, &fence(8, 1, 1, &[])), Ok(Passage::Begin));
}

#[test]
fn ignores_reports_of_a_lower_term() {
    let mut fences = fences(8);
    assert_eq!(arrive(&mut fences, &fence(7, 90, 80, &[(85, 86)])), Err("stale_term"));
    assert_eq!(arrive(&mut fences, &fence(8, 1, 1, &[])), Ok(Passage::Begin));
}

#[test]
fn refuses_closed_and_given_up_numbers() {
    let mut fences = fences(1);
    assert_eq!(arrive(&mut fences, &fence(1, 20, 10, &[(12, 13), (15, 15)])), Ok(Passage::Begin));
    let passes: Vec<_> =
        (1..=20).filter(|number| arrive(&mut fences, &fence(1, *number, 1, &[])).is_ok()).collect();
    assert_eq!(passes, [10, 11, 14, 16, 17, 18, 19, 20]);
}

#[test]
fn reports_apply_to_all_later_calls() {
    let mut fences = fences(1);
    arrive(&mut fences, &fence(1, 20, 2, &[(4, 4)])).unwrap();
    arrive(&mut fences, &fence(1, 21, 3, &[(6, 6)])).unwrap();
    // An older copy with an earlier report.
    arrive(&mut fences, &fence(1, 19, 1, &[])).unwrap();
    for number in [1, 2, 4, 6] {
        assert_eq!(arrive(&mut fences, &fence(1, number, 1, &[])), Err("stale_call"), "{number}");
        assert!(fences.may_begin(&driver(), &fence(1, number, 1, &[])).is_err(), "{number}");
    }
}

#[test]
fn begun_number_may_join_until_closed() {
    let mut fences = fences(1);
    let call = fence(1, 5, 1, &[]);
    assert!(fences.begin(&call));
    assert_eq!(arrive(&mut fences, &call), Ok(Passage::Join));
    assert_eq!(fences.may_begin(&driver(), &call).unwrap_err().kind(), "stale_call");
    assert!(!fences.begin(&call), "once");
    arrive(&mut fences, &fence(1, 9, 6, &[])).unwrap();
    assert_eq!(arrive(&mut fences, &call), Err("stale_call"), "it is closed");
}

#[test]
fn earlier_term_marks_no_number() {
    let mut fences = fences(1);
    fences.raise(Term::new(2).unwrap());
    fences.begin(&fence(1, 5, 1, &[]));
    assert_eq!(arrive(&mut fences, &fence(2, 5, 1, &[])), Ok(Passage::Begin));
}

/// A caller that skips numbers closes some of its proxy's, and does not stop its calls.
#[test]
fn full_fence_closes_the_lowest_numbers_and_evicts_none() {
    let mut fences = fences(1);
    let max = MAX_RANGES as u64;
    // Every second number has begun, the first stays open.
    for at in 1..=max {
        let call = fence(1, 2 * at, 1, &[]);
        assert_eq!(arrive(&mut fences, &call), Ok(Passage::Begin));
        fences.begin(&call);
    }
    assert_eq!(arrive(&mut fences, &fence(1, 3, 1, &[])), Ok(Passage::Begin), "the fence is full");
    let next = fence(1, 2 * max + 2, 1, &[]);
    assert_eq!(arrive(&mut fences, &next), Ok(Passage::Begin));
    fences.begin(&next);
    assert_eq!(fences.begun.len(), MAX_RANGES);
    let refused = |number| fences.may_begin(&driver(), &fence(1, number, 1, &[])).is_err();
    assert!(refused(3), "it was closed");
    assert!((1..=max + 1).all(|at| refused(2 * at)), "these have begun");
    assert!(!refused(1) && !refused(5) && !refused(2 * max + 4));

    let mut fences = self::fences(1);
    for at in 0..4 {
        let ranges: Vec<_> =
            (1..=1024).map(|range| (2 * (at * 1024 + range), 2 * (at * 1024 + range))).collect();
        assert_eq!(arrive(&mut fences, &fence(1, 100_001, 1, &ranges)), Ok(Passage::Begin));
    }
    assert_eq!(arrive(&mut fences, &fence(1, 3, 1, &[])), Ok(Passage::Begin));
    assert_eq!(arrive(&mut fences, &fence(1, 100_001, 1, &[(50_000, 50_000)])), Ok(Passage::Begin));
    assert_eq!(fences.given_up.len(), MAX_RANGES);
    for number in [2, 3, 4, 50_000] {
        assert_eq!(arrive(&mut fences, &fence(1, number, 1, &[])), Err("stale_call"), "{number}");
    }
    assert_eq!(arrive(&mut fences, &fence(1, 5, 1, &[])), Ok(Passage::Begin));
}
