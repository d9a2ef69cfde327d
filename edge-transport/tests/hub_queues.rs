//! What peers do not read does not use up the queues of a hub.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use edge_transport::advanced::frame::{Frame, Hello, Kind, Part, Reply, decode};
use edge_transport::advanced::{
    Core, HubSettings, LinkAction, LinkCore, LinkEvent, Role, SessionKey, SessionSettings,
};
use edge_transport::hub::Rules;
use edge_transport::link::WireFrame;
use edge_transport::{PeerId, Request, ServiceName, SessionId};

const SESSION: SessionId = SessionId { instance: 7, number: 7 };

fn admit(core: &mut Core, name: &str) -> SessionKey {
    let hello = |name: &str| Hello::new(PeerId::new(name).unwrap(), SESSION);
    let (settings, now) = (SessionSettings::default(), Instant::now());
    let mut link = LinkCore::new(Role::Acceptor, hello("hub").into(), settings, now, &mut Vec::new());
    let mut peer = hello(name);
    peer.services = vec![ServiceName::new("csi").unwrap()];
    let mut actions = Vec::new();
    link.handle(LinkEvent::Frame(Kind::Hello(peer)), now, &mut actions);
    let remote = actions.into_iter().find_map(|action| match action {
        LinkAction::HelloReceived(remote) => Some(remote),
        _ => None,
    });
    core.admit(&remote.unwrap()).unwrap()
}

fn request(core: &mut Core, from: SessionKey, to: &str, number: u64, body: usize) {
    let request = Request::new(ServiceName::new("csi").unwrap(), vec![0; body]);
    let target = Some(PeerId::new(to).unwrap());
    core.route(from, Frame::call(None, target, number, Part::Request(request)), Instant::now());
}

/// Peers send requests that fail and do not read the failures: those with the largest queues are disconnected, and a genuine
/// call passes.
#[test]
fn unread_failures_leave_room_for_the_calls_of_others() {
    let mut settings = HubSettings::default();
    settings.total_queue_bytes = 1 << 20;
    let mut core = Core::new(settings, Arc::new(Rules::allow_all()));
    let [near, far] = ["near", "far"].map(|name| admit(&mut core, name));
    let hoarders: Vec<_> = (0..8).map(|number| admit(&mut core, &format!("hoarder-{number}"))).collect();
    for number in 1..20_000 {
        for hoarder in &hoarders {
            request(&mut core, *hoarder, "offline", number, 0);
        }
    }
    request(&mut core, near, "far", 1, 64 << 10);
    let mut take = |key| {
        let mut frames = VecDeque::new();
        core.take(key, &mut frames, usize::MAX, Instant::now()).map(|()| frames.len())
    };
    assert_eq!(take(far).unwrap(), 1);
    assert!(hoarders.into_iter().all(|hoarder| take(hoarder).is_err()));
}

/// Takes queued frames of about this many bytes.
fn take(core: &mut Core, key: SessionKey, max_bytes: usize) -> Vec<Frame> {
    let mut frames = VecDeque::new();
    core.take(key, &mut frames, max_bytes, Instant::now()).unwrap();
    core.written(key, 0);
    let whole = |frame: WireFrame| Bytes::from([frame.head, frame.body].concat());
    frames.into_iter().map(|frame| decode(whole(frame), usize::MAX).unwrap()).collect()
}

/// A caller fills the queue of a node on a slow link. The call of another one is next after a single frame, and has room.
#[test]
fn full_queue_of_one_caller_delays_another_by_one_frame() {
    let mut core = Core::new(HubSettings::default(), Arc::new(Rules::allow_all()));
    let [hoarder, near, far] = ["hoarder", "near", "far"].map(|name| admit(&mut core, name));
    for number in 1..100 {
        request(&mut core, hoarder, "far", number, 1 << 20);
    }
    assert!(core.stats().overloaded > 0, "the queue is full");
    request(&mut core, near, "far", 1, 1 << 20);
    let sources: Vec<_> =
        take(&mut core, far, 2 << 20).into_iter().map(|frame| frame.source.unwrap()).collect();
    assert_eq!(sources, ["hoarder", "near"].map(|name| PeerId::new(name).unwrap()));
}

/// A node fills the queue of a caller with the messages that the caller asked for. The answer of another node is next
/// after a single frame.
#[test]
fn full_queue_of_one_node_delays_another_by_one_frame() {
    let mut core = Core::new(HubSettings::default(), Arc::new(Rules::allow_all()));
    let [caller, hoarder, far] = ["caller", "hoarder", "far"].map(|name| admit(&mut core, name));
    for (number, to) in [(1, "hoarder"), (2, "far")] {
        let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
        request.credit = u64::MAX;
        let target = Some(PeerId::new(to).unwrap());
        core.route(caller, Frame::call(None, target, number, Part::Request(request)), Instant::now());
    }
    let mut reply = |key, sequence| {
        let mut reply = Reply::new(sequence);
        reply.message = Some(vec![0; 1 << 20].into());
        core.route(key, Frame::call(None, None, 1, Part::Reply(reply)), Instant::now());
    };
    (1..=10).for_each(|sequence| reply(hoarder, sequence));
    reply(far, 1);
    let sources: Vec<_> =
        take(&mut core, caller, 2 << 20).into_iter().map(|frame| frame.source.unwrap()).collect();
    assert_eq!(sources, ["hoarder", "far"].map(|name| PeerId::new(name).unwrap()));
}

