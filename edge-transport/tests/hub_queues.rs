//! What peers do not read does not use up the queues of a hub.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a failing test panics")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use edge_transport::advanced::{Core, LinkAction, LinkCore, LinkEvent, Role, SessionKey};
use edge_transport::frame::{Frame, Hello, Kind, Part};
use edge_transport::hub::{AllowAll, HubSettings};
use edge_transport::{PeerId, Request, ServiceName, SessionId, SessionSettings};

const SESSION: SessionId = SessionId { instance: 7, number: 7 };

fn admit(core: &mut Core, name: &str) -> SessionKey {
    let hello = |name: &str| Hello::new(PeerId::new(name).unwrap(), SESSION);
    let (settings, now) = (SessionSettings::default(), Instant::now());
    let mut link = LinkCore::new(Role::Acceptor, hello("hub"), settings, now, &mut Vec::new());
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
    let mut core = Core::new(settings, Arc::new(AllowAll));
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
