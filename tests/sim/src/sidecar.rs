//! The sidecars: each wants one operation done, asks for it, and asks again until the driver itself has answered.

use std::time::Duration;

use bytes::Bytes;
use csi_proto::DriverName;
use csi_proxy::{Call, MethodPath, NodeId, Outcome};
use edge_transport::frame::{self, CallId, End, cost};
use edge_transport::session::Event;
use edge_transport::{PeerId, ServiceName};

use crate::oracle::Failed;
use crate::plan::Place;
use crate::vendor::DRIVER;
use crate::world::{Happening, PeerIndex, World};

/// First and longest wait before an order is tried again.
const FIRST_WAIT: Duration = Duration::from_millis(500);
const LONGEST_WAIT: Duration = Duration::from_secs(8);

/// A sidecar, and what it has got so far.
#[derive(Debug, Default)]
pub(crate) struct Sidecar {
    pub(crate) attempts: u32,
    /// The attempt that it waits for.
    pub(crate) waits: Option<(PeerIndex, u64)>,
    /// Messages of this attempt.
    pub(crate) parts: Vec<Bytes>,
    /// The driver has answered.
    pub(crate) done: bool,
}

/// The reading end of a call.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) order: usize,
    began: Duration,
    /// The life of the agent that the call was made to.
    agent: Option<PeerIndex>,
    unread: u64,
    read: u64,
    credit: u64,
}

impl World {
    /// A sidecar makes an attempt.
    pub(crate) fn ask(&mut self, index: usize) {
        let Some(order) = self.plan.orders.get(index).copied() else { return };
        let now = self.now;
        let (proxy, agent) = (self.current(order.proxy), self.current(order.agent));
        let Some(sidecar) = self.sidecars.get_mut(index) else { return };
        if sidecar.done || sidecar.waits.is_some() {
            return;
        }
        let Some(proxy) = proxy else { return self.ask_later(index) };
        let Some(peer) = self.peers.get_mut(proxy) else { return };
        peer.number += 1;
        let number = peer.number;
        let credit = self.credit;
        peer.readers.insert(number, Reader { order: index, began: now, agent, unread: 0, read: 0, credit });
        sidecar.waits = Some((proxy, number));
        sidecar.parts.clear();
        let deadline = order.patience.map(|patience| peer.clock.show(now) + patience);
        self.trace.note(
            now,
            || peer.label(),
            || format!("order {index}: call {number} for operation {}", order.operation),
        );
        let (Ok(target), Ok(service)) =
            (PeerId::new(self.plan.name(order.agent)), ServiceName::new(crate::world::SERVICE))
        else {
            return;
        };
        let Some(wanted) = self.plan.operations.get(order.operation) else { return };
        let (path, body) = (wanted.path(), wanted.request(self.chance.number()));
        let Some(call) = self.call(order.agent, path, body) else {
            return;
        };
        let mut request = frame::Request::new(service, call.body.clone());
        request.metadata = call.encode_header();
        request.credit = credit;
        if order.restless && now < self.plan.calm {
            let after = self.chance.millis(1, 3_000);
            self.after(after, Happening::Leaves { order: index, peer: proxy, number });
        }
        self.peer_event(proxy, Event::Call { number, target, request, deadline, repeatable: true });
    }

