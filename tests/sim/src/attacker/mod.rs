//! Attackers: peers with credentials of their own that follow the protocol and lie in everything that it carries.
//!
//! An attacker does not use the shipped peer. It writes its own frames, over links without the simulated network, so
//! that no fault of the network holds it up. It knows what an insider knows: the names, sessions and terms of the others.

mod frames;
mod hello;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use edge_transport::advanced::frame::{Frame, Hello, Kind, Part, decode};
use edge_transport::link::{Lane, Link, WireFrame};
use edge_transport::{PeerId, Request, SessionId};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::context::Context;
use crate::network::Door;
use crate::plan::Plan;
use crate::rng::Rng;

/// In every request, answer and text of an attacker. Nothing of a tenant contains it.
pub(crate) const FORGED: &str = "forged";

/// The number of names that an attacker uses: its own, and others below it.
pub(crate) const MOST_NAMES: usize = 9;

/// Time limit for the hub to take one frame.
const SENDING: Duration = Duration::from_secs(1);

/// What an attacker's credentials are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// A node, which may be called and may call nothing.
    Node,
    /// A proxy of another driver than those of the tenants.
    Caller,
}

impl Role {
    /// The name that the credentials prove, with all names below it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Node => "edge-evil",
            Self::Caller => "proxy-evil",
        }
    }

    /// The number of peers that the hub may admit with these credentials at a time.
    const fn most_peers(self) -> usize {
        match self {
            Self::Node => 3,
            Self::Caller => 64,
        }
    }

    /// Returns whether the credentials prove a name.
    pub(crate) fn proves(self, claimed: &PeerId) -> bool {
        let below = claimed.as_str().strip_prefix(self.name());
        below.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

/// Attacks one hub after the other until the task is aborted.
pub(crate) async fn attack(context: Arc<Context>, role: Role, mut rng: Rng) {
    let plan = context.with(|inner| Arc::clone(&inner.plan));
    let Ok(own) = PeerId::new(role.name()) else { return };
    let mut number = 0;
    loop {
        sleep(rng.millis(10, 2_000)).await;
        let hub = rng.below(plan.hubs);
        let door = context.with(|inner| inner.doors.get(hub).cloned().flatten());
        let Some((_, door)) = door else { continue };
        let Ok(link) = door.connect(own.clone()).await else { continue };
        number += 1;
        if rng.happens(60) {
            connect_all_names(&context, role, &door, number).await;
            continue;
        }
        let (context, plan, own) = (Arc::clone(&context), Arc::clone(&plan), own.clone());
        let rng = rng.fork();
        Attacker { context, plan, role, own, rng, number, claimed: None, served: Vec::new(), next: 1 }
            .run(link)
            .await;
    }
}

/// Connects under all names at once.
async fn connect_all_names(context: &Arc<Context>, role: Role, door: &Door, number: u64) {
    let (mut links, mut admitted) = (Vec::new(), 0);
    for index in 1..MOST_NAMES {
        let Ok(claimed) = PeerId::new(format!("{}/{index}", role.name())) else { return };
        let hello = Hello::new(claimed, SessionId { instance: 7, number });
        let Ok(own) = PeerId::new(role.name()) else { return };
        let Ok(mut link) = door.connect(own).await else { return };
        let hello = frames::encoded(Frame::link(Kind::Hello(hello)));
        if send(&mut link, hello).await
            && let Ok(Some(Ok(bytes))) = timeout(SENDING, link.next()).await
        {
            let frame = decode(bytes, usize::MAX);
            admitted += usize::from(frame.is_ok_and(|frame| matches!(frame.kind, Kind::Hello(_))));
        }
        links.push(link);
    }
    let now = context.now();
    context.with(|inner| {
        inner.oracle.bounds.within(now, role.name(), "peers at one hub", admitted, role.most_peers());
    });
    sleep(SENDING).await;
}

/// One link of an attacker.
struct Attacker {
    context: Arc<Context>,
    plan: Arc<Plan>,
    role: Role,
    /// The name that the credentials prove.
    own: PeerId,
    rng: Rng,
    /// Counts the links.
    number: u64,
    /// The name in the hello.
    claimed: Option<PeerId>,
    /// The calls that the hub has forwarded to this link.
    served: Vec<(u64, Request)>,
    /// The next number of an own call.
    next: u64,
}

impl Attacker {
    async fn run(mut self, mut link: Link) {
        let reads = !self.rng.happens(150);
        let hello = self.hello();
        if !send(&mut link, hello).await {
            return;
        }
        let ends = Instant::now() + self.rng.millis(200, 10_000);
        while Instant::now() < ends {
            let next = Instant::now() + self.rng.millis(50, 3_000);
            loop {
                tokio::select! {
                    biased;
                    received = link.next(), if reads => match received {
                        Some(Ok(bytes)) => self.read(&bytes),
                        _ => return,
                    },
                    () = sleep_until(next) => break,
                }
            }
            let burst = if self.rng.happens(20) { 60 } else { 1 + self.rng.below(5) };
            for _ in 0..burst {
                let frame = self.frame();
                if !send(&mut link, frame).await {
                    return;
                }
            }
        }
    }

    /// Reads what the hub has sent. Everything is shown to the oracle.
    fn read(&mut self, bytes: &Bytes) {
        self.context.attacker_reads(self.role, bytes);
        let Ok(frame) = decode(bytes.clone(), usize::MAX) else { return };
        match frame.kind {
            Kind::Hello(_) => {
                if let Some(claimed) = &self.claimed {
                    self.context.attacker_admitted(self.role, claimed);
                }
            }
            Kind::Call(number, Part::Request(request)) => self.served.push((number, request)),
            _ => {}
        }
    }
}

/// Sends a frame. Returns whether the link is still open.
async fn send(link: &mut Link, bytes: Bytes) -> bool {
    let frame = WireFrame::new(Lane::Control, false, bytes, Bytes::new());
    matches!(timeout(SENDING, link.send(frame)).await, Ok(Ok(())))
}
