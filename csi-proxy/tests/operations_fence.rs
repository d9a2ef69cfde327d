//! The fence at a dispatcher: durable terms, and late copies of calls.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use common::counting::{call, create, delete};
use common::edge::{Edge, asked};
use common::{driver_name, in_time};
use csi_proto::csi::v1 as csi;
use csi_proxy::advanced::call::{CallNumber, Fence, GivenUp};
use csi_proxy::advanced::terms::MemoryTerms;
use csi_proxy::{Call, DriverName, Fault, Term, TermStore, TermStoreError};
use tokio::sync::Semaphore;

fn n(number: u64) -> CallNumber {
    CallNumber::new(number).unwrap()
}

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

/// Adds a fence of this term, with all numbers below `lowest_open` closed.
fn fenced(call: Call, of_term: u64, number: u64, lowest_open: u64) -> Call {
    call.with_fence(Fence::new(term(of_term), n(number), n(lowest_open), GivenUp::default()).unwrap())
}

/// A disk that may fail, or hang without permits.
#[derive(Debug)]
struct Disk {
    terms: MemoryTerms,
    fails: AtomicBool,
    leave: Semaphore,
}

#[derive(Debug, Clone)]
struct Terms(Arc<Disk>);

impl Terms {
    fn new() -> Self {
        let (terms, fails, leave) = (MemoryTerms::default(), AtomicBool::new(false), Semaphore::new(1 << 20));
        Self(Arc::new(Disk { terms, fails, leave }))
    }

    async fn works(&self) -> Result<(), TermStoreError> {
        self.0.leave.acquire().await.unwrap().forget();
        if self.0.fails.load(Ordering::SeqCst) { Err(TermStoreError::new("disk full")) } else { Ok(()) }
    }
}

#[async_trait]
impl TermStore for Terms {
    async fn load(&self, driver: &DriverName) -> Result<Option<Term>, TermStoreError> {
        self.works().await?;
        self.0.terms.load(driver).await
    }

    async fn raise(&self, driver: &DriverName, term: Term) -> Result<(), TermStoreError> {
        self.works().await?;
        self.0.terms.raise(driver, term).await
    }

    async fn forget(&self, driver: &DriverName) -> Result<(), TermStoreError> {
        self.works().await?;
        self.0.terms.forget(driver).await
    }
}

fn edge(terms: &Terms) -> Edge {
    let mut edge = Edge::free();
    edge.dispatcher = edge.dispatcher.with_terms(terms.clone());
    edge
}

#[tokio::test]
async fn replaced_proxy_is_refused_after_node_restart() {
    let terms = Terms::new();
    let first = edge(&terms);
    assert!(asked(&first.dispatcher, fenced(create("a"), 1, 1, 1)).await.is_ok());
    assert!(asked(&first.dispatcher, fenced(create("b"), 2, 1, 1)).await.is_ok());
    let second = edge(&terms);
    let stale = Fault::StaleTerm { driver: driver_name(), found: term(1), current: term(2) };
    let reading = csi::ValidateVolumeCapabilitiesRequest { volume_id: "v".to_owned(), ..Default::default() };
    for edge in [first, second] {
        let calls =
            [create("c"), call("ValidateVolumeCapabilities", &reading), call("LaterVersion", &reading)];
        for call in calls {
            assert_eq!(asked(&edge.dispatcher, fenced(call, 1, 2, 1)).await, Err(stale.clone()));
        }
        assert_eq!(edge.driver.executions("CreateVolume c"), 0);
        assert!(asked(&edge.dispatcher, fenced(create("d"), 2, 2, 1)).await.is_ok());
    }
}

#[tokio::test]
async fn term_is_durable_before_its_first_call() {
    let terms = Terms::new();
    let edge = edge(&terms);
    terms.0.fails.store(true, Ordering::SeqCst);
    for call in [create("a"), call("LaterVersion", &csi::ProbeRequest {})] {
        let fault = asked(&edge.dispatcher, fenced(call, 1, 1, 1)).await.unwrap_err();
        assert!(matches!(fault, Fault::TermNotRecorded { .. }), "{fault:?}");
    }
    assert!(edge.driver.all().is_empty());
    assert!(asked(&edge.dispatcher, create("local")).await.is_ok(), "it needs no term");
    terms.0.fails.store(false, Ordering::SeqCst);
    assert!(asked(&edge.dispatcher, fenced(create("a"), 1, 1, 1)).await.is_ok());
    assert_eq!(terms.0.terms.load(&driver_name()).await.unwrap(), Some(term(1)));
}

#[tokio::test(start_paused = true)]
async fn hanging_disk_is_waited_for_at_most_10_s() {
    let terms = Terms::new();
    let edge = edge(&terms);
    terms.0.leave.forget_permits(1 << 20);
    let fault = asked(&edge.dispatcher, fenced(create("a"), 1, 1, 1)).await.unwrap_err();
    assert!(matches!(fault, Fault::TermNotRecorded { .. }), "{fault:?}");
    // All calls of a new term wait for one write of the term.
    let calls: Vec<_> = (1..=8).map(|at| edge.ask(fenced(create(&at.to_string()), 1, at, 1))).collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert!(edge.driver.all().is_empty());
    terms.0.leave.add_permits(2);
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}

