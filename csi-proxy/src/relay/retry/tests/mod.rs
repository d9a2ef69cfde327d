#![allow(clippy::unwrap_used, reason = "a failing test panics")]

mod walk;

use std::collections::VecDeque;
use std::sync::Mutex as StdMutex;
use std::time::Duration;

use bytes::Bytes;
use csi_proto::Delivery;
use csi_proto::csi::v1 as csi;
use futures_util::FutureExt as _;
use prost::Message as _;
use tokio::time::{Instant, sleep};

use super::open::MAX_BUFFERED_BYTES;
use super::*;
use crate::call::{CallId, Fault, MethodPath, NodeId, NodeSession, Outcome, Reply};
use csi_proto::Code;

const GRACE: Duration = Duration::from_secs(5);

const fn session(instance: u64, number: u64) -> NodeSession {
    NodeSession { instance, number }
}

fn node() -> NodeId {
    NodeId::new("edge-1").unwrap()
}

fn lost() -> Fault {
    Fault::LinkLost { reason: "cut".to_owned() }
}

fn offline() -> Fault {
    Fault::NodeOffline { node: node() }
}

fn stale(current: u64) -> Fault {
    let driver = "csi-hostpath".parse().unwrap();
    Fault::StaleTerm { driver, found: Term::FIRST, current: Term::new(current).unwrap() }
}

fn term(number: u64) -> Term {
    Term::new(number).unwrap()
}

fn call(method: Method, body: impl Into<Bytes>) -> Call {
    call_of(method.path(), body)
}

fn call_of(path: &str, body: impl Into<Bytes>) -> Call {
    let (driver, method) = ("csi-hostpath".parse().unwrap(), MethodPath::new(path).unwrap());
    Call::new(CallId::new(), node(), driver, method, body.into())
}

/// A call with an identity.
fn create(name: &str) -> Call {
    let request = csi::CreateVolumeRequest { name: name.to_owned(), ..Default::default() };
    call(Method::CreateVolume, request.encode_to_vec())
}

/// A mutating call without a subject.
fn nameless() -> Call {
    call(Method::CreateVolume, Bytes::new())
}

/// A mutating call that cannot be decoded.
fn unreadable() -> Call {
    call(Method::CreateVolume, Bytes::from_static(b"\xff"))
}

/// The result of one attempt.
enum Attempt {
    Fails(Fault),
    FailsAfter(u64, Fault),
    /// A unary answer with this end after its message.
    Ends(Outcome),
    Hangs,
}

/// Runs a script, then answers every call. Records the calls.
#[derive(Clone, Default)]
struct Script(Arc<StdMutex<Played>>);

#[derive(Default)]
struct Played {
    attempts: VecDeque<Attempt>,
    seen: Vec<Call>,
}

impl Script {
    fn of(attempts: impl IntoIterator<Item = Attempt>) -> Self {
        let script = Self::default();
        script.0.lock().unwrap().attempts.extend(attempts);
        script
    }

    fn failing(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::of(faults.into_iter().map(Attempt::Fails))
    }

    fn seen(&self) -> Vec<Call> {
        self.0.lock().unwrap().seen.clone()
    }

    fn count(&self) -> usize {
        self.0.lock().unwrap().seen.len()
    }
}

#[async_trait]
impl Relay for Script {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let (attempt, body) = {
            let mut played = self.0.lock().unwrap();
            played.seen.push(call.clone());
            (played.attempts.pop_front(), call.body)
        };
        match attempt {
            None => Ok(Replies::unary(body, Outcome::ok())),
            Some(Attempt::Fails(fault)) => Err(fault),
            Some(Attempt::FailsAfter(seconds, fault)) => {
                sleep(Duration::from_secs(seconds)).await;
                Err(fault)
            }
            Some(Attempt::Ends(outcome)) => {
                let parts = [Reply::Message(body), Reply::End(outcome)];
                Ok(Replies::stream(futures_util::stream::iter(parts)))
            }
            Some(Attempt::Hangs) => std::future::pending().await,
        }
    }
}

/// A connected node and its proxy.
struct World {
    script: Script,
    hub: Arc<HubPresence>,
    relay: RetryRelay<Script>,
}

