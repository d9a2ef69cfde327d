//! What an agent does with a call: it asks the driver, whoever waits, and sends the answer as credit allows. As
//! `csi_proxy::SessionService` and `Dispatcher` do it.

use std::collections::VecDeque;

use bytes::Bytes;
use csi_proto::Method;
use csi_proxy::operation::{self as desk, AskerId, Identity};
use csi_proxy::{Call, Code, Fault, Outcome};
use edge_transport::Reason;
use edge_transport::frame::{End, Failure, MAX_CLOSING, cost};
use edge_transport::session::{Event, Incoming, ServingId};

use crate::answer::wanted;
use crate::vendor::Caller;
use crate::world::{PeerIndex, World};

/// A call that an agent works on.
#[derive(Debug)]
pub(crate) struct Work {
    balance: i64,
    ready: VecDeque<Bytes>,
    closing: Option<Bytes>,
    abandoned: bool,
    /// Who is to be told whether the answer was delivered.
    receipt: Option<(AskerId, usize)>,
}

impl World {
    pub(crate) fn serve(&mut self, index: PeerIndex, incoming: Incoming) {
        let Incoming { serving, source, id, request, .. } = incoming;
        let now = self.now;
        let Some(peer) = self.peers.get_mut(index) else { return };
        self.oracle.once.served(now, index, &source, id);
        self.trace.note(now, || peer.label(), || format!("serves {id} of {source} as {serving:?}"));
        let balance = i64::try_from(request.credit).unwrap_or(i64::MAX);
        let work = Work { balance, ready: VecDeque::new(), closing: None, abandoned: false, receipt: None };
        peer.works.insert(serving, work);
        let place = peer.place;
        let call = Call::decode(request.metadata, request.body).ok();
        let found = call
            .as_ref()
            .and_then(|call| wanted(&self.plan.operations, place, call.method.as_str(), &call.body));
        let (Some(call), Some(operation)) = (call, found) else {
            // Twisted on its way: to a driver a request that makes no sense.
            let outcome = Outcome::from_driver(Code::INVALID_ARGUMENT, "twisted");
            return self.answers(index, serving, &[], &outcome, None);
        };
        let method = Method::from_path(call.method.as_str());
        match method.and_then(|method| Identity::of(&call.driver, method, &call.body)) {
            Some(identity) => self.desk_asks(index, serving, operation, identity, request.remaining),
            None => self.execute(index, Caller::Call(serving), operation),
        }
    }

    pub(crate) fn work_credit(&mut self, index: PeerIndex, serving: ServingId, bytes: u64) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        if let Some(work) = peer.works.get_mut(&serving) {
            work.balance = work.balance.saturating_add_unsigned(bytes);
        }
        self.work_sends(index, serving);
    }

    /// Nobody waits any more. The driver goes on; what it says is thrown away, or kept for the next who asks. What waits for its turn is
    /// not begun.
    pub(crate) fn work_abandoned(&mut self, index: PeerIndex, serving: ServingId) {
        let Some(peer) = self.peers.get_mut(index) else { return };
        let Some(work) = peer.works.get_mut(&serving) else { return };
        if work.closing.is_none() {
            peer.works.remove(&serving);
            self.desk_left(index, serving);
            let end = Some(End::Finished(Outcome::from(Fault::CallerGone).encode_within(MAX_CLOSING)));
            return self.peer_event(index, Event::Answer { serving, message: None, end, receipt: false });
        }
        work.abandoned = true;
        work.ready.clear();
        self.work_sends(index, serving);
    }

    /// There is an answer to a call. The receipt names the asker, and the execution that the answer is of.
    pub(crate) fn answers(
        &mut self,
        index: PeerIndex,
        serving: ServingId,
        messages: &[Bytes],
        outcome: &Outcome,
        receipt: Option<(AskerId, usize)>,
    ) {
        let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive) else { return };
        let Some(work) = peer.works.get_mut(&serving) else { return };
        if !work.abandoned {
            work.ready.extend(messages.iter().cloned());
        }
        work.closing = Some(outcome.encode_within(MAX_CLOSING));
        work.receipt = receipt;
        self.work_sends(index, serving);
    }

    /// Sends what there is credit for. The last message and the end are one frame.
    fn work_sends(&mut self, index: PeerIndex, serving: ServingId) {
        while let Some(peer) = self.peers.get_mut(index).filter(|peer| peer.alive)
            && let Some(work) = peer.works.get_mut(&serving)
        {
            if work.abandoned {
                if work.closing.is_some() {
                    let receipt = work.receipt;
                    peer.works.remove(&serving);
                    let failure = Failure::new(Reason::ServiceLost, "nobody waits");
                    let end = Some(End::Failed(failure));
                    self.peer_event(index, Event::Answer { serving, message: None, end, receipt: false });
                    self.desk_delivered(index, receipt, false);
                }
                return;
            }
            if !work.ready.is_empty() && work.balance <= 0 {
                return;
            }
            let message = work.ready.pop_front();
            if let Some(message) = &message {
                work.balance = work.balance.saturating_sub_unsigned(cost(message));
            }
            let end = if work.ready.is_empty() { work.closing.take() } else { None };
            if message.is_none() && end.is_none() {
                return;
            }
            let receipt = end.as_ref().and(work.receipt);
            if end.is_some() {
                peer.works.remove(&serving);
            }
            let awaits = receipt.is_some();
            if let Some(receipt) = receipt {
                peer.receipts.insert(serving, receipt);
                self.desk_event(index, desk::Event::Sent { asker: receipt.0 });
            }
            let end = end.map(End::Finished);
            self.peer_event(index, Event::Answer { serving, message, end, receipt: awaits });
        }
    }
}
