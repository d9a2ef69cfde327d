//! What a session says of the answers that it was given: whether their requesters have them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by them")]

mod session_common;

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use edge_transport::frame::{
    CallId, End, FEATURE_RESUME, Frame, Hello, Kind, Lane, MAX_ENDED, Part, Reply, Request, Resume, decode,
    encode,
};
use edge_transport::session::{Action, Event, ServingId, Session, Settings};
use edge_transport::{Delivery, Epoch, IncomingRequest, Peer, PeerId, ReplySender, Service, ServiceName};
use session_common::{collect, echo, net, service_name};
use tokio::sync::{Notify, mpsc};

fn peer(name: &str) -> PeerId {
    PeerId::new(name).unwrap()
}

fn service() -> ServiceName {
    ServiceName::new("echo").unwrap()
}

fn id(number: u64) -> CallId {
    CallId::new(Epoch::new(7), number)
}

fn settings() -> Settings {
    Settings::default()
}

/// A session and its time, in words.
struct Bench {
    session: Session,
    now: Instant,
    features: Vec<String>,
    served: Vec<ServingId>,
    /// Those on which something was sent, but not the last.
    lanes: BTreeSet<Lane>,
}

impl Bench {
    fn new(features: &[&str], settings: Settings) -> Self {
        let mut hello = Hello::new(peer("edge"), Epoch::new(1));
        hello.services = vec![service()];
        hello.features = features.iter().map(ToString::to_string).collect();
        let features = hello.features.clone();
        let session = Session::new(hello, settings);
        let (served, lanes) = (Vec::new(), BTreeSet::new());
        let mut bench = Self { session, now: Instant::now(), features, served, lanes };
        bench.link_up();
        bench
    }

    fn resuming() -> Self {
        Self::new(&[FEATURE_RESUME], settings())
    }

    fn link_up(&mut self) {
        let mut hello = Hello::new(peer("hub"), Epoch::new(1));
        hello.features = self.features.clone();
        self.event(Event::LinkUp);
        self.receive(None, Kind::Hello(hello));
    }

    /// What comes out of it, save hellos, requests and replies.
    fn event(&mut self, event: Event) -> Vec<String> {
        self.session.handle(event, self.now);
        let mut seen = Vec::new();
        while let Some(action) = self.session.poll_action() {
            match action {
                Action::Serve(incoming) => {
                    self.served.push(incoming.serving);
                    seen.push(format!("serve {}", incoming.id.number));
                }
                Action::Delivery { serving, delivery } => {
                    let at = self.served.iter().position(|served| *served == serving).unwrap();
                    seen.push(format!("{} {delivery:?}", at + 1));
                }
                Action::Close(_) => seen.push("close".to_owned()),
                Action::Send(frame) => {
                    match (frame.lane, frame.last) {
                        (Lane::Control, _) => {}
                        (lane, false) => drop(self.lanes.insert(lane)),
                        (lane, true) => drop(self.lanes.remove(&lane)),
                    }
                    let bytes = Bytes::from([frame.head, frame.body].concat());
                    match decode(bytes, usize::MAX).unwrap().kind {
                        Kind::Call(id, Part::Ack { further, .. }) => {
                            let mut numbers = further;
                            numbers.push(id.number);
                            numbers.sort_unstable();
                            seen.push(format!("ack {numbers:?}"));
                        }
                        Kind::Call(id, Part::Request(request)) if !request.ended.is_empty() => {
                            seen.push(format!("request {} after {:?}", id.number, request.ended));
                        }
                        _ => {}
                    }
                }
                _ => {}
            }
        }
        seen
    }

    fn receive(&mut self, source: Option<&str>, kind: Kind) -> Vec<String> {
        let mut frame = Frame::hop(kind);
        frame.source = source.map(peer);
        let frame = encode(frame, Lane::Control);
        self.event(Event::Received([frame.head, frame.body].concat().into()))
    }

    fn part(&mut self, id: CallId, part: Part) -> Vec<String> {
        self.receive(Some("cloud"), Kind::Call(id, part))
    }

    fn pass(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.event(Event::Tick)
    }