impl World {
    async fn of(script: Script) -> Self {
        let reachability = Reachability::new(GRACE);
        let hub = Arc::new(reachability.add_hub());
        hub.connected();
        hub.node_up(&node(), session(1, 1));
        hub.synced();
        sleep(Duration::from_secs(100)).await;
        let terms = ClockTerms::default();
        let relay = RetryRelay::start(script.clone(), reachability, terms).await.unwrap();
        let relay = relay.for_one_node();
        Self { script, hub, relay }
    }

    async fn failing(faults: impl IntoIterator<Item = Fault>) -> Self {
        Self::of(Script::failing(faults)).await
    }

    fn down(&self, number: u64) {
        self.hub.node_down(&node(), session(1, number));
    }

    fn up_after(&self, seconds: u64, session: NodeSession) {
        let hub = Arc::clone(&self.hub);
        tokio::spawn(async move {
            sleep(Duration::from_secs(seconds)).await;
            hub.node_up(&node(), session);
        });
    }

    async fn answered(&self, call: Call) -> Result<Outcome, Fault> {
        let replies = self.relay.relay(call).await?;
        let (_, outcome) = replies.collect().await;
        match outcome.fault() {
            Some(fault) => Err(fault.clone()),
            None => Ok(outcome),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn call_without_a_fault_passes_unchanged() {
    let world = World::failing([]).await;
    let sent = create("pvc-1").with_remaining(Duration::from_secs(60));
    let (began, tasks) = (Instant::now(), tokio::runtime::Handle::current().metrics().num_alive_tasks());
    let replies = world.relay.relay(sent.clone()).await.unwrap();
    let (message, _) = replies.into_whole().unwrap();
    assert_eq!(message.unwrap().as_ptr(), sent.body.as_ptr(), "no copy");
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), tasks, "no task");
    assert_eq!(began.elapsed(), Duration::ZERO);
    let [seen] = &world.script.seen()[..] else { panic!("not one attempt") };
    assert_eq!(seen.body.as_ptr(), sent.body.as_ptr());
    assert_eq!((seen.id, seen.remaining, seen.session), (sent.id, sent.remaining, Some(session(1, 1))));
    let fence = seen.fence.as_ref().unwrap();
    assert_eq!((fence.number().get(), fence.lowest_open().get()), (1, 1));
    assert_eq!(fence.given_up().ranges().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn waits_for_lost_node_and_sends_the_remaining_time() {
    let world = World::failing([]).await;
    world.down(1);
    world.up_after(4, session(2, 1));
    let result = world.answered(unreadable().with_remaining(Duration::from_secs(60))).await;
    assert!(result.is_ok(), "{result:?}");
    let [seen] = &world.script.seen()[..] else { panic!("not one attempt") };
    assert_eq!((seen.remaining, seen.session), (Some(Duration::from_secs(56)), Some(session(2, 1))));
}

#[tokio::test(start_paused = true)]
async fn calls_to_offline_node_fail_after_the_grace() {
    let world = World::failing([]).await;
    world.down(1);
    for waited in [GRACE, Duration::ZERO] {
        let began = Instant::now();
        assert_eq!(world.answered(create("pvc-1")).await, Err(offline()));
        assert_eq!(began.elapsed(), waited);
    }
    assert_eq!(world.script.count(), 0);
}

/// The caller must not stop first, which would leave the delivery unknown.
#[tokio::test(start_paused = true)]
async fn unsendable_call_ends_before_the_deadline() {
    for (millis, waits) in [(2000, 1800), (100, 50)] {
        let world = World::failing([]).await;
        world.down(1);
        let began = Instant::now();
        let sent = create("pvc-1").with_remaining(Duration::from_millis(millis));
        assert_eq!(world.answered(sent).await, Err(offline()));
        assert_eq!(began.elapsed(), Duration::from_millis(waits));
    }
}

/// Probe does not change within a grace.
#[tokio::test(start_paused = true)]
async fn identity_calls_wait_too() {
    let world = World::failing([]).await;
    world.hub.lost();
    let hub = Arc::clone(&world.hub);
    tokio::spawn(async move {
        sleep(Duration::from_secs(3)).await;
        hub.connected();
        hub.synced();
    });
    let began = Instant::now();
    assert!(world.answered(call(Method::Probe, "")).await.is_ok());
    assert_eq!(began.elapsed(), Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn retries_begun_call_at_the_same_instance() {
    for sent in [create("pvc-1"), nameless(), call(Method::ListVolumes, ""), call(Method::Probe, "")] {
        let world = World::of(Script::of([Attempt::FailsAfter(10, lost())])).await;
        world.up_after(25, session(1, 2));
        let id = sent.id;
        let down = async {
            sleep(Duration::from_secs(10)).await;
            world.down(1);
        };
        let (result, ()) = tokio::join!(world.answered(sent.with_remaining(Duration::from_secs(60))), down);
        assert!(result.is_ok(), "{result:?}");
        let [first, second] = &world.script.seen()[..] else { panic!("not two attempts") };
        assert_eq!((first.id, second.id), (id, id));
        assert_eq!(first.fence, second.fence);
        assert_eq!((second.session, second.remaining), (Some(session(1, 2)), Some(Duration::from_secs(35))));
    }
}

#[tokio::test(start_paused = true)]
async fn begun_unrepeatable_call_ends() {
    for sent in [unreadable(), call_of("/csi.v9.Later/Thing", "")] {
        let world = World::failing([lost()]).await;
        assert_eq!(world.answered(sent.clone()).await, Err(lost()));
        assert_eq!(world.script.count(), 1);
        // An unsent call can be sent.
        let world = World::failing([offline()]).await;
        assert!(world.answered(sent).await.is_ok());
        assert_eq!(world.script.count(), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn begun_call_is_not_sent_to_another_instance() {
    let world = World::failing([lost()]).await;
    world.up_after(10, session(2, 1));
    let down = async { world.down(1) };
    let (result, ()) = tokio::join!(world.answered(create("pvc-1")), down);
    assert_eq!((result, world.script.count()), (Err(lost()), 1));
}

#[tokio::test(start_paused = true)]
async fn begun_call_waits_30_s_or_until_its_deadline() {
    for (remaining, waits) in [(60, 30.0), (20, 19.8)] {
        let world = World::failing([lost()]).await;
        let began = Instant::now();
        let sent = create("pvc-1").with_remaining(Duration::from_secs(remaining));
        let down = async { world.down(1) };
        let (result, ()) = tokio::join!(world.answered(sent), down);
        assert_eq!((result, began.elapsed()), (Err(lost()), Duration::from_secs_f64(waits)));
    }
}

/// A placement is released only if the fault proves that nothing was sent.
#[tokio::test(start_paused = true)]
async fn sent_call_never_ends_as_not_sent() {
    let refused = Fault::DriverNotRegistered { driver: "csi-hostpath".parse().unwrap() };
    for last in [offline(), refused, stale(Term::MAX.get()), Fault::RequestTooLarge { found: 2, max: 1 }] {
        assert_eq!(last.delivery(), Delivery::NotSent);
        for (script, expected) in
            [(vec![offline(), last.clone()], Err(last.clone())), (vec![lost(), last], Err(lost()))]
        {
            let world = World::failing(script).await;
            let down = async {
                while world.script.count() < 2 {
                    sleep(Duration::from_millis(10)).await;
                }
                world.down(1);
            };
            let (result, ()) = tokio::join!(world.answered(create("pvc-1")), down);
            assert_eq!(result, expected);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn retries_truncated_unary_answer() {
    let script = Script::of([Attempt::Ends(lost().into()), Attempt::Ends(Outcome::ok())]);
    let world = World::of(script).await;
    let replies = world.relay.relay(create("pvc-1")).await.unwrap();
    let (messages, outcome) = replies.collect().await;
    assert_eq!((messages.len(), outcome), (1, Outcome::ok()));
    assert_eq!(world.script.count(), 2);
}

#[tokio::test(start_paused = true)]
async fn status_of_the_driver_is_final() {
    let aborted = Outcome::from_driver(Code::UNAVAILABLE, "try again");
    let world = World::of(Script::of([Attempt::Ends(aborted.clone())])).await;
    assert_eq!(world.answered(create("pvc-1")).await, Ok(aborted));
    assert_eq!(world.script.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn gives_up_call_without_an_answer() {
    let world = World::of(Script::of([Attempt::Hangs, Attempt::Hangs])).await;
    let (first, second) = (world.relay.clone(), world.relay.clone());
    let mut open = Box::pin(first.relay(create("pvc-1")));
    assert!((&mut open).now_or_never().is_none());
    assert!(second.relay(create("pvc-2")).now_or_never().is_none(), "its caller leaves");
    assert!(world.answered(create("pvc-3")).await.is_ok());
    drop(open);
    assert!(world.answered(create("pvc-4")).await.is_ok());
    let fences: Vec<_> = world.script.seen().into_iter().map(|call| call.fence.unwrap()).collect();
    let number = |number| crate::call::CallNumber::new(number).unwrap();
    assert_eq!((fences[2].lowest_open(), fences[2].number()), (number(1), number(3)));
    assert!(fences[2].given_up().contains(number(2)) && !fences[2].given_up().contains(number(3)));
    assert_eq!(fences[3].lowest_open(), number(4));
}

#[tokio::test(start_paused = true)]
async fn answered_call_is_not_given_up() {
    let world = World::of(Script::of([Attempt::Hangs])).await;
    let relay = world.relay.clone();
    let mut open = Box::pin(relay.relay(create("pvc-1")));
    assert!((&mut open).now_or_never().is_none());
    for name in ["pvc-2", "pvc-3"] {
        assert!(world.answered(create(name)).await.is_ok());
    }
    let stream = world.relay.relay(call_of("/csi.v9.Later/Stream", "1")).await.unwrap();
    assert!(stream.collect().await.1.is_ok());
    assert!(world.answered(create("pvc-4")).await.is_ok());
    let fence = world.script.seen().pop().unwrap().fence.unwrap();
    assert_eq!((fence.number().get(), fence.lowest_open().get()), (5, 1));
    assert_eq!(fence.given_up().ranges().len(), 0, "{fence:?}");
}

#[tokio::test(start_paused = true)]
async fn gives_up_call_with_unread_answer() {
    let world = World::failing([]).await;
    let parts = || Attempt::Ends(Outcome::ok());
    world.script.0.lock().unwrap().attempts.extend([parts(), Attempt::Hangs, parts()]);
    let first = world.relay.relay(call_of("/csi.v9.Later/Stream", "1")).await.unwrap();
    let relay = world.relay.clone();
    let mut open = Box::pin(relay.relay(create("pvc-1")));
    assert!((&mut open).now_or_never().is_none());
    let third = world.relay.relay(call_of("/csi.v9.Later/Stream", "1")).await.unwrap();
    drop(third);
    assert!(world.answered(create("pvc-2")).await.is_ok());
    drop(first.collect().await);
    let fence = world.script.seen().pop().unwrap().fence.unwrap();
    let number = |number| crate::call::CallNumber::new(number).unwrap();
    assert_eq!(fence.lowest_open(), number(1));
    assert!(fence.given_up().contains(number(3)));
}

#[tokio::test(start_paused = true)]
async fn unbuffered_call_is_sent_once() {
    let world = World::of(Script::of([Attempt::Hangs])).await;
    let large = Bytes::from(vec![0; MAX_BUFFERED_BYTES - 10_000]);
    let relay = world.relay.clone();
    let mut first = Box::pin(relay.relay(call(Method::ListVolumes, large.clone())));
    assert!((&mut first).now_or_never().is_none());
    world.script.0.lock().unwrap().attempts.extend([lost(), offline()].map(Attempt::Fails));
    for fault in [lost(), offline()] {
        let began = Instant::now();
        assert_eq!(world.answered(call(Method::ListVolumes, vec![0; 10_000])).await, Err(fault));
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
    assert!(
        world.answered(call(Method::ListVolumes, vec![0; 10_000])).await.is_ok(),
        "it is only not buffered"
    );
    world.down(1);
    let count = world.script.count();
    assert_eq!(world.answered(call(Method::ListVolumes, vec![0; 10_000])).await, Err(offline()));
    assert_eq!(world.script.count(), count);
    // Small calls still fit.
    world.up_after(3, session(1, 2));
    assert!(world.answered(call(Method::ListVolumes, "")).await.is_ok());
    drop(first);
    world.script.0.lock().unwrap().attempts.push_back(Attempt::Fails(lost()));
    assert!(world.answered(call(Method::ListVolumes, large)).await.is_ok(), "the buffer is free again");
}

#[tokio::test(start_paused = true)]
async fn open_calls_per_node_are_limited() {
    let world = World::of(Script::of((0..1024).map(|_| Attempt::Hangs))).await;
    let mut open = Vec::new();
    for _ in 0..1024 {
        let relay = world.relay.clone();
        let mut call = Box::pin(async move { relay.relay(call(Method::ListVolumes, "")).await.map(drop) });
        assert!((&mut call).now_or_never().is_none());
        open.push(call);
    }
    let refused = world.answered(call(Method::ListVolumes, "")).await.unwrap_err();
    assert!(matches!(refused, Fault::Overloaded { max: 1024, .. }), "{refused:?}");
    assert_eq!(refused.delivery(), Delivery::NotSent);
    open.pop();
    assert!(world.answered(call(Method::ListVolumes, "")).await.is_ok());
}

/// The term of the start, which the first call had.
fn first_term(world: &World) -> Term {
    world.script.seen()[0].fence.as_ref().unwrap().term()
}

#[tokio::test(start_paused = true)]
async fn raises_term_after_lost_state() {
    let agents = Term::CLOCK_MAX.get();
    let world = World::failing([stale(agents)]).await;
    assert!(world.answered(unreadable()).await.is_ok());
    let terms: Vec<_> = world.script.seen().iter().map(|call| call.fence.as_ref().unwrap().term()).collect();
    assert!(terms[0] < term(agents) && term(agents) < terms[1]);
    assert!(world.relay.replaced().now_or_never().is_none());
    assert_eq!(world.relay.refusing_nodes(), []);
}

/// The node that may have begun it does not recognize it under another term.
#[tokio::test(start_paused = true)]
async fn begun_call_is_not_sent_under_another_term() {
    let agents = Term::CLOCK_MAX.get();
    let world = World::failing([lost(), stale(agents)]).await;
    assert_eq!(world.answered(create("pvc-1")).await, Err(lost()));
    assert!(world.answered(create("pvc-1")).await.is_ok());
    let terms: Vec<_> = world.script.seen().iter().map(|call| call.fence.as_ref().unwrap().term()).collect();
    assert!(terms[0] == terms[1] && terms[1] < term(agents));
    assert!(terms[2] > term(agents) && terms.len() == 3);
}

#[tokio::test(start_paused = true)]
async fn replaced_proxy_sends_no_more_calls() {
    let world = World::failing([]).await;
    assert!(world.answered(create("pvc-1")).await.is_ok());
    let waiting = {
        let relay = world.relay.clone();
        tokio::spawn(async move { relay.replaced().await })
    };
    let agents = first_term(&world).next().get();
    world
        .script
        .0
        .lock()
        .unwrap()
        .attempts
        .extend([Attempt::FailsAfter(1, stale(agents)), Attempt::Fails(lost())]);
    let other = async {
        sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        let (result, ()) = tokio::join!(world.answered(create("pvc-3")), async { world.down(1) });
        assert!(began.elapsed() < Duration::from_secs(1), "it stops waiting for its node");
        result
    };
    let (refused, meanwhile) = tokio::join!(world.answered(create("pvc-2")), other);
    assert_eq!(refused, Err(stale(agents)));
    assert_eq!(meanwhile, Err(lost()), "a waiting retry is not sent");
    let replaced = waiting.await.unwrap();
    assert_eq!(replaced.current, term(agents));
    assert!(replaced.to_string().contains("replaced"), "{replaced}");
    let count = world.script.count();
    let later = world.answered(create("pvc-4")).await.unwrap_err();
    assert!(matches!(later, Fault::StaleTerm { .. }), "{later:?}");
    assert_eq!(world.script.count(), count);
}

#[tokio::test(start_paused = true)]
async fn concurrent_refusals_raise_the_term_once() {
    let agents = Term::CLOCK_MAX.get();
    let world = World::of(Script::of((0..5).map(|_| Attempt::FailsAfter(1, stale(agents))))).await;
    let calls = (0..5).map(|number| world.answered(create(&format!("pvc-{number}"))));
    let results = futures_util::future::join_all(calls).await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
    let seen = world.script.seen();
    assert_eq!(seen.len(), 10);
    let raised = seen[5].fence.as_ref().unwrap().term();
    assert!(raised > term(agents));
    assert!(seen.iter().skip(5).all(|call| call.fence.as_ref().unwrap().term() == raised));
}

/// A compromised node answers every call with an invented term.
#[derive(Clone, Default)]
struct OneLiar(Script);

#[async_trait]
impl Relay for OneLiar {
    async fn relay(&self, call: Call) -> Result<Replies, Fault> {
        let (lies, found) = (call.node.as_str() == "liar", call.fence.as_ref().unwrap().term());
        let driver = call.driver.clone();
        let replies = self.0.relay(call).await?;
        let invented = [found.next(), Term::CLOCK_MAX, term(Term::MAX.get() - 1), Term::MAX];
        let current = invented[self.0.count() % 4];
        if lies { Err(Fault::StaleTerm { driver, found, current }) } else { Ok(replies) }
    }
}

#[tokio::test(start_paused = true)]
async fn lying_node_harms_only_calls_to_itself() {
    let to = |name: &str| {
        let mut call = create("pvc-1");
        call.node = NodeId::new(name).unwrap();
        call
    };
    for order in [["liar", "edge-1", "edge-2"], ["edge-1", "liar", "edge-2"]] {
        let (relay, reachability) = (OneLiar::default(), Reachability::new(GRACE));
        let hub = reachability.add_hub();
        hub.connected();
        for name in order {
            hub.node_up(&NodeId::new(name).unwrap(), session(1, 1));
        }
        hub.synced();
        let relay = RetryRelay::start(relay, reachability, ClockTerms::default()).await.unwrap();
        for name in order.repeat(9) {
            let result = relay.relay(to(name)).await.map(drop);
            assert_eq!(result.is_err(), name == "liar", "{name}: {result:?}");
        }
        assert!(relay.replaced().now_or_never().is_none());
        let refusing: Vec<_> = relay.refusing_nodes().into_iter().map(|(node, _)| node.to_string()).collect();
        assert_eq!(refusing, ["liar"]);
        let seen = relay.0.relay.0.seen();
        let honest = seen.iter().filter(|call| call.node.as_str() != "liar");
        let terms: std::collections::BTreeSet<_> =
            honest.map(|call| call.fence.as_ref().unwrap().term()).collect();
        assert_eq!(terms.len(), 1, "the honest nodes get the term of the start");
    }
}

/// Another caller with the certificate of the driver has closed all numbers.
#[tokio::test(start_paused = true)]
async fn open_number_that_another_caller_closed_gets_a_new_term() {
    let closed =
        Fault::StaleCall { driver: "csi-hostpath".parse().unwrap(), number: crate::call::CallNumber::FIRST };
    let world = World::failing([closed.clone()]).await;
    assert!(world.answered(create("pvc-1")).await.is_ok());
    let terms: Vec<_> = world.script.seen().iter().map(|call| call.fence.as_ref().unwrap().term()).collect();
    assert!(terms.len() == 2 && terms[0] < terms[1], "{terms:?}");
    // A call that may have begun is refused rightly, and the other calls keep their term.
    world.script.0.lock().unwrap().attempts.extend([lost(), closed].map(Attempt::Fails));
    assert_eq!(world.answered(create("pvc-2")).await, Err(lost()));
    assert!(world.answered(create("pvc-3")).await.is_ok());
    assert_eq!(world.script.seen().pop().unwrap().fence.unwrap().term(), terms[1]);
}