/// Callers make as many calls as they may. All reach a node, and are cancelled while the node reads nothing. The node
/// keeps its link, and the call of another one passes.
#[test]
fn cancels_never_disconnect_a_slow_node() {
    let mut core = Core::new(HubSettings::default(), Arc::new(Rules::allow_all()));
    let [near, far] = ["near", "far"].map(|name| admit(&mut core, name));
    let hoarders: Vec<_> = (0..9).map(|number| admit(&mut core, &format!("hoarder-{number}"))).collect();
    for number in 1..=4096 {
        for hoarder in &hoarders {
            request(&mut core, *hoarder, "far", number, 0);
        }
        take(&mut core, far, usize::MAX);
    }
    for hoarder in hoarders {
        (1..=4096).for_each(|number| {
            core.route(hoarder, Frame::call(None, None, number, Part::Cancel), Instant::now());
        });
    }
    request(&mut core, near, "far", 1, 100);
    let near = Some(PeerId::new("near").unwrap());
    assert!(take(&mut core, far, usize::MAX).iter().any(|frame| frame.source == near));
    assert!(core.stats().overloaded > 0, "9 times 4096 calls were made; 16,384 are allowed");
}

/// A caller sends large requests to many nodes on slow links, which take one each and hold it while they write. Together they are
/// about half of the hub's total, and the call of another one passes.
#[test]
fn frames_on_slow_links_of_one_caller_leave_room_for_another() {
    const TOTAL: usize = 16 << 20;
    let mut settings = HubSettings::default();
    settings.total_queue_bytes = TOTAL;
    let mut core = Core::new(settings, Arc::new(Rules::allow_all()));
    let [hoarder, near] = ["hoarder", "near"].map(|name| admit(&mut core, name));
    let slow: Vec<_> = (0..64).map(|number| admit(&mut core, &format!("slow-{number}"))).collect();
    let mut on_links = 0;
    for (number, key) in (1..).zip(&slow) {
        request(&mut core, hoarder, &format!("slow-{number}", number = number - 1), number, 1 << 20);
        let mut frames = VecDeque::new();
        core.take(*key, &mut frames, usize::MAX, Instant::now()).unwrap();
        let taken = frames.iter().map(WireFrame::len).sum();
        core.written(*key, taken);
        on_links += taken;
    }
    assert!((TOTAL / 4..TOTAL * 3 / 4).contains(&on_links), "{on_links} bytes on links");
    assert_eq!(take(&mut core, hoarder, usize::MAX).len(), slow.len() - on_links / (1 << 20), "refused");
    assert_eq!(core.stats().queued_bytes, on_links);
    request(&mut core, near, "slow-0", 1, 1 << 20);
    assert_eq!(take(&mut core, slow[0], usize::MAX).len(), 1);

    let (written, lost) = slow.split_at(32);
    written.iter().for_each(|key| core.written(*key, 0));
    lost.iter().for_each(|key| core.lost(*key));
    assert_eq!(core.stats().queued_bytes, 0);
}

/// A caller asks a node for many large answers over several links, and reads none. The answer of the node to another
/// caller has room.
#[test]
fn unread_answers_of_one_caller_leave_room_to_another() {
    let mut settings = HubSettings::default();
    settings.total_queue_bytes = 16 << 20;
    let mut core = Core::new(settings, Arc::new(Rules::allow_all()));
    let far = admit(&mut core, "far");
    let mut number_at_node = 0;
    let mut answered = |core: &mut Core, caller, number| {
        let mut request = Request::new(ServiceName::new("csi").unwrap(), Bytes::new());
        request.credit = 1 << 20;
        let target = Some(PeerId::new("far").unwrap());
        core.route(caller, Frame::call(None, target, number, Part::Request(request)), Instant::now());
        number_at_node += 1;
        let mut reply = Reply::new(1);
        reply.message = Some(vec![0; 1 << 20].into());
        core.route(far, Frame::call(None, None, number_at_node, Part::Reply(reply)), Instant::now());
    };
    let hoarder = admit(&mut core, "hoarder");
    (1..=20).for_each(|number| answered(&mut core, hoarder, number));
    assert!(core.stats().overloaded > 0, "the hoarder asked for 20 MiB of 16");
    let near = admit(&mut core, "near");
    answered(&mut core, near, 1);
    let sizes: Vec<_> = take(&mut core, near, usize::MAX)
        .into_iter()
        .map(|frame| match frame.kind {
            Kind::Call(1, Part::Reply(reply)) => reply.message.map_or(0, |message| message.len()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(sizes, [1 << 20]);
}
