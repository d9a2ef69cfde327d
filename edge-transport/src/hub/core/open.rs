//! The records of an open call at its two sides.

use super::SessionKey;

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

    use crate::frame::{Frame, PROTOCOL_VERSION, Part, Request};
    use crate::hub::{AllowAll, Core, HubSettings, Policy};
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
        }
    }

    fn hub() -> Core {
        let settings = HubSettings { max_local_calls: 2, ..HubSettings::default() };
        let mut core = Core::new(settings, Arc::new(AllowAll))
            .with_local(name("hub"), HashMap::from([(watch(), Arc::new(AllowAll) as Arc<dyn Policy>)]));
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
}
