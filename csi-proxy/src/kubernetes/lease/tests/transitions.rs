//! What a candidate does at each event.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use fastrand::Rng;

use super::super::LeaseLost;
use super::super::core::{Action, Core, Event, Now, Record, Stop, Timing, Write};
use crate::call::Term;

const DURATION: Duration = Duration::from_secs(15);
/// The clock at the start, in milliseconds.
const CLOCK: u64 = 1_800_000_000_000;

/// A candidate and its time.
struct Bench {
    core: Core,
    start: Instant,
    now: Duration,
}

impl Bench {
    fn new() -> Self {
        let core = Core::new("own".to_owned(), Timing::new(DURATION), Rng::with_seed(1));
        Self { core, start: Instant::now(), now: Duration::ZERO }
    }

    fn on(&mut self, event: Event) -> Action {
        let wall = UNIX_EPOCH + Duration::from_millis(CLOCK) + self.now;
        self.core.on(event, Now { instant: self.start + self.now, wall })
    }

    /// The event, this much later.
    fn after(&mut self, seconds: u64, event: Event) -> Action {
        self.now += Duration::from_secs(seconds);
        self.on(event)
    }

    fn holder() -> Self {
        let mut bench = Self::new();
        assert_eq!(bench.on(Event::Wake), Action::Read);
        written(bench.on(Event::Read(None)));
        wait(bench.on(Event::Written));
        assert_eq!(bench.core.held(), Some((term(CLOCK), bench.start + Duration::from_secs(10))));
        bench
    }
}

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

fn written(action: Action) -> Write {
    let Action::Write(write) = action else { panic!("{action:?}") };
    write
}

fn wait(action: Action) -> Instant {
    let Action::Wait(until) = action else { panic!("{action:?}") };
    until
}

fn lost(action: Action) -> LeaseLost {
    let Action::Stop(Stop::Lost(lost)) = action else { panic!("{action:?}") };
    lost
}

fn record(holder: &str, number: u64) -> Record {
    Record { holder: holder.to_owned(), duration: DURATION, transitions: 4, term: Term::new(number) }
}

fn read(version: &str, record: Record) -> Event {
    Event::Read(Some((version.to_owned(), record)))
}

#[test]
fn times_are_in_proportion() {
    let seconds = Duration::from_secs;
    let timing = Timing::new(seconds(15));
    assert_eq!((timing.deadline, timing.retry, timing.request), (seconds(10), seconds(2), seconds(5)));
}

#[test]
fn missing_lease_is_acquired() {
    let mut bench = Bench::new();
    assert_eq!(bench.on(Event::Wake), Action::Read);
    let write = written(bench.on(Event::Read(None)));
    assert_eq!(write.record, Record { transitions: 0, ..record("own", CLOCK) });
    assert_eq!(bench.core.held(), None, "not before the answer");
    wait(bench.after(3, Event::Written));
    // From the time before the write was sent.
    assert_eq!(bench.core.held(), Some((term(CLOCK), bench.start + Duration::from_secs(10))));
}

#[test]
fn released_lease_is_acquired_at_once() {
    let mut bench = Bench::new();
    let write = written(bench.on(read("1", record("", CLOCK + 9))));
    assert_eq!(write.record, Record { transitions: 5, ..record("own", CLOCK + 10) });
}

#[test]
fn unchanged_lease_is_acquired_after_its_duration() {
    let mut bench = Bench::new();
    wait(bench.on(read("1", record("other", 7))));
    assert_eq!(bench.after(2, Event::Wake), Action::Read);
    // A renewal, which may have the same content.
    wait(bench.on(read("2", record("other", 7))));
    let until = wait(bench.after(14, read("2", record("other", 7))));
    assert_eq!(until, bench.start + Duration::from_secs(17), "the next read is not after the duration");
    wait(bench.on(Event::Failed));
    let write = written(bench.after(1, read("2", record("other", 7))));
    assert_eq!(write.record, Record { transitions: 5, ..record("own", CLOCK + 17_000) });
}

/// A candidate with a shorter duration waits for the longer one in the Lease, but not forever.
#[test]
fn duration_of_the_holder_counts() {
    for (found, waits) in [(0, 15), (20, 20), (100_000, 300)] {
        let mut bench = Bench::new();
        let record = Record { duration: Duration::from_secs(found), ..record("other", 7) };
        wait(bench.on(read("1", record.clone())));
        wait(bench.after(waits - 1, read("1", record.clone())));
        written(bench.after(1, read("1", record)));
    }
}

/// The time of the other holder continues, whatever happens to the write.
#[test]
fn failed_acquisition_reads_again() {
    for event in [Event::Failed, Event::Refused] {
        let mut bench = Bench::new();
        wait(bench.on(read("1", record("other", 7))));
        written(bench.after(15, read("1", record("other", 7))));
        wait(bench.on(event));
        assert_eq!(bench.core.held(), None);
        assert_eq!(bench.after(1, Event::Wake), Action::Read);
        written(bench.on(read("1", record("other", 7))));
    }
}