    /// So much that the link is found dead.
    fn pass_long(&mut self, time: Duration) -> Vec<String> {
        let mut seen = self.pass(time);
        assert_eq!(seen.remove(0), "close");
        seen
    }

    fn request(&mut self, number: u64, ended: &[u64]) -> Vec<String> {
        self.request_of(7, number, ended)
    }

    /// A call of one of the requester's lives.
    fn request_of(&mut self, epoch: u64, number: u64, ended: &[u64]) -> Vec<String> {
        let mut request = Request::new(service(), Bytes::new());
        (request.credit, request.resumable) = (1000, true);
        request.ended = ended.to_vec();
        self.part(CallId::new(Epoch::new(epoch), number), Part::Request(request))
    }

    fn answer_with(&mut self, number: usize, message: Bytes) -> Vec<String> {
        let (serving, message) = (self.served[number - 1], Some(message));
        let end = Some(End::Finished(Bytes::new()));
        self.event(Event::Answer { serving, message, end, receipt: true })
    }

    fn answer(&mut self, number: usize) -> Vec<String> {
        self.answer_with(number, Bytes::from_static(b"answer"))
    }

    /// A call that has been answered.
    fn answered(&mut self, number: u64) {
        assert_eq!(self.request(number, &[]), [format!("serve {number}")]);
        assert_eq!(self.answer(self.served.len()), [""; 0]);
    }

    fn ack(&mut self, number: u64, further: &[u64]) -> Vec<String> {
        self.part(id(number), Part::Ack { service: service(), further: further.to_vec() })
    }

    fn resume(&mut self, number: u64) -> Vec<String> {
        self.part(id(number), Part::Resume(Resume::new(service(), 1, 1000)))
    }
}

#[test]
fn an_answer_is_delivered_when_its_requester_says_so() {
    let mut bench = Bench::resuming();
    for number in 1..=3 {
        bench.answered(number);
    }
    assert_eq!(bench.pass(Duration::from_secs(2)), [""; 0]);
    assert_eq!(bench.ack(3, &[1]), ["1 Delivered", "3 Delivered"]);
    assert_eq!(bench.ack(3, &[1]), [""; 0]);
    assert!(bench.session.kept_bytes() > 0);
    assert_eq!(bench.ack(2, &[]), ["2 Delivered"]);
    assert_eq!(bench.session.kept_bytes(), 0);
}

#[test]
fn a_requester_that_asks_anew_says_first_what_it_has() {
    let mut bench = Bench::resuming();
    bench.answered(1);
    bench.answered(2);
    assert_eq!(bench.request(3, &[2, 1]), ["2 Delivered", "1 Delivered", "serve 3"]);
    assert_eq!(bench.ack(1, &[2]), [""; 0]);
}

#[test]
fn an_answer_whose_link_is_cut_is_pending_until_its_requester_can_ask_no_more() {
    let mut bench = Bench::resuming();
    bench.answered(1);
    bench.request(2, &[]);
    assert_eq!(bench.event(Event::LinkLost), [""; 0]);
    assert_eq!(bench.answer(2), [""; 0], "it is kept for the next link");
    bench.link_up();
    assert_eq!(bench.resume(1), [""; 0]);
    assert_eq!(bench.ack(1, &[]), ["1 Delivered"]);
    assert_eq!(bench.pass_long(settings().resume_window + 2 * settings().dead_after), ["2 Undelivered"]);
    assert_eq!(bench.ack(2, &[]), [""; 0]);
}

#[test]
fn a_requester_that_has_left_has_no_answer() {
    let mut bench = Bench::resuming();
    bench.answered(1);
    assert_eq!(bench.part(id(1), Part::StopWaiting), ["1 Undelivered"]);
    bench.request(2, &[]);
    bench.part(id(2), Part::StopWaiting);
    assert_eq!(bench.answer(2), ["2 Undelivered"]);
    bench.request(3, &[]);
    bench.part(id(3), Part::Away);
    bench.pass(settings().resume_window);
    assert_eq!(bench.answer(3), ["3 Undelivered"]);
    assert_eq!(bench.session.kept_bytes(), 0);
}