    fn call(&mut self, agent: Place, path: &str, body: Bytes) -> Option<Call> {
        let node = NodeId::new(self.plan.name(agent)).ok()?;
        let (driver, method) = (DriverName::new(DRIVER).ok()?, MethodPath::new(path).ok()?);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.chance.number().to_le_bytes());
        Some(Call::new(csi_proxy::CallId::from_bytes(id), node, driver, method, body))
    }

    fn ask_later(&mut self, index: usize) {
        let Some(sidecar) = self.sidecars.get_mut(index) else { return };
        sidecar.waits = None;
        sidecar.attempts += 1;
        let wait = FIRST_WAIT.saturating_mul(1 << sidecar.attempts.min(6)).min(LONGEST_WAIT);
        self.after(wait, Happening::Asks { order: index });
    }

    /// The sidecar's patience is over before its time, or its process has ended.
    pub(crate) fn leaves(&mut self, index: usize, peer: PeerIndex, number: u64) {
        if self.sidecars.get(index).is_none_or(|sidecar| sidecar.waits != Some((peer, number))) {
            return;
        }
        let now = self.now;
        self.trace.note(now, || "sidecar".into(), || format!("order {index} leaves call {number}"));
        if let Some(peer) = self.peers.get_mut(peer) {
            peer.readers.remove(&number);
        }
        self.peer_event(peer, Event::StopWaiting { number });
        self.ask_later(index);
    }

    /// The proxy's process has ended under a sidecar's call.
    pub(crate) fn caller_gone(&mut self, reader: Reader) {
        self.ask_later(reader.order);
    }

    /// A session hands a part of an answer over.
    pub(crate) fn reply(&mut self, index: PeerIndex, number: u64, message: Option<Bytes>, end: Option<End>) {
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        let hub = peer.link.and_then(|link| self.links.get(&link)).map(|link| link.hub);
        let Some(reader) = peer.readers.get_mut(&number) else {
            return self.oracle.own_answer.nobody_asked(now, index, number);
        };
        let order = reader.order;
        let Some(sidecar) = self.sidecars.get_mut(order) else { return };
        if let Some(message) = message {
            reader.unread += cost(&message);
            self.oracle.bounds.unread(now, index, number, reader.unread, reader.credit, cost(&message));
            sidecar.parts.push(message);
            let reading = self.plan.orders.get(order).map_or(Duration::ZERO, |order| order.reading);
            let reading = self.chance.time(reading / 2, reading);
            self.after(reading, Happening::Reads { peer: index, number });
        }
        let Some(end) = end else { return };
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(reader) = peer.readers.remove(&number) else { return };
        self.trace.note(now, || peer.label(), || format!("order {order}: call {number} ends: {end:?}"));
        let Some(wanted) = self.plan.orders.get(order) else { return };
        match end {
            End::Finished(closing) => match Outcome::decode(closing) {
                Ok(outcome) if outcome.fault().is_none() => {
                    self.finished(order, wanted.operation, hub, &outcome);
                }
                Ok(outcome) => {
                    if let Some(fault) = outcome.fault() {
                        self.oracle.own_answer.fault(now, number, fault);
                    }
                    self.ask_later(order);
                }
                Err(_) => {
                    self.oracle.own_answer.no_closing(now, number);
                    self.ask_later(order);
                }
            },
            End::Failed(failure) => {
                self.oracle.own_answer.failed(now, number, &failure);
                let Some(peer) = self.peers.get(index) else { return };
                let id = CallId::new(peer.epoch, number);
                let alone = |peer: Option<PeerIndex>| peer.is_some_and(|peer| self.is_alone(peer));
                let lived = alone(Some(index)) && alone(reader.agent);
                let served =
                    reader.agent.is_some_and(|agent| self.oracle.once.has_served(agent, &peer.name, id));
                let sound = reader.agent.and_then(|agent| self.sound(index, agent));
                let call = Failed { number, began: reader.began, lived, served, sound };
                self.oracle.outlives.failed(now, call, &failure);
                self.ask_later(order);
            }
            other => self.oracle.own_answer.unknown_end(now, number, &other),
        }
    }

    /// A sidecar has its driver's answer.
    fn finished(&mut self, order: usize, operation: usize, hub: Option<u32>, outcome: &Outcome) {
        let now = self.now;
        let Some(sidecar) = self.sidecars.get_mut(order) else { return };
        let found = self.oracle.own_answer.finished(now, operation, &sidecar.parts, outcome);
        let mut run = found.and_then(|execution| self.executions.get_mut(execution));
        if let Some(run) = &mut run {
            run.got = true;
        }
        if let Some(run) = run
            && let (Some(agent), Some(hub)) = (self.peers.get(run.agent), hub)
        {
            self.oracle.fence.answered(now, hub, agent.name.as_str(), agent.epoch, run.began);
        }
        sidecar.waits = None;
        sidecar.done = true;
        self.unfinished -= 1;
    }

    /// A sidecar has read what came, and gives credit back as `edge_transport`'s reply streams do.
    pub(crate) fn reads(&mut self, index: PeerIndex, number: u64) {
        let Some(reader) = self.peers.get_mut(index).and_then(|peer| peer.readers.get_mut(&number)) else {
            return;
        };
        reader.read += std::mem::take(&mut reader.unread);
        if reader.read >= (reader.credit / 2).max(1) {
            let bytes = std::mem::take(&mut reader.read);
            self.peer_event(index, Event::Credit { number, bytes });
        }
    }
}