/// The caller's time is not counted anew after the wait for the disk.
#[tokio::test]
async fn wait_for_the_term_is_part_of_the_deadline() {
    let terms = Terms::new();
    let mut edge = Edge::holding();
    edge.dispatcher = edge.dispatcher.with_terms(terms.clone()).with_volume_wait(Duration::from_secs(60));
    let running = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    tokio::time::pause();
    terms.0.leave.forget_permits(1 << 20);
    let began = tokio::time::Instant::now();
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    let expand = fenced(call("ControllerExpandVolume", &expand), 1, 1, 1);
    let late = edge.ask(expand.with_remaining(Duration::from_secs(8)));
    tokio::time::sleep(Duration::from_secs(5)).await;
    terms.0.leave.add_permits(2);
    let fault = late.await.unwrap().unwrap_err();
    assert!(matches!(fault, Fault::OperationPending { .. }), "{fault:?}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    // A caller does not wait longer for the disk either.
    terms.0.leave.forget_permits(1 << 20);
    let hanging = fenced(delete("w"), 2, 1, 1).with_remaining(Duration::from_secs(1));
    let (began, fault) = (tokio::time::Instant::now(), asked(&edge.dispatcher, hanging).await.unwrap_err());
    assert!(matches!(fault, Fault::TermNotRecorded { .. }), "{fault:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    tokio::time::resume();
    edge.driver.release(1);
    assert!(running.await.unwrap().is_ok());
}

fn kind(answer: Result<(Vec<bytes::Bytes>, csi_proxy::Outcome), Fault>) -> &'static str {
    answer.map_or_else(|fault| fault.kind(), |_| "answered")
}

/// A caller with the certificate of the driver cannot lock its proxy out of the node.
#[tokio::test]
async fn one_call_cannot_use_up_the_terms() {
    let terms = Terms::new();
    let clock = Term::CLOCK_MAX.get();
    for restarted in [false, true] {
        let edge = edge(&terms);
        let first = if restarted { 3 } else { 1 };
        assert_eq!(kind(asked(&edge.dispatcher, fenced(create("a"), first, 1, 1)).await), "answered");
        for term in [clock + 1025, Term::MAX.get()] {
            let refused = asked(&edge.dispatcher, fenced(create("b"), term, 1, 1)).await;
            assert_eq!(kind(refused), "term_not_recorded", "{term}");
        }
        assert_eq!(kind(asked(&edge.dispatcher, fenced(create("c"), first + 1, 1, 1)).await), "answered");
    }
    assert_eq!(terms.0.terms.load(&driver_name()).await.unwrap(), Some(term(4)));
    let edge = edge(&terms);
    for term in [clock, clock + 1024, clock + 2048] {
        assert_eq!(
            kind(asked(&edge.dispatcher, fenced(create("d"), term, 1, 1)).await),
            "answered",
            "{term}"
        );
    }
}

/// Each rise is a write to the disk of the node.
#[tokio::test(start_paused = true)]
async fn storm_of_terms_is_bounded_and_does_not_delay_other_drivers() {
    let terms = Terms::new();
    let edge = edge(&terms);
    let other: DriverName = "other".parse().unwrap();
    edge.dispatcher.register(csi_proxy::Driver::new(other.clone(), "unix:///nowhere.sock".parse().unwrap()));
    let before = terms.0.leave.available_permits();
    for term in 1..=100 {
        let answer = kind(asked(&edge.dispatcher, fenced(create("a"), term, term, term)).await);
        assert_eq!(answer, if term <= 8 { "answered" } else { "term_not_recorded" }, "{term}");
    }
    assert_eq!(before - terms.0.leave.available_permits(), 9, "one read and eight writes");
    // A storm that waits for the disk.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let permits = terms.0.leave.forget_permits(1 << 20);
    let storm: Vec<_> = (101..=200).map(|term| edge.ask(fenced(create("b"), term, 1, 1))).collect();
    tokio::task::yield_now().await;
    let mut first = create("c");
    first.driver = other.clone();
    let began = tokio::time::Instant::now();
    let first = edge.ask(fenced(first, 5, 1, 1));
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert!(!first.is_finished());
    // One for the waiting write, and two for the read and the write of the other driver.
    terms.0.leave.add_permits(3);
    assert_eq!(kind(first.await.unwrap()), "driver_socket_missing");
    assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    terms.0.leave.add_permits(permits);
    for call in storm {
        call.await.unwrap().ok();
    }
}

#[tokio::test]
async fn forgotten_term_lets_a_lower_one_in() {
    let terms = Terms::new();
    let edge = edge(&terms);
    let clock = Term::CLOCK_MAX.get();
    assert_eq!(kind(asked(&edge.dispatcher, fenced(create("a"), clock, 1, 1)).await), "answered");
    assert_eq!(kind(asked(&edge.dispatcher, fenced(create("b"), 7, 1, 1)).await), "stale_term");
    terms.0.fails.store(true, Ordering::SeqCst);
    edge.dispatcher.forget_term(&driver_name()).await.unwrap_err();
    assert_eq!(kind(asked(&edge.dispatcher, fenced(create("b"), 7, 1, 1)).await), "stale_term");
    terms.0.fails.store(false, Ordering::SeqCst);
    edge.dispatcher.forget_term(&driver_name()).await.unwrap();
    assert_eq!(kind(asked(&edge.dispatcher, fenced(create("b"), 7, 1, 1)).await), "answered");
    assert_eq!(terms.0.terms.load(&driver_name()).await.unwrap(), Some(term(7)));
}

#[tokio::test]
async fn unregistered_driver_has_no_term() {
    let terms = Terms::new();
    let edge = edge(&terms);
    let other: DriverName = "other".parse().unwrap();
    let mut call = create("a");
    call.driver = other.clone();
    let fault = asked(&edge.dispatcher, fenced(call, 7, 1, 1)).await.unwrap_err();
    assert_eq!(fault, Fault::DriverNotRegistered { driver: other.clone() });
    assert_eq!(terms.0.terms.load(&other).await.unwrap(), None);
}

#[tokio::test]
async fn given_up_call_does_not_begin() {
    let edge = Edge::free();
    let reading = csi::ValidateVolumeCapabilitiesRequest { volume_id: "v".to_owned(), ..Default::default() };
    assert!(asked(&edge.dispatcher, fenced(delete("v"), 1, 9, 5)).await.is_ok());
    for (at, call) in [create("a"), call("ValidateVolumeCapabilities", &reading)].into_iter().enumerate() {
        let number = at as u64 + 1;
        let stale = Fault::StaleCall { driver: driver_name(), number: n(number) };
        assert_eq!(asked(&edge.dispatcher, fenced(call, 1, number, 1)).await, Err(stale));
    }
    assert_eq!(edge.driver.all().len(), 1, "{:?}", edge.driver.all());
}

/// A mutating call begins once under its number; a read-only one may be sent again.
#[tokio::test]
async fn only_read_only_calls_begin_again() {
    let edge = Edge::free();
    let reading = csi::ValidateVolumeCapabilitiesRequest { volume_id: "v".to_owned(), ..Default::default() };
    for (number, what, again) in [(1, "ValidateVolumeCapabilities", true), (2, "LaterVersion", false)] {
        let copy = fenced(call(what, &reading), 1, number, 1);
        assert!(asked(&edge.dispatcher, copy.clone()).await.is_ok());
        assert_eq!(asked(&edge.dispatcher, copy).await.is_ok(), again, "{what}");
    }
}

#[tokio::test]
async fn call_given_up_while_queued_does_not_begin() {
    let edge = Edge::holding();
    let running = edge.ask(fenced(delete("v"), 1, 1, 1));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    let waits = edge.ask(fenced(call("ControllerExpandVolume", &expand), 1, 2, 1));
    edge.until(|counts| counts.waiting == 1).await;
    let later = edge.ask(fenced(delete("w"), 1, 3, 3));
    edge.driver.wait_for_executions("DeleteVolume w", 1).await;
    edge.driver.release(3);
    assert!(running.await.unwrap().is_ok() && later.await.unwrap().is_ok());
    let stale = Fault::StaleCall { driver: driver_name(), number: n(2) };
    assert_eq!(waits.await.unwrap(), Err(stale));
    assert_eq!(edge.driver.executions("ControllerExpandVolume v"), 0);
}

/// The number of the call has begun when the call left the queue, so the driver executes the call although its caller
/// has left.
#[tokio::test]
async fn operation_of_a_leaving_caller_completes() {
    let edge = Edge::holding();
    let running = edge.ask(delete("v"));
    edge.driver.wait_for_executions("DeleteVolume v", 1).await;
    let expand = csi::ControllerExpandVolumeRequest { volume_id: "v".to_owned(), ..Default::default() };
    let expand = || call("ControllerExpandVolume", &expand);
    let mut first = Box::pin(asked(&edge.dispatcher, expand()));
    assert!(futures_util::poll!(&mut first).is_pending());
    let second = edge.ask(expand());
    edge.until(|counts| counts.waiting == 2).await;
    edge.driver.release(1);
    assert!(running.await.unwrap().is_ok());
    // The operation begins with the request of `first`, which is not polled any more.
    in_time(async {
        while edge.dispatcher.operation_counts().running == 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(edge.driver.executions("ControllerExpandVolume v"), 0);
    drop(first);
    edge.driver.release(1);
    assert!(second.await.unwrap().is_ok());
    assert_eq!(edge.driver.executions("ControllerExpandVolume v"), 1);
}