#[test]
fn after_a_resumption_leaving_says_nothing_since_also_those_leave_who_have_the_answer() {
    let mut bench = Bench::resuming();
    bench.answered(1);
    bench.resume(1);
    assert_eq!(bench.part(id(1), Part::StopWaiting), [""; 0]);
    assert_eq!(bench.ack(1, &[]), ["1 Delivered"]);
    bench.request(2, &[]);
    bench.resume(2);
    bench.answer(2);
    assert_eq!(bench.part(id(2), Part::StopWaiting), [""; 0]);
    assert_eq!(bench.pass_long(settings().resume_window + 2 * settings().dead_after), ["2 Undelivered"]);
}

#[test]
fn a_later_life_of_the_requester_has_no_use_for_the_answer() {
    let mut bench = Bench::resuming();
    bench.answered(1);
    let later = CallId::new(Epoch::new(8), 1);
    let request = Part::Request(Request::new(service(), Bytes::new()));
    assert_eq!(bench.part(later, request), ["1 Undelivered", "serve 1"]);
}

#[test]
fn a_call_of_an_earlier_life_that_ends_late_takes_no_answer_of_the_life_that_is_back() {
    let mut bench = Bench::resuming();
    assert_eq!(bench.request_of(10, 5, &[]), ["serve 5"]);
    assert_eq!(bench.request_of(11, 1, &[]), ["serve 1"]);
    assert_eq!(bench.pass_long(Duration::from_secs(121)), [""; 0]);
    bench.link_up();
    assert_eq!(bench.request_of(10, 5, &[]), ["serve 5"], "its clock was set back");
    assert_eq!(bench.answer(3), [""; 0], "it is kept");
    let kept = bench.session.kept_bytes();
    assert_eq!(bench.answer(1), ["1 Undelivered"]);
    assert_eq!(bench.session.kept_bytes(), kept);
    assert_eq!(bench.pass_long(settings().resume_window + 2 * settings().dead_after), ["3 Undelivered"]);
    assert_eq!(bench.session.kept_bytes(), 0);
}

#[test]
fn what_has_to_make_room_is_not_delivered() {
    let mut narrow = settings();
    narrow.max_kept = 1000;
    let mut bench = Bench::new(&[FEATURE_RESUME], narrow);
    for number in 1..=2 {
        bench.request(number, &[]);
    }
    assert_eq!(bench.answer_with(1, vec![0; 600].into()), [""; 0]);
    assert_eq!(bench.answer_with(2, vec![0; 600].into()), ["1 Undelivered"]);
    assert_eq!(bench.ack(1, &[2]), ["2 Delivered"]);
}

#[test]
fn a_failure_in_place_of_an_answer_does_not_deliver_it() {
    let mut bench = Bench::resuming();
    bench.request(1, &[]);
    assert_eq!(bench.answer_with(1, vec![0; settings().max_frame].into()), ["1 Undelivered"]);
    bench.ack(1, &[]);
    bench.answered(2);
    let mut refused = Reply::new(1);
    refused.end = Some(End::Finished(Bytes::new()));
    let frame = Frame::call(None, Some(peer("cloud")), id(2), Part::Reply(refused));
    assert_eq!(bench.event(Event::Refused(encode(frame, Lane::Control).head)), ["2 Undelivered"]);
    assert_eq!(bench.ack(2, &[]), [""; 0]);
}

#[test]
fn an_answer_to_a_peer_that_resumes_nothing_counts_as_delivered_when_it_is_sent() {
    let mut bench = Bench::new(&[], settings());
    for number in 1..=3 {
        bench.request(number, &[]);
    }
    assert_eq!(bench.answer(1), ["1 Delivered"]);
    bench.part(id(2), Part::StopWaiting);
    assert_eq!(bench.answer(2), ["2 Undelivered"]);
    bench.event(Event::LinkLost);
    assert_eq!(bench.answer(3), ["3 Undelivered"]);
}

#[test]
fn who_does_not_ask_is_not_told() {
    let mut bench = Bench::resuming();
    bench.request(1, &[]);
    let end = Some(End::Finished(Bytes::new()));
    bench.event(Event::Answer { serving: bench.served[0], message: None, end, receipt: false });
    assert_eq!(bench.ack(1, &[]), [""; 0]);
}

