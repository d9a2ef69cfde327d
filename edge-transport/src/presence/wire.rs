//! The messages, as the module's own page has them.

use prost::Message;

use crate::name::{PeerId, SessionId};

#[cfg(feature = "runtime")]
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Question {
    #[prost(string, tag = "1")]
    pub(super) service: String,
    #[prost(string, repeated, tag = "2")]
    pub(super) only: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Update {
    #[prost(bool, tag = "1")]
    pub(super) reset: bool,
    #[prost(message, repeated, tag = "2")]
    pub(super) up: Vec<Entry>,
    #[prost(message, repeated, tag = "3")]
    pub(super) down: Vec<Entry>,
    #[prost(bool, tag = "4")]
    pub(super) complete: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct Entry {
    #[prost(string, tag = "1")]
    pub(super) peer: String,
    #[prost(fixed64, tag = "2")]
    pub(super) instance: u64,
    #[prost(uint64, tag = "3")]
    pub(super) session: u64,
}

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
