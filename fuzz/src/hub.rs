//! The hub's routing table: peers that connect and disconnect, and arbitrary frames from them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use edge_transport::SessionId;
use edge_transport::frame::{Hello, Kind, decode};
use edge_transport::hub::{AllowAll, Core, HubSettings, Policy, SessionKey};
use edge_transport::session::{LinkAction, LinkCore, LinkEvent, Remote, Role, Settings};

use crate::script::{Script, name, service, wire};

const PEERS: usize = 3;
const CALLS: usize = 4;
/// The bound for calls to the hub's own services.
const OWN_CALLS: usize = 3;
const QUEUED: usize = 32 * 1024;

/// Runs the script that the bytes encode.
pub fn run(data: &[u8]) {
    let mut script = Script::new(data);
    let mut settings = HubSettings::default();
    (settings.max_peers, settings.max_calls, settings.queue_frames) = (PEERS, CALLS, 16);
    (settings.queue_bytes, settings.total_queue_bytes) = (8 * 1024, QUEUED);
    settings.max_local_calls = OWN_CALLS;
    let answered = (service("csi"), Arc::new(AllowAll) as Arc<dyn Policy>);
    // The hub has the name of one of the script's peers.
    let mut core = Core::new(settings, Arc::new(AllowAll)).with_local(name("hub"), [answered].into());
    let (mut now, mut keys) = (Instant::now(), Vec::new());
    while !script.is_over() {
        step(&mut script, &mut core, &mut keys, &mut now);
        while core.poll_wake().is_some() {}
        while core.poll_presence().is_some() {}
        let stats = core.stats();
        assert!(stats.peers <= PEERS);
        assert!(stats.open_calls <= CALLS * keys.len().max(PEERS));
        assert!(stats.local_calls <= (OWN_CALLS * keys.len()).min(stats.open_calls));
        // Small frames that must not be lost may exceed the bound: those that end calls, and credit.
        assert!(stats.queued_bytes <= QUEUED + keys.len() * (16 + 4 * CALLS) * 2048);
    }
    for key in keys {
        core.lost(key);
    }
    let stats = core.stats();
    assert_eq!((stats.peers, stats.open_calls, stats.local_calls, stats.queued_bytes), (0, 0, 0, 0));
}

fn step(script: &mut Script<'_>, core: &mut Core, keys: &mut Vec<SessionKey>, now: &mut Instant) {
    let picked = script.byte();
    let key = (!keys.is_empty()).then(|| usize::from(picked) % keys.len());
    match (script.below(12), key) {
        (0 | 1, _) if keys.len() < 2 * PEERS => {
            if let Some(remote) = remote(script.hello(), *now)
                && let Ok(key) = core.admit(&remote)
            {
                keys.push(key);
            }
        }
        (2, Some(index)) => core.lost(keys.swap_remove(index)),
        (3 | 4, Some(index)) => {
            let mut frames = VecDeque::new();
            // The core returns an error if the link must be closed.
            if core.take(keys[index], &mut frames, 1 << script.below(14), *now).is_err() {
                core.lost(keys.swap_remove(index));
            }
            for frame in frames {
                decode([frame.head, frame.body].concat().into(), usize::MAX)
                    .expect("a frame from the hub decodes");
            }
        }
        (5, Some(index)) => match decode(script.bytes(), 4096) {
            Ok(frame) => core.route(keys[index], frame, *now),
            Err(error) => core.malformed(keys[index], &error),
        },
        (6, Some(index)) => core.refused(keys[index], wire(script.frame())),
        (7, Some(index)) if script.below(4) == 0 => core.peer_draining(keys[index]),
        (7, _) if script.below(16) == 0 => core.drain("requested by the script"),
        (7, _) => *now += script.time(),
        (_, Some(index)) => {
            let frame = script.frame();
            if matches!(frame.kind, Kind::Call(..)) {
                core.route(keys[index], frame, *now);
            }
        }
        (_, None) => {}
    }
}

/// Returns the remote end that [`LinkCore`] derives from a hello.
fn remote(hello: Hello, now: Instant) -> Option<Remote> {
    let ours = Hello::new(name("hub"), SessionId { instance: 1, number: 1 });
    let mut actions = Vec::new();
    let mut link_core = LinkCore::new(Role::Acceptor, ours, Settings::default(), now, &mut actions);
    link_core.handle(LinkEvent::Frame(Kind::Hello(hello)), now, &mut actions);
    actions.into_iter().find_map(|action| match action {
        LinkAction::HelloReceived(remote) => Some(remote),
        _ => None,
    })
}