impl Bench {
    /// A call of this session.
    fn call(&mut self, number: u64) -> Vec<String> {
        let mut request = Request::new(service(), Bytes::new());
        request.credit = 1000;
        let target = peer("cloud");
        self.event(Event::Call { number, target, request, deadline: None, repeatable: true })
    }

    fn gets_answer(&mut self, number: u64) -> Vec<String> {
        let mut reply = Reply::new(1);
        reply.end = Some(End::Finished(Bytes::new()));
        self.part(CallId::new(Epoch::new(1), number), Part::Reply(reply))
    }
}

#[test]
fn a_request_says_what_its_peer_has_and_the_acknowledgement_says_it_again() {
    let mut bench = Bench::resuming();
    bench.call(1);
    bench.call(2);
    bench.gets_answer(1);
    assert_eq!(bench.call(3), ["request 3 after [1]"]);
    assert_eq!(bench.call(4), [""; 0], "once is enough");
    bench.gets_answer(3);
    bench.gets_answer(2);
    assert_eq!(bench.call(5), ["request 5 after [3, 2]"]);
    assert_eq!(bench.pass(Duration::from_millis(500)), ["ack [1, 2, 3]"]);
    assert_eq!(bench.call(6), [""; 0]);
    for number in 10..40 {
        bench.call(number);
        bench.gets_answer(number);
    }
    let many: Vec<u64> = (40..60).collect();
    for number in &many {
        bench.call(*number);
    }
    for number in &many {
        bench.gets_answer(*number);
    }
    assert_eq!(bench.call(60), [format!("request 60 after {:?}", &many[many.len() - MAX_ENDED..])]);
}

#[test]
fn many_ends_are_told_behind_a_request_and_very_many_without_one() {
    let mut bench = Bench::resuming();
    for number in 1..=512 {
        bench.call(number);
    }
    let mut told = Vec::new();
    for number in 1..=64 {
        told.extend(bench.gets_answer(number));
    }
    assert_eq!(told, [""; 0], "a frame for itself would cost a write");
    let both = bench.call(600);
    assert_eq!(both, [format!("request 600 after {:?}", (49..=64).collect::<Vec<_>>()), said(1..=64)]);
    for number in 65..=512 {
        told.extend(bench.gets_answer(number));
    }
    assert_eq!(told, [said(65..=320)]);
    assert_eq!(bench.pass(Duration::from_millis(500)), [said(321..=512)]);
}

fn said(ends: RangeInclusive<u64>) -> String {
    format!("ack {:?}", ends.collect::<Vec<_>>())
}

#[test]
fn a_requester_that_resumes_a_call_again_and_again_leaves_one_lane_open() {
    let mut bench = Bench::resuming();
    bench.request(1, &[]);
    for _ in 0..3 {
        let message = Some(Bytes::from_static(b"part"));
        let serving = bench.served[0];
        bench.event(Event::Answer { serving, message, end: None, receipt: false });
        bench.resume(1);
        assert_eq!(bench.lanes.len(), 1, "{:?}", bench.lanes);
    }
    bench.answer(1);
    assert!(bench.lanes.is_empty(), "{:?}", bench.lanes);
}

#[test]
fn what_may_have_been_lost_with_a_link_is_said_again_on_the_next() {
    let mut bench = Bench::resuming();
    let half = Duration::from_millis(500);
    bench.call(1);
    bench.gets_answer(1);
    assert_eq!(bench.pass(half), ["ack [1]"]);
    for _ in 0..10 {
        bench.pass(settings().dead_after / 8);
        bench.receive(None, Kind::Pong { nonce: 1 });
    }
    for number in 2..=3 {
        bench.call(number);
        bench.gets_answer(number);
        assert_eq!(bench.pass(half), [format!("ack [{number}]")]);
    }
    bench.event(Event::LinkLost);
    assert_eq!(bench.pass(half), [""; 0]);
    bench.link_up();
    assert_eq!(bench.pass(half), ["ack [2, 3]"]);
    assert_eq!(bench.pass(half), [""; 0]);
}

