//! Names and sessions in the messages, which are part of the frames' schema.

#[cfg(feature = "runtime")]
pub(super) use crate::generated::session::PresenceQuestion as Question;
pub(super) use crate::generated::session::{PresenceEntry as Entry, PresenceUpdate as Update};
use crate::name::{PeerId, SessionId};

impl Entry {
    #[cfg(feature = "runtime")]
    pub(super) fn new(peer: &PeerId, session: SessionId) -> Self {
        Self { peer: peer.to_string(), instance: session.instance, session: session.number }
    }

    /// `None` if its name is none.
    pub(super) fn read(self) -> Option<(PeerId, SessionId)> {
        let session = SessionId { instance: self.instance, number: self.session };
        PeerId::new(self.peer).ok().map(|peer| (peer, session))
    }
}