/// The own write was executed, but its answer was lost: it is acquired again with a higher term.
#[test]
fn term_rises_when_the_same_candidate_acquires_again() {
    let mut bench = Bench::new();
    let first = written(bench.on(Event::Read(None)));
    wait(bench.on(Event::Failed));
    assert_eq!(bench.on(Event::Wake), Action::Read);
    let second = written(bench.on(read("1", first.record.clone())));
    assert_eq!(second.record, Record { term: Term::new(CLOCK + 1), ..first.record });
}

/// The term rises above those that were read before, when the Lease is deleted and the clock was set back too.
#[test]
fn term_rises_over_a_deleted_lease() {
    let mut bench = Bench::new();
    wait(bench.on(read("1", record("other", CLOCK + 100_000))));
    let write = written(bench.after(1, Event::Read(None)));
    assert_eq!(write.record.term, Term::new(CLOCK + 100_001));
}

#[test]
fn last_term_stops_a_candidate() {
    let mut bench = Bench::new();
    let stop = bench.on(read("1", record("", Term::MAX.get())));
    assert_eq!(stop, Action::Stop(Stop::NoTerm { above: Term::MAX }));
}

#[test]
fn late_answer_does_not_acquire() {
    let mut bench = Bench::new();
    written(bench.on(Event::Read(None)));
    assert_eq!(bench.after(10, Event::Written), Action::Read);
    assert_eq!(bench.core.held(), None);
}

#[test]
fn holder_renews_with_the_same_term() {
    let mut bench = Bench::holder();
    for round in 0..10 {
        let write = written(bench.after(2, Event::Wake));
        assert_eq!(
            (write.record.term, write.acquired),
            (Term::new(CLOCK), SystemTime::UNIX_EPOCH + Duration::from_millis(CLOCK))
        );
        let sent = bench.start + bench.now;
        let until = wait(bench.after(1, Event::Written));
        let now = bench.start + bench.now;
        assert!(until >= now + Duration::from_secs(1) && until <= now + Duration::from_secs(3), "{round}");
        assert_eq!(bench.core.held(), Some((term(CLOCK), sent + Duration::from_secs(10))));
    }
}

#[test]
fn holder_without_answer_loses_at_the_deadline() {
    let mut bench = Bench::holder();
    written(bench.after(9, Event::Wake));
    // It does not wait for longer than that.
    assert_eq!(wait(bench.on(Event::Failed)), bench.start + Duration::from_secs(10));
    let deadline = Duration::from_secs(10);
    assert_eq!(lost(bench.after(1, Event::Wake)), LeaseLost::NotRenewed { deadline });
    // An answer that arrives afterwards changes nothing.
    assert_eq!(lost(bench.on(Event::Written)), LeaseLost::NotRenewed { deadline });
    assert_eq!(bench.core.held(), None);
}

#[test]
fn refused_renewal_is_repeated_if_the_lease_is_still_held() {
    let mut bench = Bench::holder();
    written(bench.after(2, Event::Wake));
    assert_eq!(bench.on(Event::Refused), Action::Read);
    written(bench.on(read("9", record("own", CLOCK))));
    wait(bench.on(Event::Written));
}

#[test]
fn holder_loses_to_another_holder() {
    for (event, expected) in [
        (read("9", record("other", CLOCK + 1)), LeaseLost::Taken { holder: "other".to_owned() }),
        (read("9", record("", CLOCK)), LeaseLost::Taken { holder: String::new() }),
        (read("9", record("own", CLOCK + 1)), LeaseLost::Taken { holder: "own".to_owned() }),
        (Event::Read(None), LeaseLost::Deleted),
    ] {
        let mut bench = Bench::holder();
        written(bench.after(2, Event::Wake));
        assert_eq!(bench.on(Event::Refused), Action::Read);
        assert_eq!(lost(bench.on(event)), expected);
        assert_eq!(bench.core.held(), None);
    }
}

#[test]
fn release_empties_the_holder() {
    for answer in [Event::Written, Event::Refused, Event::Failed] {
        let mut bench = Bench::holder();
        let write = written(bench.after(2, Event::Release));
        assert_eq!(write.record, Record { transitions: 0, ..record("", CLOCK) });
        assert_eq!(bench.core.held(), None, "not held from the moment in which the write is sent");
        assert_eq!(bench.on(answer), Action::Stop(Stop::Released));
    }
    let mut bench = Bench::new();
    wait(bench.on(read("1", record("other", 7))));
    assert_eq!(bench.on(Event::Release), Action::Stop(Stop::Released));
}

#[test]
fn candidates_do_not_wait_for_the_same_time() {
    let pause = |seed| {
        let mut core = Core::new("own".to_owned(), Timing::new(DURATION), Rng::with_seed(seed));
        let now = Now { instant: Instant::now(), wall: UNIX_EPOCH };
        wait(core.on(read("1", record("other", 7)), now)) - now.instant
    };
    let mut pauses: Vec<Duration> = (0..50).map(pause).collect();
    assert!(pauses.iter().all(|pause| (1.0..=2.0).contains(&pause.as_secs_f64())));
    pauses.sort();
    pauses.dedup();
    assert!(pauses.len() > 40, "{pauses:?}");
}
