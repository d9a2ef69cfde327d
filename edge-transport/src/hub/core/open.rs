//! The records of an open call at its two sides.

use super::SessionKey;
use crate::frame::{Reply, cost};

/// The record of a call in the session of its requester.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) target: SessionKey,
    /// The call's number on the target's link.
    pub(super) dest_id: u64,
    /// Lane of the replies on the link to the requester.
    pub(super) lane: u64,
    /// Whether replies were sent on the lane, but not the last one.
    pub(super) lane_open: bool,
    has_deadline: bool,
    /// Bytes that the target may send, as its requester has announced them to it.
    balance: i64,
}

impl Call {
    /// Opens the call of a request with this credit, and with or without a deadline.
    pub(super) fn new(target: SessionKey, dest_id: u64, lane: u64, credit: u64, has_deadline: bool) -> Self {
        let balance = i64::try_from(credit).unwrap_or(i64::MAX);
        Self { target, dest_id, lane, lane_open: false, has_deadline, balance }
    }

    /// Whether the requester waits: for the first reply, or until its deadline. A watch without deadline may be silent for days.
    pub(super) const fn waits(&self) -> bool {
        self.has_deadline || !self.lane_open
    }

    /// Records a reply after which the call continues. Returns whether the requester does not wait any more.
    pub(super) const fn answered(&mut self) -> bool {
        let waited = self.waits();
        self.lane_open = true;
        waited && !self.waits()
    }

    pub(super) const fn add_credit(&mut self, bytes: u64) {
        self.balance = self.balance.saturating_add_unsigned(bytes);
    }

    /// Spends the credit that a reply costs. Returns what is wrong with a reply that may not be sent: a target must
    /// not fill the queue of its requester, which the replies of other targets need.
    pub(super) fn spend(&mut self, reply: &Reply) -> Result<(), &'static str> {
        match (&reply.message, &reply.end) {
            (Some(_), _) if self.balance <= 0 => return Err("the target sent a message without credit"),
            (Some(message), _) => self.balance = self.balance.saturating_sub_unsigned(cost(message)),
            (None, Some(_)) => {}
            (None, None) => {
                return Err("the target sent a reply without a message that does not end the call");
            }
        }
        Ok(())
    }
}

/// The record of a call in the session of its target.
#[derive(Debug, Clone, Copy)]
pub(super) struct ServedCall {
    pub(super) requester: SessionKey,
    /// The call's number on the requester's link.
    pub(super) number: u64,
    /// Slot of the request in the target's queue.
    pub(super) slot: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failing test panics")]

    use std::collections::HashMap;
    use std::sync::Arc;
    use std::time::Instant;

    use bytes::Bytes;

    use crate::frame::{Frame, PROTOCOL_VERSION, Part, Reply, Request};
    use crate::hub::{Core, HubSettings, Policy, Rules};
    use crate::name::{PeerId, ServiceName, SessionId};
    use crate::session::Remote;

    fn name(name: &str) -> PeerId {
        PeerId::new(name).unwrap()
    }

    fn watch() -> ServiceName {
        ServiceName::new("watch").unwrap()
    }

    fn remote(peer: &str, number: u64) -> Remote {
        Remote {
            peer: name(peer),
            session: SessionId { instance: 1, number },
            version: PROTOCOL_VERSION,
            max_frame: 1 << 20,
            services: Arc::from([watch()]),
            features: Vec::new(),
            idle_ping: None,
        }
    }

    fn hub() -> Core {
        let settings = HubSettings { max_local_calls: 2, ..HubSettings::default() };
        let mut core = Core::new(settings, Arc::new(Rules::allow_all())).with_local(
            name("hub"),
            HashMap::from([(watch(), Arc::new(Rules::allow_all()) as Arc<dyn Policy>)]),
        );
        core.admit(&remote("hub", 1)).unwrap();
        core
    }

    fn to_the_hub(number: u64, part: Part) -> Frame {
        Frame::call(None, Some(name("hub")), number, part)
    }

    #[test]
    fn replaced_and_lost_link_is_counted_once() {
        let (mut core, now) = (hub(), Instant::now());
        let mut older = None;
        for session in 1..=3 {
            let key = core.admit(&remote("edge-1", session)).unwrap();
            for number in 1..=2 {
                let request = Part::Request(Request::new(watch(), "watch"));
                core.route(key, to_the_hub(number, request), now);
            }
            // The loss of the previous link is detected late.
            if let Some(older) = older.replace(key) {
                core.lost(older);
            }
            assert_eq!((core.stats().open_calls, core.stats().local_calls), (2, 2), "session {session}");
        }
        core.lost(older.unwrap());
        assert_eq!((core.stats().open_calls, core.stats().local_calls), (0, 0));
    }

    /// A node that sends on without credit, or replies that cost none, cannot fill the queue of its caller.
    #[test]
    fn replies_without_credit_end_the_call() {
        let message = || Some(Bytes::from(vec![7; 40]));
        for (credit, second, is_open) in
            [(0, message(), false), (4, message(), false), (5, message(), true), (5, None, false)]
        {
            let (mut core, now) =
                (Core::new(HubSettings::default(), Arc::new(Rules::allow_all())), Instant::now());
            let (proxy, node) =
                (core.admit(&remote("proxy", 1)).unwrap(), core.admit(&remote("edge-1", 1)).unwrap());
            let mut request = Request::new(watch(), "watch");
            request.credit = 100;
            let to_node = |part| Frame::call(None, Some(name("edge-1")), 9, part);
            core.route(proxy, to_node(Part::Request(request)), now);
            let reply = |core: &mut Core, sequence, message| {
                let reply = Reply { sequence, message, end: None };
                core.route(node, Frame::call(None, None, 1, Part::Reply(reply)), now);
            };
            // A message costs 64 bytes in addition, so that this one overdraws the credit by 4.
            reply(&mut core, 1, message());
            core.route(proxy, to_node(Part::Credit { bytes: credit }), now);
            assert_eq!(core.stats().open_calls, 1);
            reply(&mut core, 2, second);
            assert_eq!(
                (core.stats().open_calls, core.stats().malformed),
                (usize::from(is_open), u64::from(!is_open))
            );
        }
    }
}