#[test]
fn a_peer_that_has_answers_of_very_many_others_tells_them_all() {
    let mut bench = Bench::resuming();
    let mut told = Vec::new();
    for number in 1..=1026 {
        let (target, mut request) = (format!("cloud-{number}"), Request::new(service(), Bytes::new()));
        request.credit = 1000;
        let to = peer(&target);
        bench.event(Event::Call { number, target: to, request, deadline: None, repeatable: true });
        let mut reply = Reply::new(1);
        reply.end = Some(End::Finished(Bytes::new()));
        let id = CallId::new(Epoch::new(1), number);
        told.extend(bench.receive(Some(&target), Kind::Call(id, Part::Reply(reply))));
    }
    assert_eq!(told, ["ack [1025]", "ack [1026]"]);
    assert_eq!(bench.pass(Duration::from_secs(1)).len(), 1024);
}

#[test]
fn a_peer_that_ends_says_first_what_it_has() {
    for event in [Event::Flushed, Event::Close] {
        let mut bench = Bench::resuming();
        bench.call(1);
        bench.gets_answer(1);
        bench.event(Event::Drain { reason: "update".to_owned() });
        assert_eq!(bench.event(event), ["ack [1]", "close"]);
    }
}

/// Answers at once, or when it may, and tells what became of that.
struct Teller {
    told: mpsc::UnboundedSender<Delivery>,
    may: Option<Arc<Notify>>,
}

#[async_trait::async_trait]
impl Service for Teller {
    async fn call(&self, request: IncomingRequest, mut replies: ReplySender) {
        let told = self.told.clone();
        replies.on_delivery(move |delivery| told.send(delivery).unwrap_or_default());
        if let Some(may) = &self.may {
            may.notified().await;
        }
        match &request.body[..] {
            b"drop" => {}
            b"twice" => {
                let told = self.told.clone();
                replies.on_delivery(move |delivery| told.send(delivery).unwrap_or_default());
                let _ = replies.finish(Bytes::new()).await;
            }
            _ => drop(replies.message_and_finish(request.body, Bytes::new()).await),
        }
    }
}

async fn teller(
    net: &session_common::Net,
    may: Option<Arc<Notify>>,
) -> (Peer, mpsc::UnboundedReceiver<Delivery>) {
    let (told, deliveries) = mpsc::unbounded_channel();
    let edge = Peer::builder(peer("edge-1"))
        .dialer(Box::new(net.dialer.clone()))
        .service(service_name("echo"), Teller { told, may })
        .start()
        .unwrap();
    edge.connected().await.unwrap();
    (edge, deliveries)
}

#[tokio::test(start_paused = true)]
async fn a_service_is_told_that_its_answer_was_delivered_or_that_it_was_not() {
    let net = net();
    let (_edge, mut deliveries) = teller(&net, None).await;
    let cloud = net.caller("cloud").await;
    for (body, expected) in [
        ("x", &[Delivery::Delivered][..]),
        ("drop", &[Delivery::Undelivered]),
        ("twice", &[Delivery::Undelivered, Delivery::Delivered]),
    ] {
        drop(collect(cloud.call(echo("edge-1", body)).await.unwrap()).await);
        for expected in expected {
            assert_eq!(deliveries.recv().await, Some(*expected), "{body}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_is_told_when_its_caller_has_left_or_its_peer_stops() {
    let net = net();
    let may = Arc::new(Notify::new());
    let (edge, mut deliveries) = teller(&net, Some(Arc::clone(&may))).await;
    let cloud = net.caller("cloud").await;
    let left = cloud.call(echo("edge-1", "x")).await.unwrap();
    while net.hub.stats().calls == 0 {
        tokio::task::yield_now().await;
    }
    drop(left);
    // What goes the same way behind it has come.
    drop(collect(cloud.call(echo("edge-1", "x").remaining(Duration::from_secs(1))).await.unwrap()).await);
    may.notify_one();
    assert_eq!(deliveries.recv().await, Some(Delivery::Undelivered));
    net.hub.close().await;
    may.notify_one();
    assert_eq!(deliveries.recv().await, Some(Delivery::Undelivered));
    edge.close().await;
    assert_eq!(deliveries.recv().await, None, "all has been told");
}
