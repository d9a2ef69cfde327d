//! Conversions of presence entries, whose messages are part of the frame schema.

#[cfg(feature = "runtime")]
pub(super) use crate::generated::session::PresenceRequest as Query;
pub(super) use crate::generated::session::{PresenceEntry as Entry, PresenceUpdate as Update};
use crate::name::{PeerId, SessionId};

impl Entry {
    #[cfg(feature = "runtime")]
    pub(super) fn new(peer: &PeerId, session: SessionId) -> Self {
        Self { peer: peer.to_string(), instance: session.instance, session: session.number, drained: false }
    }

    /// Returns `None` if the name is invalid.
    pub(super) fn read(self) -> Option<(PeerId, SessionId)> {
        let session = SessionId { instance: self.instance, number: self.session };
        PeerId::new(self.peer).ok().map(|peer| (peer, session))
    }
}
